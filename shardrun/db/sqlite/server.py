"""Speak to a SQLite file: connections, and whether a queue's table fits."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from shardrun.db import check, forms, needed
from shardrun.db.fitting import Fitting
from shardrun.db.operate import Blocked, Counts
from shardrun.db.sqlite import catalogue, ddl, driver, fetch, operate, taking
from shardrun.db.sqlite.locks import Keys, KeyStore, only_replica
from shardrun.db.sqlite.offers import KeyOfferStore
from shardrun.db.sqlite.store import SqliteStore
from shardrun.db.sqlite.strands import SqliteStrandStore
from shardrun.db.sqlite.taking_offered import KeyTaking
from shardrun.db.store import Store
from shardrun.db.table import Column, Layout, Table, lay
from shardrun.errors import DatabaseUnreachable, Unsupported, UsageProblem
from shardrun.queue import Form, Subscription

OLDEST = (3, 35, 0)

DEFAULT_SOURCE = "default"
"""What `source` is where no database was named at all."""


class Sqlite(Fitting):
    """One SQLite file, as named by what follows `sqlite://` in a DSN: `/relative.db` or `//absolute.db`."""

    one_writer = True
    leases_in_turn = True
    column_kind = Column
    listening = None

    def __init__(self, rest: str, source: str | None = None, create: bool = False) -> None:
        path, _, query = rest.partition("?")
        if not path.startswith("/") or path in ("/", "/:memory:"):
            raise UsageProblem(
                f"sqlite://{path} names no file. Write sqlite:///file.db, or sqlite:////absolute/file.db "
                f"(a database in memory is seen by one process only)."
            )
        self._path = os.path.abspath(os.fsdecode(unquote_to_bytes(os.fsencode(path[1:]))))
        self._absolute = f"sqlite:///{quote(os.fsencode(self._path))}{f'?{query}' if query else ''}"
        self._settings = dict(parse_qsl(query))
        self._source = source
        self._create = create
        self._keys = Keys()

    @property
    def dsn(self) -> str:
        """Give the DSN with the file's absolute path."""
        return self._absolute

    def describe(self) -> str:
        """Name the database for people: `SQLite 3.40.1 at /srv/app/shardrun.db`."""
        return f"SQLite {sqlite3.sqlite_version} at {self._path}"

    def connect(self, part: str) -> sqlite3.Connection:  # noqa: ARG002 - a file has no list of sessions
        """Open the coordinator's own connection: no implicit transactions. Raises `DatabaseUnreachable`."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise Unsupported(f"SQLite {sqlite3.sqlite_version} is too old: shardrun needs SQLite 3.35 or newer.")
        is_new = not os.path.exists(self._path)
        connection = self._open(None)
        connection.text_factory = driver.text_or_bytes
        with driver.naming_errors(connection):
            if is_new:
                driver.write_ahead(connection)
            # In a write-ahead log this loses no consistency, only the last commits at a power cut: rows then run again.
            if connection.execute("pragma journal_mode").fetchone()[0] == "wal":
                connection.execute("pragma synchronous = normal")
        return connection

    def connect_child(self, part: str) -> sqlite3.Connection:  # noqa: ARG002
        """Open a connection to lend to handlers: a transaction begins at the first write, and takes the write lock.

        So a handler that computes before it writes keeps no one waiting, and a read before the write can never be stale
        enough to refuse it.
        """
        return self._open("IMMEDIATE", taking.Lent)

    def _open(self, isolation: str | None, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        if not self._create and not os.path.exists(self._path):
            raise DatabaseUnreachable(self._missing())
        said = f" (from {self._source})" if self._source else ""
        if self._source == DEFAULT_SOURCE:
            said = " (the default, since --dsn, SHARDRUN_DSN, DATABASE_URL are unset)"
        try:
            connection = driver.connect(self._path, "rwc" if self._create else "rw", self._settings, isolation, kind)
        except (sqlite3.Error, ValueError) as error:
            raise DatabaseUnreachable(f"the SQLite file {self._path}{said} could not be opened: {error}.") from None
        try:
            connection.execute("select 1 from sqlite_master limit 1").fetchall()
            if self._settings.get("foreign_keys", "").lower() in ("1", "on", "true", "yes"):
                connection.execute("pragma foreign_keys = on")
        except sqlite3.Error as error:
            connection.close()
            raise DatabaseUnreachable(f"the SQLite file {self._path}{said} could not be read: {error}.") from None
        return connection

    def _missing(self) -> str:
        if self._source == DEFAULT_SOURCE:
            return (
                f"no database was named (--dsn, SHARDRUN_DSN, DATABASE_URL are unset) and the default, {self._path}, "
                f"does not exist. Set one, or create it: shardrun ddl handlers.py --apply"
            )
        said = f" (from {self._source})" if self._source else ""
        return f"the SQLite file {self._path}{said} does not exist. To create it: shardrun ddl handlers.py --apply"

    def is_usable(self, connection: sqlite3.Connection) -> bool:
        """Tell whether a connection still works; a transaction left open is rolled back."""
        try:
            connection.rollback()
            connection.execute("select 1").fetchall()
        except sqlite3.Error:
            return False
        return True

    def is_alive(self, connection: sqlite3.Connection) -> bool:  # noqa: ARG002
        """Say yes: no connection holds a row."""
        return True

    def descriptor(self, connection: sqlite3.Connection) -> None:  # noqa: ARG002
        """Say that there is no socket."""
        return None

    def only_replica(self, subscription: Subscription) -> AbstractContextManager[None]:
        """Let one replica serve the advisory lock form, whose locks are its own."""
        if subscription.queue.form is not Form.ADVISORY:
            return nullcontext()
        return only_replica(self._path, check.where(subscription.queue))

    def reset(self, connection: sqlite3.Connection) -> bool:
        """Roll back and put the driver's settings back."""
        try:
            connection.rollback()
            connection.isolation_level = "IMMEDIATE"
            connection.row_factory = None
            connection.text_factory = str
        except sqlite3.Error:
            return False
        return True

    def naming_errors(self, connection: sqlite3.Connection) -> AbstractContextManager[None]:
        """Turn the driver's errors that the block meets into shardrun's."""
        return driver.naming_errors(connection)

    def session(self, connection: sqlite3.Connection) -> str | None:  # noqa: ARG002
        """Say that there is no server."""
        return None

    def end_sessions(self, connection: sqlite3.Connection, sessions: Sequence[str], part: str) -> None:
        """Do nothing: a dead process's transactions died with it."""

    def close(self, connection: sqlite3.Connection) -> None:
        """Close quietly, also when it is broken."""
        with suppress(sqlite3.Error):
            connection.close()

    def store(self, connection: sqlite3.Connection, subscription: Subscription) -> Store:
        """Build a subscription's statements; raises `Problems` with all that does not fit."""
        queue, where = subscription.queue, check.where(subscription.queue)
        layout = self._layout(connection, subscription, forms.refusals(forms.On.SQLITE, subscription))
        own = fetch.build(connection, layout, queue.fetch, where) if isinstance(queue.fetch, str) else None
        if queue.form is Form.ADVISORY:
            store = KeyOfferStore if subscription.transactional else KeyStore
            return store(layout, where, self._keys, own, queue.name)
        leased = SqliteStore if layout.strand is None else SqliteStrandStore
        return leased(layout, where, own, queue.name)

    def taking(self, layout: Layout) -> taking.SqliteTaking:
        """Build the statements of a subscription's deliveries in transactions."""
        return KeyTaking(layout) if layout.form is Form.ADVISORY else taking.SqliteTaking(layout)

    def warnings(self, connection: sqlite3.Connection, subscription: Subscription) -> list[str]:
        """List what would work badly: a claim without an index."""
        found, table, _ = self._fit(connection, subscription)
        if found or table is None:
            return []
        layout = lay(table, subscription)
        if not check.missing_index(layout):
            return []
        return [f"{subscription.queue.name}: no index serves the claim. {ddl.index_of(layout)}"]

    def _catalogue(self, connection: sqlite3.Connection) -> check.Catalogue:
        return check.Catalogue(
            place=f"in {self._path}",
            names=lambda: catalogue.names(connection),
            time_kinds=("text", "timestamp"),
            typed=False,
        )

    def _read(self, connection: sqlite3.Connection, parts: Sequence[str]) -> Table | None:
        return catalogue.read(connection, parts)

    def _writing(self, connection: sqlite3.Connection | None) -> needed.Writing:  # noqa: ARG002
        return ddl.WRITING

    def _count(self, connection: sqlite3.Connection, layout: Layout) -> Counts:
        return operate.counts(connection, layout)

    def _blocked(self, connection: sqlite3.Connection, layout: Layout) -> Blocked:
        return operate.blocked(connection, layout)

    def _letters(self, layout: Layout) -> operate.SqliteDeadLetters:
        return operate.SqliteDeadLetters(layout)

    def sessions(self, connection: sqlite3.Connection) -> None:  # noqa: ARG002
        """Say that there are none."""
        return None
