"""Speak for one subscription on PostgreSQL: rows in and out of the statements that `sql` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar

import psycopg

from shardrun.db.postgres import apart, driver, sql
from shardrun.db.postgres.around import Around
from shardrun.db.postgres.driver import Connection, Step
from shardrun.db.postgres.fetch import Fetch
from shardrun.db.postgres.locks_sql import begin
from shardrun.db.settling import Shared, in_effect, in_order, not_among, share, share_acked, storable
from shardrun.db.speaking import Speaking
from shardrun.db.statement import Statement
from shardrun.db.store import (
    NONE_ACKED,
    WAITING_LIMIT,
    Acked,
    Backlog,
    Claimed,
    Extension,
    Settlement,
    Token,
    Verb,
    Waiting,
)
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed

NOTHING: Mapping[str, Any] = {
    "limit": 0,
    "ids": "{}",
    "full_keys": "{}",
    "only": "{}",
    "avoided": "{}",
    "id": None,
    "token": None,
    "new": None,
    "delay": None,
    "attempt": 0,
    "reason": None,
}
"""Parameters under which every statement runs and touches no row."""

LOOK_SECONDS = 5
"""How long a locking look waits. Larger: a doubt takes longer to name; smaller: a slow commit is asked again."""


class Looks(Speaking):
    """What both kinds of stores share: the looks at what is left, and at why a claim took nothing."""

    nothing: ClassVar[Mapping[str, Any]]

    def __init__(self, layout: Layout, where: str, encodes_all: bool, fetch: Fetch | None) -> None:
        super().__init__(layout, where)
        self._fetch = fetch
        self._encodes_all = encodes_all
        self._ids = driver.array_of(layout.roles["id"])
        key = layout.column("partition_key")
        self._keys = driver.array_of(key) if key is not None else None
        self._constants = {"group": layout.group, "dead_group": layout.dead_group}
        self._backlog = sql.backlog(layout)
        self._waiting = sql.waiting(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [self._backlog, self._waiting, *([self._fetch.statement] if self._fetch else [])]

    def prepare(self, connection: Connection) -> int:
        """Run every statement on no row, in a transaction that is rolled back: names, types and permissions are checked."""
        statements = self.statements()
        with self._declared(), driver.naming_errors(connection), connection.transaction(force_rollback=True):
            for statement in statements:
                connection.execute(statement.text, {**self.nothing, **self._constants}, prepare=True)
        return len(statements)

    def backlog(self, connection: Connection, awaited: Sequence[Any]) -> Backlog:
        """Look at what is left, held rows among it, along the claim's index."""
        values = {"group": self.layout.group, "ids": self._ids(awaited)}
        ready, later, is_awaited = _only_row(driver.run(connection, self._backlog, values))
        return Backlog(ready=ready, later=later, awaited=is_awaited)

    def waiting(self, connection: Connection) -> Waiting:
        """Look why a claim took nothing, along the claim's index."""
        values = {"group": self.layout.group, "limit": WAITING_LIMIT}
        return Waiting._make(_only_row(driver.run(connection, self._waiting, values)))

    def _settled(self, one: Settlement) -> dict[str, Any]:
        """Give the values of one settlement."""
        return {
            "id": one.id,
            "delay": float(one.delay) if one.delay else None,
            "attempt": one.attempt,
            "reason": storable(one.reason, self._encodes_all),
            **self._constants,
        }


