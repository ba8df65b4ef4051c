"""Speak psycopg: open connections, run prepared statements, give its errors their names here, spell lists of ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from typing import Any

import psycopg
from psycopg.adapt import Buffer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types import datetime as times
from psycopg.types import json, numeric

from shardrun.db.statement import Statement
from shardrun.db.table import Column
from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed

Connection = psycopg.Connection[Any]
Step = tuple[Statement, Mapping[str, Any]]

BEGIN: Step = (Statement("begin"), {})
COMMIT: Step = (Statement("commit"), {})

# Whatever the DSN does not say itself. Larger: a dead network is noticed later; smaller: a slow one is taken for dead.
CONNECT = {
    "connect_timeout": "10",  # seconds
    "keepalives_idle": "10",  # seconds
    "keepalives_interval": "5",  # seconds
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",  # milliseconds
}

# The plans of a queue's statements are made when the table may be empty, and kept while it fills: they must go by index.
# jit follows from that: a discouraged plan looks so dear that the server would compile it.
COORDINATOR = {
    "client_encoding": "UTF8",  # a database in SQL_ASCII would give bytes for every text
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
    "lock_timeout": "1s",  # larger: a row that someone keeps locked holds up its batch; smaller: slow commits do
}

SPELLING = ("TimeZone", "DateStyle", "IntervalStyle", "bytea_output", "extra_float_digits")
"""Settings by which a session spells values as text, the keys of locks among them."""

NO_LIMIT = {
    "idle_in_transaction_session_timeout": 90600,
    "idle_session_timeout": 140000,
    "transaction_timeout": 170000,
}
"""Limits, with the version that brought them, that would end a session which holds a row while its handler runs."""

KEPT_BY_POOLERS = ("client_encoding", "TimeZone", "DateStyle")
"""Settings that PgBouncer keeps for each client, on whichever session of the server it runs."""

PASSING = ("40", "53", "55006", "55P03")
"""SQLSTATEs, or classes of them, that a repeat may get past: conflicts, resources, objects in use, locks."""

BROKEN = ("08", "25006", "57P")
"""SQLSTATEs after which another connection is wanted: broken, on a standby, or ended by an administrator."""

NAME_BYTES = 63
"""What the server keeps of an application_name."""

logging.getLogger("psycopg").addHandler(logging.NullHandler())


def settings(dsn: str) -> dict[str, Any]:
    """Read a DSN into libpq's settings; raises psycopg.ProgrammingError, whose text may hold the password."""
    return conninfo_to_dict(dsn)


def connect(dsn: str, part: str, autocommit: bool, kind: type[Connection] = psycopg.Connection) -> Connection:
    """Open a connection under an application_name of ours."""
    given = settings(dsn)
    missing = {name: value for name, value in CONNECT.items() if name not in given}
    target = make_conninfo(dsn, application_name=application_name(part), **missing)
    return kind.connect(target, autocommit=autocommit)


def application_name(part: str) -> str:
    """Fit a part's name into what the server keeps; its end tells the parts of one replica apart."""
    name = part.encode("ascii", "replace").decode()
    return name if len(name) <= NAME_BYTES else f"{name[:38]}~{name[-24:]}"


def make_ours(connection: Connection) -> None:
    """Set the session up for the coordinator: UTC, plans by index, times beyond Python's as text.

    Behind a pooler the session is another client's in a moment, in any mode that the pooler may be switched to: only what
    poolers keep for each client is set, the rest in every transaction, and nothing is prepared.
    """
    settings = _settings(connection.info.server_version)
    if not _set(connection, settings, f"where pg_backend_pid() = {connection.info.backend_pid}"):
        _set(connection, {name: settings[name] for name in KEPT_BY_POOLERS})
        connection.prepare_threshold = None
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.prepared_max = 10_000  # statements; smaller would throw out those of a coordinator with many handlers
    for oid, loader in FORGIVING.items():
        connection.adapters.register_loader(oid, loader)


@cache
def _settings(version: int) -> Mapping[str, str]:
    return COORDINATOR | {name: "0" for name, since in NO_LIMIT.items() if version >= since}


def _set(connection: Connection, settings: Mapping[str, str], condition: str = "") -> bool:
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    calls = f"select set_config(name, value, false) from (values {values}) as settings (name, value) {condition}"
    return bool(connection.execute(calls).fetchall())


@cache
def _for_transaction(version: int) -> str:
    chosen = {name: value for name, value in _settings(version).items() if name != "client_encoding"}
    return "select " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in chosen.items())


def _set_for_transaction(connection: Connection, begin: Statement) -> None:
    if begin == BEGIN[0]:
        connection.execute("set transaction isolation level read committed")
    connection.execute(_for_transaction(connection.info.server_version))


def wait_for_locks(connection: Connection) -> None:
    """Wait for locks without an end from now on, as a session that is another's in a moment does anyway."""
    if not is_pooled(connection):
        connection.execute("set lock_timeout = 0")


def is_pooled(connection: Connection) -> bool:
    """Tell whether a connection, as it was opened, goes through a pooler: psycopg then prepares nothing, asked or not."""
    return connection.prepare_threshold is None


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run a block in a transaction under the coordinator's settings."""
    with connection.transaction():
        if is_pooled(connection):
            connection.execute(_for_transaction(connection.info.server_version))
        yield


