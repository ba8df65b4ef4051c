"""Speak to a MySQL or MariaDB server: connections, sessions, and whether a queue's table fits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, NamedTuple

from shardrun.db import check, forms, needed
from shardrun.db.fitting import Fit, Fitting
from shardrun.db.mysql import advice, catalogue, ddl, driver, drivers, dsn, fetch, operate, taking
from shardrun.db.mysql.driver import Connection
from shardrun.db.mysql.locks import AdvisoryStore, RowLockStore
from shardrun.db.mysql.offers import OFFERS
from shardrun.db.mysql.store import MysqlStore
from shardrun.db.mysql.strands import FifoLockStore, MysqlStrandStore
from shardrun.db.mysql.taking_offered import TAKINGS
from shardrun.db.operate import Blocked, Counts, Sessions
from shardrun.db.store import Store
from shardrun.db.table import Layout, Table, lay
from shardrun.errors import (
    Conflict,
    DatabaseUnreachable,
    DeclarationProblem,
    ShardrunError,
    StatementFailed,
    Unsupported,
    UsageProblem,
)
from shardrun.queue import Form, Subscription

OLDEST = {"MySQL": (8, 0, 1), "MariaDB": (10, 6)}

GONE_SECONDS = 10.0
"""How long an ended session may take to go. Larger: a stuck one holds up its child's rows; smaller: a busy server is
given up on."""

SAME_START = 2
"""Seconds by which two readings of a server's start may differ: it tells its uptime in whole seconds."""

NO_SUCH_SESSION = 1094

STORES: Mapping[Form, type[MysqlStore | RowLockStore | AdvisoryStore]] = {
    Form.LEASE: MysqlStore,
    Form.ROW_LOCK: RowLockStore,
    Form.ADVISORY: AdvisoryStore,
}

STRAND_STORES: Mapping[Form, type[MysqlStrandStore | FifoLockStore]] = {
    Form.LEASE: MysqlStrandStore,
    Form.ROW_LOCK: FifoLockStore,
}

FACTS = """\
show global variables
where variable_name in ('version', 'version_comment', 'log_bin', 'binlog_format', 'hostname', 'port')"""

UPTIME = "show global status like 'Uptime'"
CLOCK = "select unix_timestamp()"
THERE = "select id from information_schema.processlist where id in %s"


class Facts(NamedTuple):
    """What a server says of itself."""

    product: str  # MySQL, MariaDB or TiDB
    version: str
    row_log: bool  # False where its binary log takes statements only, which forbids READ COMMITTED


