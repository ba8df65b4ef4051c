"""Write users' rows on SQLite, on a sqlite3 connection of theirs, whatever its row factory."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from shardrun.db.insert import Given
from shardrun.db.sqlite.sql import FORMAT, quote
from shardrun.queue import Queue, split_name


def insert(queue: Queue[Any], connection: Any, row: Sequence[Given]) -> Any:
    """Write one row and return its id."""
    cursor = _cursor(connection)
    found = cursor.execute(f"{_text(queue, row)}\nreturning {quote(queue.id)}", [_value(one) for one in row]).fetchall()
    cursor.close()
    return found[0][0] if found else None


def insert_many(queue: Queue[Any], connection: Any, rows: Sequence[Sequence[Given]]) -> None:
    """Write rows of the same columns, in their order."""
    cursor = _cursor(connection)
    cursor.executemany(_text(queue, rows[0]), [[_value(one) for one in row] for row in rows])
    cursor.close()


def _cursor(given: Any) -> sqlite3.Cursor:
    connection: sqlite3.Connection = given if isinstance(given, sqlite3.Connection) else given.connection
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _text(queue: Queue[Any], row: Sequence[Given]) -> str:
    table = ".".join(quote(part) for part in split_name(queue.table))
    if not row:
        return f"insert into {table} default values"
    columns = ", ".join(quote(one.column) for one in row)
    return f"insert into {table} ({columns})\nvalues ({', '.join(_place(one) for one in row)})"


def _place(one: Given) -> str:
    """Write a value's place; delays by SQLite's own clock."""
    return f"strftime({FORMAT}, 'now', printf('%+.3f seconds', ?))" if one.how == "delay" else "?"


def _value(one: Given) -> Any:
    if one.how == "moment":
        return one.value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{one.value.microsecond // 1000:03}"
    return str(one.value) if isinstance(one.value, uuid.UUID) else one.value
