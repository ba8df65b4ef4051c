"""Speak PyMySQL, or mysqlclient in its place: open connections, run statements, give their errors their names here."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from shardrun.db.mysql.drivers import connection_class
from shardrun.db.mysql.dsn import Account, for_mysqldb, for_pymysql
from shardrun.db.statement import Statement
from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed

Connection = Any
"""A connection of the class that `connection_class` makes."""

Step = tuple[Statement, Mapping[str, Any]]

CONNECT_SECONDS = 10
"""How long a connection may take to open. Larger: a dead network is noticed later; smaller: a slow one is taken for
dead."""

READ_SECONDS = 60
"""How long an answer to one of the coordinator's statements may take, longer than its locks are waited for. Larger: a
server that hangs is noticed later; smaller: a long look at a large table is given up."""

WRITE_SECONDS = 20
"""How long the network may refuse bytes of a statement."""

SOCKET = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), 10),  # seconds
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), 5),  # seconds
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), 3),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", None), 20_000),  # milliseconds
)
"""What lets the system notice a dead network below any statement, also where no timeout is set."""

FOUND_ROWS, MULTI_STATEMENTS = 2, 65536
"""Flags of the protocol. FOUND_ROWS: an update's count is of the rows that its condition found, so that a settlement
which writes what is there already (a count of attempts) is effective, and not taken for lost. MULTI_STATEMENTS: the
statements of a transaction go in one round trip. Both are for the coordinator only: handlers have the driver's defaults."""

IN_TRANSACTION = 1
"""The flag of a server's status."""

MODES = (
    "STRICT_ALL_TABLES",  # nothing is cut or bent to fit
    "NO_ENGINE_SUBSTITUTION",
    "NO_AUTO_VALUE_ON_ZERO",  # a row whose id is 0 keeps it on its way to the dead letters and back
    "ALLOW_INVALID_DATES",  # and so do the odd dates that users' tables hold
)

COORDINATOR = {
    "time_zone": "'+00:00'",
    "innodb_lock_wait_timeout": "1",  # seconds; larger: a row that someone keeps locked holds up its batch
    "lock_wait_timeout": "5",  # seconds, for a table that is being altered
    "wait_timeout": "31536000",  # seconds, the most there is: a connection that holds a row is idle as long as its handler runs
    "sql_safe_updates": "0",
    "sql_select_limit": "default",
}

ON_MARIADB = {
    "idle_transaction_timeout": "0",  # none: a row's lock is held by a transaction in which nothing happens
    "idle_write_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
}

USUAL_ISOLATION = "read committed"
"""Where a queue asks for no other: what is read by an id, and locked, takes no gap beside its row."""

ISOLATION = f"set session transaction isolation level {USUAL_ISOLATION}, read write"

PASSING = frozenset(
    {
        1020,  # the row has changed since it was read
        1021,  # disk full
        1037,  # out of memory
        1038,  # out of memory for a sort
        1040,  # too many connections
        1041,  # out of resources
        1114,  # table full
        1203,  # too many connections of this user
        1205,  # lock wait timeout
        1206,  # too many locks
        1213,  # deadlock
        1226,  # a limit of this user
        1317,  # the statement was interrupted
        1412,  # the table was altered meanwhile
        1615,  # likewise
        1637,  # too many transactions
        1969,  # the statement took longer than it may
        3024,  # likewise
        3058,  # deadlock of user locks
        3101,  # a group's commit was refused
        3572,  # NOWAIT
    }
)
"""Errors that a repeat may get past: nothing was done."""

BROKEN = frozenset(
    {
        0,  # closed on this side
        1047,  # a cluster's node that is not ready
        1053,  # the server shuts down
        1079,
        1080,
        1152,
        1158,
        1159,
        1160,
        1161,
        1184,
        1792,
        1836,
        1927,  # killed
        2006,  # the server has gone away
        2013,  # lost during a statement
        2014,  # out of step
        2055,
        3169,  # killed
        4031,  # idle for too long
    }
)
"""Errors after which another connection is wanted: broken, ended by an administrator, or on a server that cannot write."""

TLS_ERROR = 2026

CLOSED = (0, 2006)
"""What PyMySQL and mysqlclient, without a word, say of a connection that was closed on this side."""

NAME_BYTES = 63
"""What is kept of a part's name, as on the other databases; these keep more."""


