"""Speak to a PostgreSQL server: connections, sessions, and whether a queue's table fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from shardrun.db import check, forms, needed
from shardrun.db.fitting import Fitting
from shardrun.db.operate import Blocked, Counts, Sessions
from shardrun.db.postgres import catalogue, ddl, driver, fetch, listen, operate, pooler, sql, taking
from shardrun.db.postgres.driver import Connection
from shardrun.db.postgres.locks import AdvisoryStore, RowLockStore
from shardrun.db.postgres.offers import KeyOfferStore, RowOfferStore
from shardrun.db.postgres.store import PostgresStore
from shardrun.db.postgres.strands import PostgresStrandStore, RowLockStrandStore
from shardrun.db.postgres.taking_offered import KeyTaking, RowTaking
from shardrun.db.store import Store
from shardrun.db.table import Column, Layout, Table, lay
from shardrun.errors import (
    Conflict,
    DatabaseUnreachable,
    ShardrunError,
    Unsupported,
    UsageProblem,
)
from shardrun.queue import Form, Subscription

OLDEST = 120000
"""PostgreSQL 12, as the server numbers it."""

GONE_SECONDS = 10.0
"""How long an ended session may take to go. Larger: a stuck one holds up its child's rows; smaller: a busy server is
given up on."""

CHECK_INTERVAL = "500ms"
"""How often the server looks, while a child's statement runs, whether the child still lives. Smaller costs more looks."""

ATTRIBUTES = (
    "autocommit",
    "isolation_level",
    "read_only",
    "deferrable",
    "row_factory",
    "cursor_factory",
    "prepare_threshold",
)
"""What a handler may have set on a lent connection without a word to the server."""


