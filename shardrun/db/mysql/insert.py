"""Write users' rows on MySQL and MariaDB: on PyMySQL's or mysqlclient's connection, whatever its time zone and cursor class.

Times are UTC in DATETIME columns. A TIMESTAMP column is written in the session's own zone, from which the server turns it
into UTC. MySQL has no RETURNING: the id is the one that was given, or the one that AUTO_INCREMENT chose.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from datetime import UTC
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from shardrun.db.insert import Given
from shardrun.db.mysql.drivers import plain_cursor
from shardrun.errors import ShardrunError
from shardrun.queue import Queue, split_name

COLUMNS = """\
select column_name, data_type, extra like '%%auto_increment%%'
  from information_schema.columns
 where table_schema = coalesce(%s, database()) and table_name = %s"""

BINARY = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
"""Types that hold bytes; all others take text, and refuse bytes or read them in another character set."""


class Kind(NamedTuple):
    """A column's type, as information_schema names it, and whether the server counts it up."""

    type: str
    counts_up: bool


_kinds: WeakKeyDictionary[Any, dict[str, dict[str, Kind]]] = WeakKeyDictionary()
"""The columns of tables, by connection and table as written: asked for once by each connection."""


def insert(queue: Queue[Any], connection: Any, row: Sequence[Given]) -> Any:
    """Write one row and return its id."""
    ours = _connection(connection)
    kinds = _columns(ours, queue.table)
    given = next((one.value for one in row if one.column == queue.id), None)
    returns = given is None and "MariaDB" in ours.get_server_info()
    if given is None and not returns and not kinds.get(queue.id, Kind("", True)).counts_up:
        raise ShardrunError(
            f"queue {queue.name}: MySQL does not tell an id that a default makes. Give it: insert(id=...)."
        )
    text = statement(queue, row, kinds) + (f"\nreturning {quote(queue.id)}" if returns else "")
    with plain_cursor(ours) as cursor:
        cursor.execute(text, [_value(one, kinds) for one in row])
        found = cursor.fetchone() if returns else None
        return found[0] if found else (cursor.lastrowid if given is None else given)


def insert_many(queue: Queue[Any], connection: Any, rows: Sequence[Sequence[Given]]) -> None:
    """Write rows of the same columns, in their order."""
    ours = _connection(connection)
    kinds = _columns(ours, queue.table)
    with plain_cursor(ours) as cursor:
        cursor.executemany(statement(queue, rows[0], kinds), [[_value(one, kinds) for one in row] for row in rows])


def statement(queue: Queue[Any], row: Sequence[Given], kinds: dict[str, Kind]) -> str:
    """Write the INSERT for a row's columns."""
    table = ".".join(quote(part) for part in split_name(queue.table))
    columns = ", ".join(quote(one.column) for one in row)
    return f"insert into {table} ({columns})\nvalues ({', '.join(_place(one, kinds) for one in row)})"


def quote(name: str) -> str:
    """Quote a name, and double the percent signs that the driver would take for placeholders."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def _connection(given: Any) -> Any:
    return given if hasattr(given, "thread_id") else given.connection  # a cursor's


def _columns(connection: Any, table: str) -> dict[str, Kind]:
    known = _kinds.setdefault(connection, {})
    if not known.get(table):
        *schema, name = split_name(table)
        with plain_cursor(connection) as cursor:
            cursor.execute(COLUMNS, (schema[-1] if schema else None, name))
            known[table] = {column: Kind(kind.lower(), bool(counts)) for column, kind, counts in cursor.fetchall()}
    return known[table]


def _place(one: Given, kinds: dict[str, Kind]) -> str:
    """Write a value's place; times by the server's clock, in UTC or in the session's zone as the column wants them."""
    in_zone = _type(one, kinds) == "timestamp"
    if one.how == "delay":
        return f"{'now' if in_zone else 'utc_timestamp'}(6) + interval %s microsecond"
    if one.how == "moment" and in_zone:
        return "convert_tz(%s, '+00:00', @@session.time_zone)"
    return "%s"


def _value(one: Given, kinds: dict[str, Kind]) -> Any:
    value, is_binary = one.value, _type(one, kinds) in BINARY
    if one.how == "delay":
        return math.ceil(value * 1_000_000)
    if one.how == "moment":
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    if one.how == "document":
        if is_binary:
            return value.encode() if isinstance(value, str) else value
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(value, uuid.UUID):
        return value.bytes if is_binary else str(value)
    return value


def _type(one: Given, kinds: dict[str, Kind]) -> str:
    return kinds.get(one.column, Kind("", False)).type
