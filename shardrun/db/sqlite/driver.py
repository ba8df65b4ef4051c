"""Speak sqlite3: open files, hold the write lock for a transaction, give its errors their names here."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlencode

from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed

BUSY_SECONDS = 10.0
"""How long a statement waits for the file's one writer. Larger: a stuck writer is noticed later; smaller: a slow one
makes work be tried again."""

SWITCH_PAUSE = 0.01
"""Seconds between tries to give a new file a write-ahead log. Larger: who opens it with others waits for longer."""

CACHED_STATEMENTS = 512
"""Compiled statements that a connection keeps; smaller would compile those of many handlers again and again."""

ARGUMENTS = {"timeout": float, "cached_statements": int, "detect_types": int}
"""What a DSN may say to `sqlite3.connect` itself; the rest of it goes to SQLite, in the file's URI."""

PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM)
BROKEN = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)


def connect(
    path: str,
    mode: str,
    settings: Mapping[str, str],
    isolation: str | None,
    kind: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Open a file; `mode` is rw, or rwc to create it. Other threads may use the connection, one at a time."""
    given = {name: ARGUMENTS[name](value) for name, value in settings.items() if name in ARGUMENTS}
    if isolation is None:  # the coordinator's: tokens and ids are the values as they are stored
        given.pop("detect_types", None)
    asked = {"mode": mode} | {name: value for name, value in settings.items() if name not in ARGUMENTS}
    arguments: dict[str, Any] = {"timeout": BUSY_SECONDS, "cached_statements": CACHED_STATEMENTS, **given}
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{urlencode(asked)}",
        uri=True,
        isolation_level=isolation,  # type: ignore[arg-type]
        check_same_thread=False,
        factory=kind,
        **arguments,
    )


def write_ahead(connection: sqlite3.Connection) -> None:
    """Give a new file a write-ahead log; whoever else opens it just now is waited for: SQLite itself does not."""
    until = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > until:
                raise
        sleep(SWITCH_PAUSE)


class NotText(bytes):
    """What SQLite calls text and is not UTF-8: as its bytes, so that only what reads it as text fails."""

    def __eq__(self, other: object) -> bool:
        """Tell it from a blob of the same bytes, as SQLite does."""
        return isinstance(other, NotText) and bytes(self) == bytes(other)

    __hash__ = bytes.__hash__


def text_or_bytes(data: bytes) -> str | NotText:
    """Decode a text for the coordinator, where one that is not UTF-8 must not stop the rows beside it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return NotText(data)


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's write lock; commit at the end, or undo all when anything raises."""
    with naming_errors(connection):
        connection.execute("begin immediate")
        try:
            yield
            connection.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            raise


@contextmanager
def naming_errors(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn the driver's errors into shardrun's."""
    try:
        yield
    except sqlite3.Error as error:
        raise name_error(error, connection) from error


def name_error(error: sqlite3.Error, connection: sqlite3.Connection) -> ShardrunError:
    """Say what an error means for the row: in doubt, try again, or never."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in PASSING:
        return Conflict(f"SQLite refused for now: {error}")
    if code in BROKEN or not _is_open(connection):
        return ConnectionLost(f"the connection to SQLite was lost: {error}")
    return StatementFailed(f"SQLite refused: {error}")


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018 - it raises where the connection is closed
    except sqlite3.ProgrammingError:
        return False
    return True