class Postgres(Fitting):
    """One PostgreSQL database, as named by a DSN; `source` says where the DSN came from, for messages."""

    one_writer = False
    leases_in_turn = False
    column_kind = Column

    def __init__(self, dsn: str, source: str | None = None) -> None:
        self._dsn = dsn
        self._source = source
        self._version = ""
        self._pooled = False
        self._shares_sessions: bool | None = None  # not known yet
        try:
            self._settings = driver.settings(dsn)
        except psycopg.Error:
            # libpq's own text repeats the part that it stumbled over, which may be the password.
            said = f" (from {source})" if source else ""
            raise UsageProblem(
                f"the DSN{said} cannot be read as PostgreSQL's: postgresql://user:password@host:port/database?setting=value, "
                f"where signs like @ / : % in a user or password are written as %40 %2F %3A %25."
            ) from None

    @property
    def dsn(self) -> str:
        """Give the DSN as it was given."""
        return self._dsn

    def describe(self) -> str:
        """Name the database for people, without any secret: `PostgreSQL 15.18 at localhost/app`."""
        return f"PostgreSQL{self._version} at {self._host}/{self._database}"

    @property
    def listening(self) -> listen.PostgresListening:
        """Give how it is listened to."""
        return listen.PostgresListening(lambda part: self._connect(part, autocommit=True), self.needs_session)

    @property
    def _host(self) -> str:
        return str(self._settings.get("host") or self._settings.get("hostaddr") or "localhost")

    @property
    def _database(self) -> str:
        return str(self._settings.get("dbname") or self._settings.get("user") or "")

    def connect(self, part: str) -> Connection:
        """Open the coordinator's own connection: autocommit, UTC. Raises `DatabaseUnreachable`."""
        connection = self._connect(part, autocommit=True)
        if connection.info.server_version < OLDEST:
            connection.close()
            raise Unsupported(f"{self.describe()} is too old: shardrun needs PostgreSQL 12 or newer.")
        with driver.naming_errors(connection):
            driver.make_ours(connection)
            if driver.is_pooled(connection):
                pooler.check_transactions(connection, self.describe())
        return connection

    def connect_child(self, part: str) -> Connection:
        """Open a connection to lend to handlers: psycopg's defaults, no transaction open."""
        connection = self._connect(part, autocommit=False, kind=taking.Lent)
        with suppress(psycopg.errors.InvalidParameterValue):
            if not _is_own_session(connection):
                self._pooled, connection.prepare_threshold = True, None
            connection.commit()
        connection.rollback()
        return connection

    def _connect(self, part: str, autocommit: bool, kind: type[Connection] = psycopg.Connection) -> Connection:
        try:
            connection = driver.connect(self._dsn, part, autocommit, kind)
        except psycopg.Error as error:
            raise DatabaseUnreachable(self._unreachable(error)) from None
        version = connection.info.server_version
        self._version = f" {version // 10000}.{version % 10000}"
        return connection

    def _unreachable(self, error: psycopg.Error) -> str:
        port = self._settings.get("port") or 5432
        named = [f"database {self._database}"]
        if self._settings.get("user"):
            named.append(f"user {self._settings['user']}")
        if self._source:
            named.append(f"from {self._source}")
        reason = _reason(str(error), str(self._settings.get("password") or ""))
        return f"PostgreSQL at {self._host}:{port} ({', '.join(named)}) did not answer: {reason}."

    def is_usable(self, connection: Connection) -> bool:
        """Tell, by an empty query, whether a connection still works; a transaction left open is rolled back."""
        try:
            if connection.closed:
                return False
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
                return not connection.closed
            return bool(connection.pgconn.exec_(b"").status == ExecStatus.EMPTY_QUERY)
        except psycopg.Error:
            return False

    def is_alive(self, connection: Connection) -> bool:
        """Tell, by an empty query, whether a connection still works; it changes nothing, inside a transaction either."""
        try:
            return not connection.closed and connection.pgconn.exec_(b"").status == ExecStatus.EMPTY_QUERY
        except psycopg.Error:
            return False

    def descriptor(self, connection: Connection) -> int | None:
        """Name the connection's socket."""
        return connection.fileno()

    def reset(self, connection: Connection) -> bool:
        """Roll back and put the driver's settings back; costs no round trip where nothing is open.

        What a handler set on the server's session stays (as its own prepared plans do): the next borrower is the same
        child, running the same code, and DISCARD ALL would cost every block a round trip and its plans.
        """
        try:
            if connection.closed:
                return False
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
            for name in ATTRIBUTES:
                wanted = None if self._pooled and name == "prepare_threshold" else DEFAULTS[name]
                if getattr(connection, name) != wanted:
                    setattr(connection, name, wanted)
        except psycopg.Error:
            return False
        return not connection.closed

    def naming_errors(self, connection: Connection) -> AbstractContextManager[None]:
        """Turn the driver's errors that the block meets into shardrun's."""
        return driver.naming_errors(connection)

    def session(self, connection: Connection) -> str | None:
        """Name the server session behind a connection that has no transaction open: its process, and when that began."""
        with driver.naming_errors(connection), connection.transaction():
            if driver.is_pooled(connection):
                return pooler.session(connection)
            row = connection.execute(sql.SESSION).fetchone()
        return str(row[0]) if row else None

    def end_sessions(self, connection: Connection, sessions: Sequence[str], part: str) -> None:
        """End a dead process's sessions and wait until they are gone; a process that came after one of them is left.

        Raises `Conflict` where one is still there after GONE_SECONDS.
        """
        values = (list(sessions),)
        until = monotonic() + GONE_SECONDS
        at_work = pooler.AtWork(sessions)
        with driver.naming_errors(connection):
            while connection.execute(sql.END_SESSIONS, values).fetchall() or at_work.remains(connection, monotonic()):
                if monotonic() > until:
                    raise Conflict(f"PostgreSQL has not ended the sessions of {part} within {GONE_SECONDS:g} s.")
                connection.execute("select pg_sleep(0.005)")

    def close(self, connection: Connection) -> None:
        """Close quietly, also when it is broken."""
        with suppress(psycopg.Error):
            connection.close()

    def store(self, connection: Connection, subscription: Subscription) -> Store:
        """Build a subscription's statements; raises `Problems` with all that does not fit."""
        queue, where = subscription.queue, check.where(subscription.queue)
        refusals = list(forms.refusals(forms.On.POSTGRES, subscription))
        if queue.form is Form.ADVISORY:
            refusals += self.needs_session(connection, where, "the advisory lock form")
        layout = self._layout(connection, subscription, refusals)
        utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
        own = fetch.build(connection, layout, queue.fetch, where) if isinstance(queue.fetch, str) else None
        stores = STRANDED if layout.strand is not None else OFFERS if subscription.transactional else STORES
        return stores[queue.form](layout, where, encodes_all=utf8, fetch=own, name=queue.name)

    def needs_session(self, connection: Connection, who: str, what: str) -> list[ShardrunError]:
        """Refuse what needs a session of its own, where a pooler gives none: at most one problem."""
        if not driver.is_pooled(connection):
            return []
        if self._shares_sessions is None:
            with driver.naming_errors(connection):
                self._shares_sessions = pooler.shares_sessions(
                    connection, lambda: self._connect("shardrun check", autocommit=True)
                )
        return [pooler.refusal(who, what)] if self._shares_sessions else []

    def taking(self, layout: Layout) -> taking.PostgresTaking:
        """Build the statements of a subscription's deliveries in transactions."""
        return TAKINGS[layout.form](layout)

    def warnings(self, connection: Connection, subscription: Subscription) -> list[str]:
        """List what would work badly: a claim without an index, a trigger that keeps rows from being deleted."""
        found, table, _ = self._fit(connection, subscription)
        if found or table is None:
            return []
        layout, name = lay(table, subscription), subscription.queue.name
        said = [f"{name}: no index serves the claim. {ddl.index_of(layout)}"] if check.missing_index(layout) else []
        if layout.column("processed_at") is None or layout.dead is not None or subscription.dead_letter is not None:
            said += [f"{name}: {sentence}" for sentence in catalogue.keeping_rows(connection, table)]
        return said

    def _catalogue(self, connection: Connection) -> check.Catalogue:
        place = f"in database {connection.info.dbname}"
        return check.Catalogue(place=place, names=lambda: catalogue.names(connection))

    def _read(self, connection: Connection, parts: Sequence[str]) -> Table | None:
        return catalogue.read(connection, parts)

    def _writing(self, connection: Connection | None) -> needed.Writing:
        if connection is not None:
            driver.wait_for_locks(connection)
        return ddl.WRITING

    def _count(self, connection: Connection, layout: Layout) -> Counts:
        return operate.counts(connection, layout)

    def _blocked(self, connection: Connection, layout: Layout) -> Blocked:
        return operate.blocked(connection, layout)

    def _letters(self, layout: Layout) -> operate.PostgresDeadLetters:
        return operate.PostgresDeadLetters(layout)

    def sessions(self, connection: Connection) -> Sessions:
        """Read the limit of connections, those in use, and shardrun's own."""
        return operate.sessions(connection)


