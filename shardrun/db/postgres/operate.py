"""Count a queue's rows on PostgreSQL, and act on its dead letters: rows in and out of `status` and `dead`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from shardrun.db import check
from shardrun.db.buried import Letters
from shardrun.db.operate import Blocked, Counts, Failures, Moved, Sessions, blocked_of, counts_of, failures_of
from shardrun.db.postgres import dead, driver, status
from shardrun.db.postgres.driver import Connection
from shardrun.db.settling import in_order, storable
from shardrun.db.table import Column, Layout


def counts(connection: Connection, layout: Layout) -> Counts:
    """Count what a queue holds for one subscription, within bounds."""
    indexed = not check.missing_index(layout)
    values = {"group": layout.group, "dead_group": layout.dead_group}
    along = status.counts if layout.strand is None else status.counts_in_order
    statement = along(layout) if indexed else status.counts_by_id(layout)
    *looked, oldest = driver.run(connection, statement, values).fetchall()[0]
    buried = status.dead(layout, indexed)
    found = None if buried is None else driver.run(connection, buried, values).fetchall()[0]
    return counts_of(layout, tuple(looked), found, oldest, indexed)


def blocked(connection: Connection, layout: Layout) -> Blocked:
    """Find the groups or keys that wait for a row that has failed."""
    return blocked_of(driver.run(connection, status.blocked(layout), {"group": layout.group}).fetchall())


def sessions(connection: Connection) -> Sessions:
    """Read the server's limit of connections and who uses them."""
    with driver.naming_errors(connection):
        return Sessions(*connection.execute(status.SESSIONS).fetchall()[0])


class PostgresDeadLetters(Letters):
    """The dead letters of one subscription: its statements, built once; holds no state of its own."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._ids = driver.array_of(layout.roles["id"])
        self._failures = dead.failures(layout)
        self._choose = {named: dead.choose(layout, named) for named in (False, True)}
        self._stuck = dead.stuck(layout)
        self._requeue = dead.requeue(layout)
        self._purge = dead.purge(layout)
        self._waiting, self._idle, self._park = dead.waiting(layout), dead.idle(layout), dead.park(layout)

    def _id_of(self, text: str, column: Column) -> Any:
        if column.kind == "int":
            return int(text)
        return uuid.UUID(text) if column.kind == "uuid" else storable(text)

    def failures(self, connection: Connection, error: str | None) -> Failures:
        """Group them by error."""
        return failures_of(driver.run(connection, self._failures, self._values(error)).fetchall())

    def choose(self, connection: Connection, error: str | None, ids: Sequence[Any] | None, limit: int) -> list[Any]:
        """Read their ids."""
        statement = self._choose[ids is not None]
        return self._first(connection, statement, {**self._values(error, ids or ()), "limit": limit})

    def stuck(self, connection: Connection, ids: Sequence[Any]) -> set[Any]:
        """Tell which of these would be left."""
        if self._stuck is None:
            return set()
        return set(self._first(connection, self._stuck, self._values(None, ids)))

    def requeue(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Moved]:
        """Put these back into the queue."""
        rows = driver.run(connection, self._requeue, self._values(error, ids)).fetchall()
        return [Moved(*row) for row in rows]

    def purge(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Any]:
        """Delete these."""
        return self._first(connection, self._purge, self._values(error, ids))

    def waiting(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are unfinished rows of the queue."""
        return self._first(connection, self._waiting, self._values(None, ids))

    def idle(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are held by no one."""
        return self._first(connection, self._idle, self._values(None, ids))

    def park(self, connection: Connection, ids: Sequence[Any], reason: str) -> list[Any]:
        """Move those that no one holds to the dead letters."""
        return self._first(connection, self._park, self._values(None, ids) | {"reason": storable(reason)})

    def _values(self, error: str | None, ids: Sequence[Any] = ()) -> dict[str, Any]:
        return self._filters(error) | {"ids": self._ids(in_order(ids))}

    def _first(self, connection: Connection, statement: Any, values: Mapping[str, Any]) -> list[Any]:
        return [row[0] for row in driver.run(connection, statement, values).fetchall()]
