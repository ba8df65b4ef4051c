"""Write rows for users, on their own connections and inside their own transactions: what `Queue.insert` calls."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from shardrun.db import inserted
from shardrun.db.caller import unwrapped
from shardrun.errors import NotInThisVersion, ShardrunError
from shardrun.queue import Queue

ROLES = ("payload", "partition_key", "group", "priority", "retry_after", "headers", "id")
"""Keywords of `Queue.insert` that are roles; any other is a column."""

DIALECTS = {
    "psycopg": "shardrun.db.postgres.insert",
    "sqlite3": "shardrun.db.sqlite.insert",
    "pymysql": "shardrun.db.mysql.insert",
    "MySQLdb": "shardrun.db.mysql.insert",
}

CHUNK = 1000
"""Rows that `insert_many` holds at a time. Larger: fewer calls of the driver, more memory."""

CHANNEL_BYTES = 63
"""What PostgreSQL takes for a channel's name."""


class Given(NamedTuple):
    """A value for a column: `how` is plain, document (JSON's text, or str or bytes as they are), delay or moment."""

    column: str
    how: str
    value: Any


class Inserter(Protocol):
    """What a dialect's `insert` module has."""

    def insert(self, queue: Queue[Any], connection: Any, row: Sequence[Given]) -> Any: ...

    def insert_many(self, queue: Queue[Any], connection: Any, rows: Sequence[Sequence[Given]]) -> None: ...

    def notify(self, connection: Any, channel: str, group: str) -> None: ...


class Inserts:
    """Insert on what `caller.unwrapped` takes; raises `ShardrunError` for anything else, and the driver's own errors."""

    def insert(self, queue: Queue[Any], connection: Any, row: Mapping[str, Any], notify: bool) -> Any:
        """Write one row and return its id; the driver's errors are the caller's."""
        dialect, connection = _dialect(connection)
        if notify:
            _refuse_notify(dialect)
        inserted.note(connection, queue, row)
        identity = dialect.insert(queue, connection, _given(queue, row))
        if notify:
            dialect.notify(connection, channel(queue.table), str(row.get("group") or ""))
        return identity

    def insert_many(self, queue: Queue[Any], connection: Any, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows in their order and return how many; rows of the same columns go together."""
        (dialect, connection), count = _dialect(connection), 0
        groups: dict[str, None] = {}
        for chunk in _chunks(rows):
            given = []
            for row in chunk:
                if row.get("notify"):
                    _refuse_notify(dialect)
                    groups[str(row.get("group") or "")] = None
                inserted.note(connection, queue, row)
                given.append(_given(queue, {name: value for name, value in row.items() if name != "notify"}))
            for _, alike in groupby(given, key=lambda one: [(part.column, part.how) for part in one]):
                dialect.insert_many(queue, connection, list(alike))
            count += len(chunk)
        for group in groups:
            dialect.notify(connection, channel(queue.table), group)
        return count


def channel(table: str) -> str:
    """Name the channel of a table: `shardrun:` and the table as the queue writes it; too long a name ends in a hash."""
    name = f"shardrun:{table}"
    if len(name.encode()) <= CHANNEL_BYTES:
        return name
    kept = name.encode()[: CHANNEL_BYTES - 9].decode(errors="ignore")
    return f"{kept}#{hashlib.sha256(table.encode()).hexdigest()[:8]}"


def _dialect(given: Any) -> tuple[Inserter, Any]:
    driver, connection = unwrapped(given)
    return cast(Inserter, import_module(DIALECTS[driver])), connection


def _refuse_notify(dialect: Inserter) -> None:
    if not hasattr(dialect, "notify"):
        raise NotInThisVersion("insert(notify=True)", "waking replicas on this database")


def _given(queue: Queue[Any], row: Mapping[str, Any]) -> list[Given]:
    """Turn keywords into values for columns; raises `ShardrunError` for a role that the queue does not have."""
    given = []
    for name, value in row.items():
        if name not in ROLES:
            given.append(Given(name, "plain", value))
        elif value is not None:
            given.append(_role(queue, name, value))
    return given


def _role(queue: Queue[Any], role: str, value: Any) -> Given:
    column = getattr(queue, role)
    if column is None:
        raise ShardrunError(
            f"queue {queue.name} has no {role} role, so insert({role}=...) has no column to write to. "
            f'Add {role}="<column>" to Queue(...), or leave it out.'
        )
    if role in ("payload", "headers"):
        return Given(column, "document", document(queue, role, value))
    if role != "retry_after":
        return Given(column, "plain", value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ShardrunError(
                f"queue {queue.name}: retry_after={value!r} has no time zone. Give an aware datetime, or seconds from now."
            )
        return Given(column, "moment", value)
    return Given(column, "delay", _seconds(queue, value))


def _seconds(queue: Queue[Any], value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise ShardrunError(
            f"queue {queue.name}: retry_after={value!r} is no delay. Give seconds, a timedelta or an aware datetime."
        )
    return float(seconds)


def document(queue: Queue[Any], role: str, value: Any) -> str | bytes:
    """Write a value as JSON's text; str and bytes are taken as they are."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    try:
        return msgspec.json.encode(value, enc_hook=_encoded).decode()
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return json.dumps(value, default=_encoded, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ShardrunError(f"queue {queue.name}: the {role} cannot be written as JSON: {error}") from None


def _encoded(value: Any) -> Any:
    """Give JSON's form of a value that msgspec or json do not know: pydantic models, dataclasses within odd values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _chunks(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    chunk: list[Mapping[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
