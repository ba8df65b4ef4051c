"""Run a queue's own SELECT (`fetch=`) over the ids of a claim, on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from shardrun import fetching
from shardrun.db import fetched
from shardrun.db.sqlite.catalogue import kind_of
from shardrun.db.sqlite.driver import name_error, naming_errors
from shardrun.db.sqlite.lists import Sized
from shardrun.db.sqlite.sql import quote
from shardrun.db.statement import Statement
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed

VIEW = '"shardrun looks at fetch="'
"""A temporary view that lives while the SELECT is looked at: it tells what its columns were declared as."""


class Fetch:
    """The SELECT over a list of ids, around the user's own; JSON columns come decoded, as in row mode."""

    def __init__(self, layout: Layout, text: str, kinds: dict[str, str]) -> None:
        self._names = list(kinds)
        self._json = [place for place, kind in enumerate(kinds.values(), 1) if kind == "json"]
        key = quote(layout.roles["id"].name)
        columns = ",\n       ".join(f"f.{quote(name)}" for name in kinds)

        def build(_: Layout, length: int) -> Statement:
            places = ", ".join(f"?{number}" for number in range(1, length + 1))
            condition = "" if fetching.names_ids(text) else f"\n where f.{key} in ({places})"
            inner = fetching.expand(text, places)
            return Statement(
                f"select f.{key},\n       {columns}\n  from (\n{inner}\n) as f{condition}", (f"id x {length}",)
            )

        self.sized = Sized(layout, build)

    def bodies(self, connection: sqlite3.Connection, ids: Sequence[Any]) -> dict[Any, Any]:
        """Fetch the bodies of rows that were just claimed, inside the claim's transaction."""

        def run(some: Sequence[Any]) -> list[list[Any]]:
            try:
                pieces = [connection.execute(*piece).fetchall() for piece in self.sized.pieces(some)]
            except sqlite3.Error as error:
                raise name_error(error, connection) from error
            return [self._row(row) for rows in pieces for row in rows]

        return fetched.bodies(ids, self._names, run) if ids else {}

    def _row(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place in self._json:
            values[place] = fetched.parsed(values[place])
        return values


def build(connection: sqlite3.Connection, layout: Layout, text: str, where: str) -> Fetch:
    """Ask SQLite what the SELECT returns; raises `DeclarationProblem` where that does not do."""
    inner = f"select * from (\n{fetching.expand(text, 'null')}\n)"
    try:
        with naming_errors(connection), closing(connection.cursor()) as cursor:
            cursor.execute(f"create temp view {VIEW} as {inner}")
            try:
                rows = cursor.execute(f"pragma temp.table_xinfo({VIEW})").fetchall()
            finally:
                cursor.execute(f"drop view temp.{VIEW}")
    except StatementFailed as error:
        raise fetched.refused(where, error) from error
    types = {str(row[1]): str(row[2]) for row in rows}
    key = layout.roles["id"]
    fetched.check(where, key.name, [_once_named(name, types) for name in types])
    if kind_of(types[key.name]) != key.kind:
        raise fetched.other_type(where, key.name, types[key.name] or "an expression", key.type)
    return Fetch(layout, text, {name: kind_of(kind) for name, kind in types.items()})


def _once_named(name: str, others: dict[str, str]) -> str:
    """Undo what SQLite makes of the second column of one name: `id` and `id:1`."""
    first, colon, number = name.rpartition(":")
    return first if colon and number.isdigit() and first in others else name