def connect(account: Account, part: str, ours: bool, kind: Any = object) -> Connection:
    """Open a connection: `ours` for the coordinator, else with the driver's defaults, to be lent to handlers."""
    made = connection_class(account.driver, kind)
    given = for_pymysql(account) if made.is_pymysql else for_mysqldb(account)
    given.setdefault("connect_timeout", CONNECT_SECONDS)
    if made.is_pymysql:
        given["program_name"] = part_name(part)
    if ours:
        given["client_flag"] = FOUND_ROWS | MULTI_STATEMENTS
        given["autocommit"] = True
        if made.is_pymysql:
            given.setdefault("read_timeout", READ_SECONDS)
            given.setdefault("write_timeout", WRITE_SECONDS)
        else:
            given["binary_prefix"] = True  # what is no text is not read as text
    connection = made(**given)
    if given.get("ssl_mode", "DISABLED") != "DISABLED":
        _refuse_plain(connection)
    connection.on_mariadb = "mariadb" in connection.get_server_info().lower()
    _watch(connection)
    return connection


def _refuse_plain(connection: Connection) -> None:
    """Close a connection that is not encrypted: MariaDB's library goes on without where the server has no TLS."""
    if not connection.execute("show session status like 'Ssl_cipher'").fetchall()[0][1]:
        connection.close()
        raise connection.OperationalError(TLS_ERROR, "SSL is required but the server doesn't support it")


def part_name(part: str) -> str:
    """Fit a part's name into what is kept of it; its end tells the parts of one replica apart."""
    name = part.encode("ascii", "replace").decode()
    return name if len(name) <= NAME_BYTES else f"{name[:38]}~{name[-24:]}"


def _watch(connection: Connection) -> None:
    """Have the system look after the connection's socket, where the driver shows it."""
    number = descriptor(connection)
    if number is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        if copy.family != socket.AF_UNIX:
            for level, option, value in SOCKET:
                if option is not None:
                    copy.setsockopt(level, option, value)


def descriptor(connection: Connection) -> int | None:
    """Name the connection's socket, where the driver shows it."""
    inner: Any = getattr(connection, "_sock", connection)
    try:
        return int(inner.fileno())
    except (AttributeError, OSError, connection.Error):
        return None


def make_ours(connection: Connection, on_mariadb: bool) -> None:
    """Set the session up for the coordinator: UTC, READ COMMITTED, strict, with short waits for locks."""
    modes = MODES if on_mariadb else (*MODES, "TIME_TRUNCATE_FRACTIONAL")  # as MariaDB does: no lease is rounded up
    values = {**COORDINATOR, **(ON_MARIADB if on_mariadb else {}), "sql_mode": f"'{','.join(modes)}'"}
    run_together(
        connection,
        [
            (Statement(ISOLATION), {}),
            (Statement("set " + ", ".join(f"session {name} = {value}" for name, value in values.items())), {}),
        ],
    )
    connection.on_mariadb = on_mariadb


def be_patient(connection: Connection) -> None:
    """Let this connection's next statements take as long as they need: they alter tables."""
    with naming_errors(connection):
        connection.execute("set session lock_wait_timeout = 31536000, session innodb_lock_wait_timeout = 3600")
    if hasattr(connection, "_read_timeout"):
        connection._read_timeout = None


class Answer(NamedTuple):
    """What one of several statements gave."""

    rows: Sequence[tuple[Any, ...]]
    rowcount: int  # rows that it found, changed or not
    description: Any

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        """Give its rows, as a cursor does."""
        return self.rows


BEGIN, COMMIT = Statement("start transaction"), Statement("commit")


def beginning(isolation: str | None) -> list[Step]:
    """Give the steps that begin a transaction, at the session's isolation or another."""
    level: list[Step] = [(Statement(f"set transaction isolation level {isolation}"), {})] if isolation else []
    return [*level, (BEGIN, {})]