class PostgresStore(Looks):
    """The statements of one subscription, built once; holds no state of its own."""

    nothing = NOTHING

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch)
        self._claim = sql.claim(layout, leaving_out=False)
        self._claim_others = sql.claim(layout, leaving_out=True) if layout.by_key and self._keys is not None else None
        self._around = Around(layout, name, self._take)
        self._lease_end = sql.lease_end(layout)
        self._extend = sql.extend(layout)
        self._shared = {Verb.ACK: sql.ack(layout), Verb.RELEASE: sql.release(layout)}
        self._alone = {
            Verb.DROP: sql.drop(layout),
            Verb.RETRY: sql.retry(layout),
            Verb.SNOOZE: sql.snooze(layout),
            Verb.BURY: sql.bury(layout),
            Verb.RECOUNT: sql.recount(layout),
        }
        self._look = sql.look(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        every = [self._claim, self._claim_others, self._lease_end, self._extend, *self._shared.values()]
        every += [self._around.statement, self._around.candidates]
        every += [*self._alone.values(), self._look]
        return [*(one for one in every if one is not None), *super().statements()]

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows, in claim order, except those whose lane key is in `full_keys`."""
        values = {"limit": limit, "group": self.layout.group}
        statement = self._claim
        if full_keys and self._claim_others is not None and self._keys is not None:
            values["full_keys"] = self._keys(full_keys)
            statement = self._claim_others
        around = self._around
        try:
            rows = (
                around.claim(connection, values) if around.avoided.ids() else self._take(connection, statement, values)
            )
        except StatementFailed:
            return around.claim_apart(connection, values)
        return rows if len(rows) == limit else rows + around.look(connection, values, limit - len(rows))

    def _take(self, connection: Connection, statement: Statement, values: Mapping[str, Any]) -> list[Claimed]:
        if self._fetch is not None:
            return self._claim_and_fetch(connection, statement, values, self._fetch)
        names = list(self.layout.table.columns) if self.layout.row_mode else None
        if self.layout.isolation is None:
            return apart.read(driver.run(connection, statement, values), names)
        steps = [(begin(self.layout), {}), (statement, values), driver.COMMIT]
        return apart.read(driver.run_together(connection, steps)[1], names)

    def _claim_and_fetch(
        self, connection: Connection, statement: Statement, values: Mapping[str, Any], fetch: Fetch
    ) -> list[Claimed]:
        """Claim and fetch in one transaction, so that no row is held whose body was never asked for."""
        with driver.naming_errors(connection), driver.transaction(connection):
            if self.layout.isolation is not None:
                connection.execute(f"set transaction isolation level {self.layout.isolation}")
            rows = connection.execute(statement.text, values, prepare=True).fetchall()
            bodies = fetch.bodies(connection, [row[0] for row in rows])
        return [Claimed._make((*row[:8], bodies[row[0]])) for row in rows]

    def lease_end(self, connection: Connection) -> Token:
        """Read the database's clock, plus the lease."""
        return str(_only_row(driver.run(connection, self._lease_end, {}))[0])

    def extend(self, connection: Connection, ids: Sequence[Any], token: Token, new: Token) -> Extension:
        """Push the expiry of the rows that carry `token` to `new`, in one statement, waiting for no one."""
        values = {"ids": self._ids(in_order(ids)), "token": token, "new": new}
        rows = driver.run(connection, self._extend, values).fetchall()
        return Extension([row[0] for row in rows if row[1]], [row[0] for row in rows if not row[1]])

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements in one transaction and one round trip; returns the ids of those that took effect."""
        shared, alone = share(settlements, drops_alone=self._alone[Verb.DROP] is not None)
        shared += share_acked(acked)
        for group in shared:
            group.ids[:] = in_order(group.ids)
        alone.sort(key=lambda settlement: str(settlement.id))
        steps = [self._step_shared(group) for group in shared] + [self._step_alone(one) for one in alone]
        cursors = driver.run_all(connection, steps)
        effective: set[Any] = set()
        for group, cursor in zip(shared, cursors, strict=False):
            everything = cursor.rowcount == len(group.ids)
            effective.update(group.ids if everything else [row[0] for row in cursor.fetchall()])
        singles = cursors[len(shared) :]
        effective.update(compress((one.id for one in alone), (cursor.rowcount > 0 for cursor in singles)))
        if repeated and (doubted := not_among(effective, settlements, acked)):
            effective |= self._resolve(connection, doubted)
        return effective

    def step(self, one: Settlement) -> Step:
        """Give the statement that writes one settlement in a transaction that is open already."""
        shared, _ = share([one], drops_alone=self._alone[Verb.DROP] is not None)
        return self._step_shared(shared[0]) if shared else self._step_alone(one)

    def _step_shared(self, group: Shared) -> Step:
        values = {"ids": self._ids(group.ids), "token": group.token, "attempt": group.attempt}
        return self._shared[group.verb], values

    def _step_alone(self, one: Settlement) -> Step:
        statement = self._alone[one.verb]
        if statement is None:
            raise self._unwritable(one.verb)
        return statement, {**self._settled(one), "token": one.token}

    def _resolve(self, connection: Connection, doubted: list[Settlement]) -> set[Any]:
        """Find which settlements had been committed before, by a locking look: whoever is still committing is waited for."""
        with driver.naming_errors(connection), connection.transaction():
            connection.execute("select set_config('lock_timeout', %s, true)", (f"{LOOK_SECONDS}s",))
            ids = {"ids": self._ids(in_order([one.id for one in doubted]))}
            seen = dict(connection.execute(self._look.text, ids, prepare=True).fetchall())
        return in_effect(doubted, seen)


def _only_row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    if row is None:
        raise StatementFailed("PostgreSQL gave no row where there is always one.")
    return row
