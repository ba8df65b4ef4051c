"""Count a queue's rows on PostgreSQL, and act on its dead letters: rows in and out of `status` and `dead`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from shardrun.db import check
from shardrun.db.operate import LOOKED, Count, Counts, Failure, Failures, Moved, Sessions, counted, not_an_id
from shardrun.db.postgres import dead, driver, status
from shardrun.db.postgres.driver import Connection
from shardrun.db.settling import in_order, storable
from shardrun.db.table import Layout


def counts(connection: Connection, layout: Layout) -> Counts:
    """Count what a queue holds for one subscription, within bounds."""
    indexed = not check.missing_index(layout)
    values = {"group": layout.group, "dead_group": layout.dead_group}
    statement = status.counts(layout) if indexed else status.counts_by_id(layout)
    *numbers, oldest = driver.run(connection, statement, values).fetchall()[0]
    due, in_work, later = counted(*numbers)
    buried = status.dead(layout, indexed)
    return Counts(
        due=due,
        in_work=in_work if "locked_until" in layout.roles else None,
        later=later if "retry_after" in layout.roles else None,
        dead=None if buried is None else Count(*driver.run(connection, buried, values).fetchall()[0]),
        oldest=oldest,
        indexed=indexed,
    )


def sessions(connection: Connection) -> Sessions:
    """Read the server's limit of connections and who uses them."""
    with driver.naming_errors(connection):
        return Sessions(*connection.execute(status.SESSIONS).fetchall()[0])


class PostgresDeadLetters:
    """The dead letters of one subscription: its statements, built once; holds no state of its own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ids = driver.array_of(layout.roles["id"])
        self._failures = dead.failures(layout)
        self._choose = {named: dead.choose(layout, named) for named in (False, True)}
        self._stuck = dead.stuck(layout)
        self._requeue = dead.requeue(layout)
        self._purge = dead.purge(layout)

    @property
    def knows_errors(self) -> bool:
        """Tell whether there is a last_error to filter by."""
        return "last_error" in self._layout.roles

    def id_of(self, text: str) -> Any:
        """Read an id as a person writes it."""
        column = self._layout.roles["id"]
        try:
            if column.kind == "int":
                return int(text)
            return uuid.UUID(text) if column.kind == "uuid" else storable(text)
        except ValueError:
            raise not_an_id(text, column) from None

    def failures(self, connection: Connection, error: str | None) -> Failures:
        """Group them by error."""
        rows = driver.run(connection, self._failures, self._values(error)).fetchall()
        listed = [Failure(*row[:5]) for row in rows]
        errors, seen = rows[0][5:] if rows else (0, 0)
        return Failures(listed, errors, seen, seen == LOOKED)

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

    def _values(self, error: str | None, ids: Sequence[Any] = ()) -> dict[str, Any]:
        layout = self._layout
        return {
            "group": layout.group,
            "dead_group": layout.dead_group,
            "error": storable(error),
            "ids": self._ids(in_order(ids)),
        }

    def _first(self, connection: Connection, statement: Any, values: Mapping[str, Any]) -> list[Any]:
        return [row[0] for row in driver.run(connection, statement, values).fetchall()]