def run(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> Any:
    """Run one statement: in a transaction of its own where none is open; one round trip. Returns its cursor."""
    with naming_errors(connection):
        return connection.execute(statement.text, dict(values))


def run_all(connection: Connection, steps: Sequence[Step]) -> list[Any]:
    """Run statements in one transaction and one round trip; all of them, or an error and none."""
    if len(steps) == 1:
        return [run(connection, *steps[0])]
    return run_together(connection, [(BEGIN, {}), *steps, (COMMIT, {})])[1:-1]


def run_together(connection: Connection, steps: Sequence[Step]) -> list[Any]:
    """Run statements in one round trip and in whatever transaction is open; an error stops them and rolls back."""
    with naming_errors(connection):
        cursor = connection.cursor()
        texts = [_spelt(connection, *step) for step in steps]
        cursor.execute((b";\n" if isinstance(texts[0], bytes) else ";\n").join(texts))
        answers = [_answer(cursor)]
        while cursor.nextset():
            answers.append(_answer(cursor))
        return answers


def _spelt(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> Any:
    """Write a statement with its values: in bytes for mysqlclient, since not all that an id may hold is text."""
    if connection.is_pymysql:
        return connection.cursor().mogrify(statement.text, dict(values))
    return statement.text.encode() % {name.encode(): connection.literal(value) for name, value in values.items()}


def _answer(cursor: Any) -> Answer:
    rows = cursor.fetchall() if cursor.description else ()
    return Answer(rows, cursor.rowcount, cursor.description)


@contextmanager
def writing(connection: Connection, isolation: str | None = None) -> Iterator[None]:
    """Hold a transaction open; commit at the end, or undo all when anything raises."""
    with undoing(connection):
        for statement, _ in beginning(isolation):
            connection.execute(statement.text)
        yield
        connection.commit()


@contextmanager
def undoing(connection: Connection) -> Iterator[None]:
    """Undo all that the block has not committed when anything raises; its first statements begin the transaction."""
    with naming_errors(connection):
        try:
            yield
        except BaseException:
            with suppress(connection.Error):
                connection.rollback()
            raise


def prepare(connection: Connection, text: str) -> None:
    """Have the server prepare a statement's text, with its parameters empty, and forget it again."""
    with naming_errors(connection):
        connection.execute("prepare shardrun_check from %s", (as_prepared(text),))
        connection.execute("deallocate prepare shardrun_check")


def as_prepared(text: str) -> str:
    """Write the driver's placeholders as the server's; a list (`in %(ids)s`) as one of one value."""
    text = re.sub(r"\bin %\(\w+\)s", "in (?)", text)
    return re.sub(r"%%|%\(\w+\)s|%s", lambda found: "%" if found[0] == "%%" else "?", text)


@contextmanager
def naming_errors(connection: Connection) -> Iterator[None]:
    """Turn the driver's errors into shardrun's, and leave no transaction open behind one."""
    try:
        yield
    except connection.Error as error:
        named = name_error(error, connection)
        if isinstance(named, ConnectionLost):
            close(connection)  # never used again: the session behind it, if there is one, rolls back
        else:
            _roll_back(connection)
        raise named from error


def name_error(error: BaseException, connection: Connection) -> ShardrunError:
    """Say what an error means for the row: in doubt, try again, or never."""
    code, server = code_of(error), "MariaDB" if connection.on_mariadb else "MySQL"
    text = first_line(error)
    if (
        code in BROKEN
        or (code == 1290 and "read-only" in text)
        or (code is None and type(error).__name__ in ("InterfaceError", "InternalError"))
    ):
        return ConnectionLost(f"the connection to {server} was lost: {text}")
    if code in PASSING:
        return Conflict(f"{server} refused for now: {text}")
    return StatementFailed(f"{server} refused: {text}")


def code_of(error: BaseException) -> int | None:
    """Find the number of an error; None where the driver itself complains."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def first_line(error: BaseException) -> str:
    """Take an error's own line, without its number."""
    said = error.args[1] if len(error.args) > 1 else (error.args[0] if error.args else "")
    return (str(said).strip() or ("it is closed" if code_of(error) in CLOSED else type(error).__name__)).splitlines()[0]


def _roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except connection.Error:
        close(connection)


def close(connection: Connection) -> None:
    """Close quietly, also when it is closed or broken."""
    with suppress(connection.Error):
        connection.close()


def in_transaction(connection: Connection) -> bool:
    """Tell whether the server's last word was that a transaction is open; one may be where the driver keeps no such word."""
    return bool(getattr(connection, "server_status", IN_TRANSACTION) & IN_TRANSACTION)


def is_open(connection: Connection) -> bool:
    """Tell whether a connection is open as far as this side knows."""
    return bool(connection.open)