def run(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> psycopg.Cursor[Any]:
    """Run one prepared statement in one round trip: in the transaction that is open, or one of its own."""
    if is_pooled(connection) and connection.info.transaction_status == TransactionStatus.IDLE:
        return run_together(connection, [BEGIN, (statement, values), COMMIT])[1]
    with naming_errors(connection):
        return connection.execute(statement.text, values, prepare=not statement.planned_anew)


def run_all(connection: Connection, steps: Sequence[Step]) -> list[psycopg.Cursor[Any]]:
    """Run prepared statements in one transaction and one round trip; all of them, or an error and none."""
    if len(steps) == 1:
        return [run(connection, *steps[0])]
    return run_together(connection, [BEGIN, *steps, COMMIT])[1:-1]


def run_together(connection: Connection, steps: Sequence[Step]) -> list[psycopg.Cursor[Any]]:
    """Run prepared statements in one round trip; after an error none of the following is run."""
    pooled = is_pooled(connection)
    failure: psycopg.Error | None = None
    cursors: list[psycopg.Cursor[Any]] = []
    with naming_errors(connection):
        try:
            with connection.pipeline() as pipeline:
                # An error is kept until the pipeline has ended: psycopg cannot leave one that it must also drain.
                try:
                    for statement, values in steps:
                        prepare = not statement.planned_anew
                        cursors.append(connection.execute(statement.text, values, prepare=prepare))
                        if pooled and statement.text.startswith("begin"):
                            _set_for_transaction(connection, statement)
                    pipeline.sync()
                except psycopg.Error as error:
                    failure = error
        except psycopg.Error as error:  # of what stood behind the statement that failed, where that was seen early
            failure = failure or error
        if failure is not None:
            raise failure
    return cursors


@contextmanager
def naming_errors(connection: Connection) -> Iterator[None]:
    """Turn the driver's errors into shardrun's, and leave no transaction open behind one."""
    try:
        yield
    except psycopg.Error as error:
        named = name_error(error, connection)
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            _roll_back(connection)
        raise named from error


def name_error(error: psycopg.Error, connection: Connection) -> ShardrunError:
    """Say what an error means for the row: in doubt, try again, or never."""
    state = error.sqlstate or ""
    text = first_line(error)
    if connection.closed or state.startswith(BROKEN):
        return ConnectionLost(f"the connection to PostgreSQL was lost: {text}")
    if state.startswith(PASSING) or state == "57014":
        return Conflict(f"PostgreSQL refused for now: {text}")
    if isinstance(error, psycopg.OperationalError) and not state:
        return ConnectionLost(f"the connection to PostgreSQL was lost: {text}")
    return StatementFailed(f"PostgreSQL refused: {text}")


def first_line(error: psycopg.Error) -> str:
    """Take the message's own line, without the statement that the server quotes after it."""
    return (error.diag.message_primary or str(error).strip() or type(error).__name__).splitlines()[0]


def _roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except psycopg.Error:
        connection.close()


def array_of(column: Column) -> Callable[[Iterable[Any]], str]:
    """Choose how values of a column are spelt as an array: text, which the driver passes on as it is."""
    if column.kind in ("int", "float", "numeric", "uuid", "bool"):
        return _plain_array
    return _binary_array if column.kind == "binary" else _quoted_array


def _plain_array(values: Iterable[Any]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _quoted_array(values: Iterable[Any]) -> str:
    quoted = (str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _binary_array(values: Iterable[bytes]) -> str:
    return "{" + ",".join(f'"\\\\x{bytes(value).hex()}"' for value in values) + "}"


class _ForgivingTimestamp(times.TimestampLoader):
    """Load a timestamp that Python cannot hold (infinity, before Christ) as its text, so that its row still arrives."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _ForgivingTimestamptz(times.TimestamptzLoader):
    """As above, with zone."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _ForgivingDate(times.DateLoader):
    """As above, for dates."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _ForgivingTime(times.TimeLoader):
    """As above, for 24:00."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _ForgivingJson(json.JsonLoader):
    """Load JSON that Python cannot parse (nested too deep, numbers too long) as its text."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except (ValueError, RecursionError):
            return bytes(data).decode(errors="replace")


class _SameFloat(numeric.FloatLoader):
    """Load NaN as one and the same object, so that an id is found again in sets and dicts, as PostgreSQL finds it."""

    def load(self, data: Buffer) -> float:
        value = super().load(data)
        return value if value == value else FLOAT_NAN


class _SameNumeric(numeric.NumericLoader):
    """As above, for numeric."""

    def load(self, data: Buffer) -> Decimal:
        value = super().load(data)
        return NUMERIC_NAN if value.is_nan() else value


FLOAT_NAN, NUMERIC_NAN = float("nan"), Decimal("NaN")

FORGIVING: dict[str, type[Any]] = {
    "timestamp": _ForgivingTimestamp,
    "timestamptz": _ForgivingTimestamptz,
    "date": _ForgivingDate,
    "time": _ForgivingTime,
    "json": _ForgivingJson,
    "jsonb": _ForgivingJson,
    "float4": _SameFloat,
    "float8": _SameFloat,
    "numeric": _SameNumeric,
}
