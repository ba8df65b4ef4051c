"""Run a queue's own SELECT (`fetch=`) over the ids of a claim, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from shardrun import fetching
from shardrun.db import fetched
from shardrun.db.mysql import catalogue, lists
from shardrun.db.mysql.driver import Connection, name_error, naming_errors
from shardrun.db.mysql.parts import identity, quote
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout, Table
from shardrun.errors import StatementFailed

CODES = {
    **dict.fromkeys((1, 2, 3, 8, 9, 13), "int"),
    **dict.fromkeys((0, 246), "numeric"),
    **dict.fromkeys((4, 5), "float"),
    7: "timestamptz",
    **dict.fromkeys((10, 14), "date"),
    11: "time",
    12: "timestamp",
    245: "json",
    **dict.fromkeys((15, 249, 250, 251, 252, 253, 254), "text"),
}
"""Kinds by the protocol's numbers of types; bytes are text in the character set BYTES."""

BYTES = 63

ALIKE = {"numeric": "int", "float": "int", "uuid": "text", "enum": "text", "timestamptz": "timestamp"}
"""Kinds that can be equal to others of another name."""


class Fetch:
    """The SELECT over a list of ids, around the user's own; JSON columns come decoded, as in row mode."""

    def __init__(self, layout: Layout, text: str, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._key = layout.roles["id"]
        self._text = text

    @property
    def statement(self) -> Statement:
        """Give the SELECT over one id, for the server to look at."""
        return self._statement(1)

    def bodies(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, Any]:
        """Fetch the bodies of rows that were just claimed, inside the claim's transaction, which no SELECT can undo."""

        def run(some: Sequence[Any]) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = []
            try:
                for piece in lists.pieces(some):
                    values = {f"id{number}": id for number, id in enumerate(piece)}
                    rows += connection.execute(self._statement(len(piece)).text, values).fetchall()
            except connection.Error as error:
                raise name_error(error, connection) from error
            return [(row[0], *lists.columns_of(self._kinds, row[1:]).values()) for row in rows]

        return fetched.bodies(ids, list(self._kinds), run) if ids else {}

    def _statement(self, count: int) -> Statement:
        names = [f"id{number}" for number in range(count)]
        places = ", ".join(f"%({name})s" for name in names)
        key = f"f.{quote(self._key.name)}"
        chosen = [identity(key, self._key), *(f"f.{quote(name)}" for name in self._kinds)]
        condition = "" if fetching.names_ids(self._text) else f"\n where {key} in ({places})"
        lines = ",\n       ".join(chosen)
        inner = fetching.expand(self._text.replace("%", "%%"), places)
        return Statement(f"select {lines}\n  from (\n{inner}\n) as f{condition}", tuple(names))


def build(connection: Connection, layout: Layout, text: str, where: str) -> Fetch:
    """Ask the server what the SELECT returns; raises `DeclarationProblem` where that does not do."""
    inner = fetching.expand(text, "null")
    key = layout.roles["id"]
    try:
        with naming_errors(connection):
            connection.execute(f"select exists (\n{inner}\n)")  # nothing but a SELECT can stand there
            connection.execute("set session sql_select_limit = 0")  # for the text itself tells where columns come from
            try:
                cursor = connection.execute(inner)
            finally:
                connection.execute("set session sql_select_limit = default")
            columns = _described(connection, cursor, layout)
            fetched.check(where, key.name, [column.name for column in columns])
            connection.execute(f"select 1 from (\n{inner}\n) as f limit 0")
    except StatementFailed as error:
        raise fetched.refused(where, error) from error
    own = next(column for column in columns if column.name == key.name)
    if ALIKE.get(own.kind, own.kind) != ALIKE.get(key.kind, key.kind):
        raise fetched.other_type(where, key.name, own.type, key.type)
    return Fetch(layout, text, {column.name: column.kind for column in columns})


def _described(connection: Connection, cursor: Any, layout: Layout) -> list[Column]:
    """Name the columns of a result: as their table has them, or else as the protocol tells.

    MariaDB's JSON is text to the protocol. What comes through a WITH or a subquery is JSON where the queue's own column of
    that name is; so is, with mysqlclient, which does not tell where columns come from, all of it.
    """
    read: Callable[[str, str], Table | None] = cache(lambda schema, table: catalogue.read(connection, (schema, table)))
    fields = getattr(getattr(cursor, "_result", None), "fields", None)  # PyMySQL keeps where columns come from
    if fields is None:
        return [_typed(name, code, None, layout) for name, code, *_ in cursor.description or ()]
    found = []
    for field in fields:
        table = read(field.db, field.org_table) if field.org_table and field.db else None
        origin = table.columns.get(field.org_name) if table else None
        typed = _typed(field.name, field.type_code, field.charsetnr, layout)
        found.append(Column(field.name, origin.kind, origin.type) if origin else typed)
    return found


def _typed(name: str, code: int, charset: int | None, layout: Layout) -> Column:
    kind = CODES.get(code, "other")
    if kind == "text" and charset == BYTES:
        kind = "binary"
    same = layout.table.columns.get(name)
    if kind == "text" and same is not None and (same.kind == "json" or (charset is None and same.kind == "binary")):
        kind = same.kind
    return Column(name=name, kind=kind, type=kind)