class Mysql(Fitting):
    """One MySQL or MariaDB database, as named by a DSN; `source` says where the DSN came from, for messages."""

    one_writer = False
    leases_in_turn = True
    column_kind = catalogue.MysqlColumn
    listening = None

    def __init__(self, given: str, source: str | None = None) -> None:
        scheme, _, rest = given.partition("://")
        name, _, asked = scheme.lower().partition("+")
        self._dsn = given
        self._source = source
        self._product, self._version = ("MariaDB" if name == "mariadb" else "MySQL"), ""
        try:
            self._account = dsn.read(rest, asked)
        except dsn.UnreadableDsn as problem:
            said = f" (from {source})" if source else ""
            raise UsageProblem(
                f"the DSN{said} cannot be read as MySQL's: {problem}. Write {name}://user:password@host:port/database"
                f"?setting=value, where signs like @ / : % in a user or password are written as %40 %2F %3A %25."
            ) from None
        drivers.connection_class(self._account.driver)  # raises ImportError where there is no driver

    @property
    def dsn(self) -> str:
        """Give the DSN as it was given."""
        return self._dsn

    def describe(self) -> str:
        """Name the database for people, without any secret: `MariaDB 10.11.6 at localhost/app`."""
        return f"{self._product}{self._version} at {self._account.host}/{self._account.database}"

    def connect(self, part: str) -> Connection:
        """Open the coordinator's own connection: autocommit, UTC, READ COMMITTED. Raises `DatabaseUnreachable`."""
        connection = self._connect(part, ours=True)
        try:
            facts = self._facts(connection)
            self._refuse(facts)
            driver.make_ours(connection, on_mariadb=facts.product == "MariaDB")
        except ShardrunError:
            driver.close(connection)
            raise
        return connection

    def connect_child(self, part: str) -> Connection:
        """Open a connection to lend to handlers: the driver's defaults, no transaction open."""
        return self._connect(part, ours=False, kind=taking.Lent)

    def _connect(self, part: str, ours: bool, kind: type[Any] = object) -> Connection:
        try:
            return driver.connect(self._account, part, ours, kind)
        except Exception as error:  # the driver raises what it meets: its own errors, OSError, RuntimeError
            raise DatabaseUnreachable(self._unreachable(error)) from None

    def _unreachable(self, error: Exception) -> str:
        account = self._account
        named = [f"database {account.database}"]
        if account.user:
            named.append(f"user {account.user}")
        if self._source:
            named.append(f"from {self._source}")
        at = account.settings.get("unix_socket") or f"{account.host}:{account.port}"
        return f"{self._product} at {at} ({', '.join(named)}) did not answer: {_reason(error, account.password)}."

    def _facts(self, connection: Connection) -> Facts:
        with driver.naming_errors(connection):
            said = {name.lower(): str(value) for name, value in connection.execute(FACTS).fetchall()}
        facts = facts_of(said)
        self._product, self._version = facts.product, f" {number_of(facts.version)}"
        return facts

    def _refuse(self, facts: Facts) -> None:
        """Raise `Unsupported` for a server on which rows would not be held as they must be."""
        if facts.product == "TiDB":
            raise Unsupported(
                f"{self.describe()} takes SKIP LOCKED and does not skip, so that no row would be held by one replica alone. "
                f"Use MySQL 8.0.1, MariaDB 10.6 or newer, or PostgreSQL."
            )
        oldest = OLDEST[facts.product]
        if numbers_of(facts.version) < oldest:
            needed = ".".join(map(str, oldest))
            raise Unsupported(f"{self.describe()} is too old: shardrun needs {facts.product} {needed} or newer.")
        if not facts.row_log:
            raise Unsupported(
                f"{self.describe()} logs statements (binlog_format = STATEMENT), and refuses writes at READ COMMITTED, where "
                f"claims lock no gaps. Set binlog_format = ROW or MIXED."
            )

    def is_usable(self, connection: Connection) -> bool:
        """Tell, by a rollback, whether a connection still works."""
        try:
            if not driver.is_open(connection):
                return False
            connection.rollback()
        except connection.Error:
            return False
        return True

    def is_alive(self, connection: Connection) -> bool:
        """Tell, in one round trip, whether a connection still works; it changes nothing, inside a transaction either."""
        try:
            connection.execute("do 0")
        except connection.Error:
            return False
        return True

    def descriptor(self, connection: Connection) -> int | None:
        """Name the connection's socket, where the driver shows it."""
        return driver.descriptor(connection)

    def reset(self, connection: Connection) -> bool:
        """Put the driver's settings back; `transaction` has ended what was open, so that it costs no round trip.

        What a handler set on the server's session stays: the next borrower is the same child, running the same code.
        """
        try:
            if not driver.is_open(connection):
                return False
            if connection.get_autocommit():
                connection.autocommit(False)
            connection.cursorclass = type(connection).default_cursor
            if driver.in_transaction(connection):
                connection.rollback()
        except connection.Error:
            return False
        return driver.is_open(connection)

    def naming_errors(self, connection: Connection) -> AbstractContextManager[None]:
        """Turn the driver's errors that the block meets into shardrun's."""
        return driver.naming_errors(connection)

    def session(self, connection: Connection) -> str | None:
        """Name the server session behind a connection: its number, and when the server that counted it began.

        A server gives no number twice; after a restart it begins again.
        """
        with driver.naming_errors(connection):
            return f"{connection.thread_id()}:{_began(connection)}"

    def end_sessions(self, connection: Connection, sessions: Sequence[str], part: str) -> None:
        """End a dead process's sessions and wait until they are gone, rolled back; none of an earlier server is left.

        Raises `Conflict` where one is still there after GONE_SECONDS.
        """
        until = monotonic() + GONE_SECONDS
        with driver.naming_errors(connection):
            began = _began(connection)
            known = (session.partition(":") for session in sessions)
            numbers = [int(number) for number, _, start in known if abs(int(start) - began) <= SAME_START]
            left = _there(connection, numbers)
            for number in left:
                _kill(connection, number)
            while left := _there(connection, left):
                if monotonic() > until:
                    raise Conflict(f"{self._product} has not ended the sessions of {part} within {GONE_SECONDS:g} s.")
                connection.execute("select sleep(0.005)")

    def close(self, connection: Connection) -> None:
        """Close quietly, also when it is broken."""
        driver.close(connection)

    def store(self, connection: Connection, subscription: Subscription) -> Store:
        """Build a subscription's statements; raises `Problems` with all that does not fit."""
        queue, where = subscription.queue, check.where(subscription.queue)
        layout = self._layout(connection, subscription, forms.refusals(forms.On.MYSQL, subscription))
        own = fetch.build(connection, layout, queue.fetch, where) if isinstance(queue.fetch, str) else None
        if layout.strand is not None:
            return STRAND_STORES[queue.form](layout, where, fetch=own, name=queue.name)
        stores = OFFERS if subscription.transactional else STORES
        return stores[queue.form](layout, where, fetch=own, name=queue.name)

    def taking(self, layout: Layout) -> taking.MysqlTaking:
        """Build the statements of a subscription's deliveries in transactions."""
        return TAKINGS[layout.form](layout)

    def warnings(self, connection: Connection, subscription: Subscription) -> list[str]:
        """List what would work badly."""
        found, table, _ = self._fit(connection, subscription)
        return [] if found or table is None else advice.warnings(connection, lay(table, subscription), subscription)

    def _fit(self, connection: Connection, subscription: Subscription) -> Fit:
        found, table, dead = super()._fit(connection, subscription)
        return [*found, *_own_problems(subscription, table, dead)], table, dead

    def _catalogue(self, connection: Connection) -> check.Catalogue:
        return check.Catalogue(
            place=f"in database {self._account.database}",
            names=lambda: catalogue.names(connection),
            time_types=("datetime", "timestamp"),
            not_null=ddl.not_null,
            no_index=ddl.cannot_be_unique,
        )

    def _read(self, connection: Connection, parts: Sequence[str]) -> Table | None:
        return catalogue.read(connection, parts)

    def _writing(self, connection: Connection | None) -> needed.Writing:
        if connection is None:
            return ddl.writing(None)
        driver.be_patient(connection)
        return ddl.writing(connection.on_mariadb)

    def _count(self, connection: Connection, layout: Layout) -> Counts:
        return operate.counts(connection, layout)

    def _blocked(self, connection: Connection, layout: Layout) -> Blocked:
        return operate.blocked(connection, layout)

    def _letters(self, layout: Layout) -> operate.MysqlDeadLetters:
        return operate.MysqlDeadLetters(layout)

    def sessions(self, connection: Connection) -> Sessions:
        """Read the limit of connections, those in use, and shardrun's own."""
        return operate.sessions(connection)


