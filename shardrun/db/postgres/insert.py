"""Write users' rows on PostgreSQL, on a psycopg connection of theirs, whatever its time zone and row factory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row

from shardrun.db.insert import Given
from shardrun.db.postgres.parts import quote
from shardrun.queue import Queue, split_name

Connection = psycopg.Connection[Any]

KINDS = """\
select a.attname, coalesce(b.typname, t.typname)
  from pg_attribute a
  join pg_type t on t.oid = a.atttypid
  left join pg_type b on b.oid = t.typbasetype
 where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped"""

_kinds: WeakKeyDictionary[Connection, dict[str, dict[str, str]]] = WeakKeyDictionary()
"""The types of tables' columns, by connection and table as written: asked for once by each connection."""


def insert(queue: Queue[Any], connection: Any, row: Sequence[Given]) -> Any:
    """Write one row and return its id."""
    ours = _connection(connection)
    kinds = _types(ours, queue.table)
    text = f"{_text(queue, row, kinds)}\nreturning {quote(queue.id)}"
    with ours.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(text, [_value(one, kinds) for one in row]).fetchone()
    return None if found is None else found[0]


def insert_many(queue: Queue[Any], connection: Any, rows: Sequence[Sequence[Given]]) -> None:
    """Write rows of the same columns, in their order."""
    ours = _connection(connection)
    kinds = _types(ours, queue.table)
    with ours.cursor(row_factory=tuple_row) as cursor:
        cursor.executemany(_text(queue, rows[0], kinds), [[_value(one, kinds) for one in row] for row in rows])


def notify(connection: Any, channel: str, group: str) -> None:
    """Tell whoever listens, once the caller's transaction commits."""
    with _connection(connection).cursor(row_factory=tuple_row) as cursor:
        cursor.execute("select pg_notify(%s, %s)", (channel, group))


def _connection(given: Any) -> Connection:
    return given if isinstance(given, psycopg.Connection) else given.connection


def _types(connection: Connection, table: str) -> dict[str, str]:
    known = _kinds.setdefault(connection, {})
    if not known.get(table):
        name = ".".join('"' + part.replace('"', '""') + '"' for part in split_name(table))
        with connection.cursor(row_factory=tuple_row) as cursor:
            known[table] = dict(cursor.execute(KINDS, (name,)).fetchall())
    return known[table]


def _text(queue: Queue[Any], row: Sequence[Given], kinds: dict[str, str]) -> str:
    table = ".".join(quote(part) for part in split_name(queue.table))
    if not row:
        return f"insert into {table} default values"
    columns = ", ".join(quote(one.column) for one in row)
    return f"insert into {table} ({columns})\nvalues ({', '.join(_place(one, kinds) for one in row)})"


def _place(one: Given, kinds: dict[str, str]) -> str:
    """Write a value's place; times by the server's clock, in UTC where the column has no zone."""
    utc = " at time zone 'utc'" if kinds.get(one.column) == "timestamp" else ""
    if one.how == "delay":
        return f"(clock_timestamp(){utc}) + make_interval(secs => %s::float8)"
    return f"(%s::timestamptz{utc})" if one.how == "moment" else "%s"


def _value(one: Given, kinds: dict[str, str]) -> Any:
    if one.how != "document":
        return one.value
    if kinds.get(one.column) == "bytea":
        return one.value.encode() if isinstance(one.value, str) else one.value
    return one.value.decode() if isinstance(one.value, bytes) else one.value