STORES: dict[Form, type[PostgresStore] | type[RowLockStore] | type[AdvisoryStore]] = {
    Form.LEASE: PostgresStore,
    Form.ROW_LOCK: RowLockStore,
    Form.ADVISORY: AdvisoryStore,
}

OFFERS: dict[Form, type[PostgresStore] | type[RowOfferStore] | type[KeyOfferStore]] = {
    Form.LEASE: PostgresStore,
    Form.ROW_LOCK: RowOfferStore,
    Form.ADVISORY: KeyOfferStore,
}

STRANDED: dict[Form, type[PostgresStrandStore] | type[RowLockStrandStore]] = {
    Form.LEASE: PostgresStrandStore,
    Form.ROW_LOCK: RowLockStrandStore,
}

TAKINGS: dict[Form, type[taking.PostgresTaking]] = {
    Form.LEASE: taking.PostgresTaking,
    Form.ROW_LOCK: RowTaking,
    Form.ADVISORY: KeyTaking,
}

DEFAULTS: dict[str, Any] = {
    "autocommit": False,
    "isolation_level": None,
    "read_only": None,
    "deferrable": None,
    "row_factory": psycopg.rows.tuple_row,
    "cursor_factory": psycopg.Cursor,
    "prepare_threshold": 5,
}


def _is_own_session(connection: Connection) -> bool:
    """Tell whether no pooler lies between; then let the server look for the client while a statement runs.

    Where the server's system cannot look (SQLSTATE 22023), the session lives on as it does on PostgreSQL 13.
    """
    setting = f"set_config('client_connection_check_interval', '{CHECK_INTERVAL}', false)"
    what = setting if connection.info.server_version >= 140000 else "1"
    cursor = connection.execute(f"select {what} where pg_backend_pid() = {connection.info.backend_pid}")
    return cursor.fetchone() is not None


def _reason(text: str, password: str) -> str:
    """Take what the driver says of a failed connection, short and without a password."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    said = lines[0]
    for head in (
        "connection failed: ",
        r'connection to server (at|on socket) "[^"]*"(, port \d+)? failed: ',
        "FATAL: ",
    ):
        said = re.split(head, said, maxsplit=1)[-1].strip()
    if said[1:2].islower():
        said = said[0].lower() + said[1:]
    if password:
        said = said.replace(password, "***")
    return said.rstrip(".")