def facts_of(said: dict[str, str]) -> Facts:
    """Read a server's variables: whose it is, its version, and what its binary log takes."""
    version, comment = said.get("version", ""), said.get("version_comment", "")
    both = f"{version} {comment}".lower()
    product = "TiDB" if "tidb" in both else ("MariaDB" if "mariadb" in both else "MySQL")
    logs_statements = said.get("log_bin") == "ON" and said.get("binlog_format") == "STATEMENT"
    return Facts(product, version, not logs_statements)


def number_of(version: str) -> str:
    """Take the number out of a version's text; MariaDB used to put another before its own."""
    found = re.search(r"\d+(\.\d+)+", version.removeprefix("5.5.5-"))
    return found[0] if found else version


def numbers_of(version: str) -> tuple[int, ...]:
    """Read a version's number, part by part."""
    return tuple(int(part) for part in number_of(version).split(".") if part.isdigit())


def _own_problems(subscription: Subscription, table: Table | None, dead: Table | None) -> Iterator[ShardrunError]:
    """Find what only these servers know: columns that write themselves, dead letters that cannot be part of a transaction."""
    where = check.where(subscription.queue)
    for role, name in subscription.queue.roles.items():
        column = table.columns.get(name) if table else None
        if isinstance(column, catalogue.MysqlColumn) and column.on_update:
            yield DeclarationProblem(
                f"{where}: column {name} (role {role}) is set by the server at every update of its row. "
                f"alter table {subscription.queue.table} modify {ddl.quote(name)} datetime(6) null"
            )
        is_strand = subscription.has_strands and role == ("group" if subscription.queue.fifo else "partition_key")
        if column is not None and is_strand and column.kind in ("enum", "other"):
            yield DeclarationProblem(
                f"{where}: column {name} (role {role}) is {column.type}, whose values may compare in another order than its "
                f"index has. Use a column of text, a whole number or a uuid."
            )
    if dead is not None and dead.obstacle:
        yield DeclarationProblem(f"{where}: the dead letters of {subscription.name} {dead.name} {dead.obstacle}.")


def _began(connection: Connection) -> int:
    """Read when the server started, in whole seconds."""
    uptime = connection.execute(UPTIME).fetchall()[0][1]
    return int(connection.execute(CLOCK).fetchall()[0][0]) - int(uptime)


def _there(connection: Connection, numbers: Sequence[int]) -> list[int]:
    if not numbers:
        return []
    return [int(row[0]) for row in connection.execute(THERE, (list(numbers),)).fetchall()]


def _kill(connection: Connection, number: int) -> None:
    try:
        connection.execute(f"kill connection {number}")
    except connection.Error as error:
        if driver.code_of(error) == NO_SUCH_SESSION:
            return
        raise StatementFailed(f"session {number} cannot be ended: {driver.first_line(error)}") from error


def _reason(error: Exception, password: str) -> str:
    """Take what the driver says of a failed connection, short and without a password."""
    inner = getattr(error, "original_exception", error)
    said = str(getattr(inner, "strerror", None) or "") or driver.first_line(inner)
    if inner is error and (found := re.search(r"\(\[Errno \d+\] (.*?)\)$", said)):
        said = found[1]
    if isinstance(error, RuntimeError) and "cryptography" in said:
        said = (
            "its way to check passwords needs encryption. Install it: pip install 'PyMySQL[rsa]', or use TLS: ?ssl=true"
        )
    if said[1:2].islower():
        said = said[0].lower() + said[1:]
    if password:
        said = said.replace(password, "***")
    return said.strip().rstrip(".")
