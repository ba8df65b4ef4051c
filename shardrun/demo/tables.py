"""Make the demo's tables anew, fill the queue, and read what the handlers wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardrun import boot
from shardrun.config import Settings
from shardrun.db.connect import database
from shardrun.demo.handlers import FINDINGS, files
from shardrun.demo.library import File
from shardrun.demo.order import Run
from shardrun.registry import Declared

OWN_FILE = Path("build/demo.db")
OWN_DSN = f"sqlite:///{OWN_FILE}"

CREATE = f"""
    create table {FINDINGS} (
        id bigint primary key, package text, path text, attempt integer, pid integer,
        began double precision, ended double precision, cpu double precision,
        line_count integer, tokens integer, comments integer, classes integer, functions integer,
        longest_function integer, deepest_nesting integer, highest_complexity integer
    )"""


class Tables:
    """The demo's tables in one database. Those of an earlier demo are dropped; no other table is touched."""

    def __init__(self, settings: Settings, declared: Declared) -> None:
        self._settings = settings
        self._declared = declared
        self.is_own_file = settings.dsn == OWN_DSN
        self._database = database(settings.dsn, settings.dsn_source, create=self.is_own_file)

    def make(self) -> str:
        """Make all tables anew, empty; returns where they are, for people."""
        if self.is_own_file:
            OWN_FILE.parent.mkdir(exist_ok=True)
            for file in OWN_FILE.parent.glob(f"{OWN_FILE.name}*"):
                file.unlink()
        else:
            self._drop()
        boot.ddl(self._settings, self._declared, apply=True)
        with self._connected() as db:
            db.execute(CREATE)
            if self.is_own_file:
                db.execute(f"create view findings as select * from {FINDINGS}")
        return str(OWN_FILE) if self.is_own_file else self._describe()

    def fill(self, chosen: Sequence[File]) -> None:
        """Put one row per file into the queue, and forget what was found before."""
        with self._connected() as db:
            db.execute(f"delete from {FINDINGS}")
            files.insert_many(db, ({"payload": {"path": each.path}, "partition_key": each.package} for each in chosen))

    def runs(self) -> list[Run]:
        """Read when each row ran."""
        with self._connected() as db:
            found = db.execute(f"select package, path, id, attempt, began, ended, cpu from {FINDINGS}").fetchall()
        return [Run(*row) for row in found]

    def largest(self) -> tuple[str, int]:
        """Read the path and the lines of the file with the most lines."""
        with self._connected() as db:
            path, lines = db.execute(
                f"select path, line_count from {FINDINGS} order by line_count desc, path limit 1"
            ).fetchone()
        return path, lines

    def way_to_read(self) -> str:
        """Write the command that shows all findings."""
        if self.is_own_file:
            return f"sqlite3 {OWN_FILE} 'select * from findings'"
        return f"select * from {FINDINGS}"

    def _drop(self) -> None:
        with self._connected() as db:
            for table in (files.table, f"{files.table}_dead", FINDINGS):
                db.execute(f"drop table if exists {table}")

    def _describe(self) -> str:
        connection = self._database.connect("shardrun demo")
        self._database.close(connection)
        return self._database.describe()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self._database.connect_child("shardrun demo")
        try:
            with self._database.transaction(connection):
                yield connection
        finally:
            self._database.close(connection)
