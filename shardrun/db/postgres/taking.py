"""Take and settle rows in a child's transactions on PostgreSQL; see `db/taking.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import psycopg
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from shardrun.db.postgres import driver, parts
from shardrun.db.postgres.store import LOOK_SECONDS, PostgresStore
from shardrun.db.statement import Statement
from shardrun.db.store import Settlement, Token, Verb
from shardrun.db.table import Layout
from shardrun.db.taking import ABORTED, SAVEPOINT, Fate, Guarded, ended, patiently
from shardrun.errors import ConnectionLost, StatementFailed

IN_UTC = "select set_config('TimeZone', 'UTC', true)"
"""Whole days are moved in UTC, as by the coordinator: elsewhere they may be an hour longer, or some minutes in older times."""

Fates = tuple[Statement, Statement | None]

NOT_OURS = ("3B001", "25P01")
"""SQLSTATEs of a savepoint that is not there: no such one, or no transaction at all."""


class Lent(Guarded, psycopg.Connection[Any]):
    """A child's connection."""

    taken: tuple[
        int, str
    ]  # the number of the key that was locked last for a first row, and the statement that takes it


class Settling(Protocol):
    """Writes settlements."""

    def step(self, one: Settlement) -> driver.Step:
        """Give the statement and the values of one settlement."""


class PostgresTaking:
    """Rows of one subscription in transactions of a child."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._take, self._take_free, self._fate = self._statements(layout)
        self._begin = "begin" if layout.isolation is None else f"begin isolation level {layout.isolation}"
        self._stores = {utf8: self._store(layout, utf8) for utf8 in (True, False)}

    def _statements(self, layout: Layout) -> tuple[Statement, Statement, Fates]:
        return take(layout), take(layout, "skip locked"), fate(layout)

    def take(self, connection: Lent, id: Any, token: Token, patience: float) -> bool:
        """Begin, lock the row while it carries the token, set the savepoint; waits `patience` seconds for the lock."""
        wanted = spelt(connection, self._take, self._values(id, token))
        return patiently(lambda: self._take_now(connection, id, wanted), patience)

    def _take_now(self, connection: Lent, id: Any, wanted: str) -> bool:
        with driver.naming_errors(connection):
            if self._begin_and_take(connection, id, wanted):
                send(connection, f"savepoint {SAVEPOINT}")
                return True
        self.abandon(connection)
        return False

    def _begin_and_take(self, connection: Lent, id: Any, wanted: str) -> bool:  # noqa: ARG002
        return bool(send(connection, self._begin, wanted).ntuples)

    def _values(self, id: Any, token: Token) -> dict[str, Any]:
        return {"id": id, "token": token}

    def _store(self, layout: Layout, utf8: bool) -> Settling:
        return PostgresStore(layout, layout.table.name, utf8)

    def take_also(self, connection: Lent, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Lock more rows, those that nobody has locked, and set the savepoint behind them."""
        taken = set()
        with driver.naming_errors(connection):
            for id, token in rows:
                if send(connection, spelt(connection, self._take_free, self._values(id, token))).ntuples:
                    taken.add(id)
            send(connection, f"savepoint {SAVEPOINT}")
        return taken

    def settle(self, connection: Lent, settlement: Settlement, keep: bool) -> bool:
        """Keep what was written since the take, or undo it, and write the settlement beside it."""
        self._look_at(connection, keep)
        first = f"{'release' if keep else 'rollback to'} savepoint {SAVEPOINT}"
        if settlement.verb is not Verb.ACK:
            first = f"{first}; {IN_UTC}"
        return self._write(connection, settlement, first)

    def settle_also(self, connection: Lent, settlement: Settlement) -> bool:
        """Write the settlement of another row."""
        return self._write(connection, settlement, IN_UTC)

    def _write(self, connection: Lent, settlement: Settlement, first: str) -> bool:
        info = connection.info
        utf8 = info.parameter_status("server_encoding") == "UTF8" and info.encoding == "utf-8"
        try:
            result = send(connection, first, spelt(connection, *self._stores[utf8].step(settlement)))
        except psycopg.Error as error:
            if error.sqlstate in NOT_OURS:
                raise ended("a COMMIT or ROLLBACK of its own") from error
            raise driver.name_error(error, connection) from error
        return bool(result.command_tuples)

    def _look_at(self, connection: Lent, keep: bool) -> None:
        if connection.closed:
            raise ConnectionLost("the connection to PostgreSQL was closed inside the delivery's transaction")
        status = connection.info.transaction_status
        if connection.pgconn.pipeline_status != PipelineStatus.OFF or status == TransactionStatus.ACTIVE:
            raise ended("a pipeline or COPY that was not left")
        if status == TransactionStatus.IDLE:
            raise ended("a COMMIT or ROLLBACK of its own")
        if keep and status == TransactionStatus.INERROR:
            raise StatementFailed(ABORTED)

    def commit(self, connection: Lent) -> None:
        """Commit; `ConnectionLost` leaves that in doubt."""
        with driver.naming_errors(connection):
            if send(connection, "commit").command_status != b"COMMIT":  # what has failed, it rolls back without a word
                raise StatementFailed(ABORTED)

    def abandon(self, connection: Lent) -> None:
        """Roll back whatever is open; a connection that cannot do that is closed."""
        try:
            psycopg.Connection.rollback(connection)
        except psycopg.Error:
            with suppress(psycopg.Error):
                psycopg.Connection.close(connection)

    def fate(self, connection: psycopg.Connection[Any], id: Any, token: Token) -> Fate:
        """Tell what became of a row, by a locking look in a transaction of its own."""
        values = {"id": id, "token": token, "dead_group": self._layout.dead_group}
        with driver.naming_errors(connection), connection.transaction():
            cursor = psycopg.Cursor(connection, row_factory=tuple_row)
            cursor.execute(f"{IN_UTC}, set_config('lock_timeout', '{LOOK_SECONDS}s', true)")
            found = cursor.execute(self._fate[0].text, values).fetchone()
            if found is None and self._fate[1] is not None:
                return Fate.DEAD if cursor.execute(self._fate[1].text, values).fetchone() else Fate.DONE
        return Fate.DONE if found is None else Fate[found[0]]

    def lend(self, connection: Lent, what: str | None) -> None:
        """Refuse to commit, roll back or close the connection from now on, or no more."""
        connection.transaction_of = what


def send(connection: Lent, *texts: str) -> PGresult:
    """Run statements in one round trip and none of psycopg's machinery, which takes any ROLLBACK for the end of what it has
    prepared; gives the result of the last.
    """
    result = connection.pgconn.exec_("; ".join(texts).encode(connection.info.encoding))
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result, connection.info.encoding)
    return result


def spelt(connection: Lent, statement: Statement, values: Mapping[str, Any]) -> str:
    """Write a statement with its values in it."""
    return str(psycopg.ClientCursor(connection, row_factory=tuple_row).mogrify(statement.text, values))


def take(layout: Layout, where_locked: str = "nowait") -> Statement:
    """Lock one row while it carries its token, against all who would claim, extend or settle it."""
    text = f"""\
select 1
  from {parts.table_name(layout.table)} as t
 where {parts.held_row(layout)}
   for no key update {where_locked}"""
    return Statement(text, ("id", "token"))


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Lock one row and tell what it carries; the second looks for it among the dead letters' table."""
    lock, key = layout.roles["locked_until"], layout.roles["id"]
    held, token = f"t.{parts.quote(lock.name)}", f"%(token)s::{parts.type_of(lock)}"
    same = f"t.{parts.quote(key.name)} = %(id)s::{parts.type_of(key)}"
    processed, group = layout.column("processed_at"), layout.column("group")
    cases = [f"when t.{parts.quote(processed.name)} is not null then 'DONE'"] if processed else []
    cases.append(f"when {held} = {token} then 'HELD'")
    if layout.dead_group is not None and group is not None:
        cases.append(f"when t.{parts.quote(group.name)} = %(dead_group)s then 'DEAD'")
    cases.append(f"when {held} + {parts.AGED} = {token} then 'FREE'")
    told = "\n            ".join(cases)
    text = f"""\
select case {told}
            else 'LOST' end
  from {parts.table_name(layout.table)} as t
 where {same}
   for no key update"""
    looked = Statement(text, ("id", "token", "dead_group"))
    if layout.dead is None:
        return looked, None
    return looked, Statement(f"select 1\n  from {parts.table_name(layout.dead)} as t\n where {same}", ("id",))
