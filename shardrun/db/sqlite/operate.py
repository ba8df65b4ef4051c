"""Count a queue's rows on SQLite, and act on its dead letters: rows in and out of `status` and `dead`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from shardrun.db import check
from shardrun.db.buried import Letters
from shardrun.db.operate import BATCH, Blocked, Counts, Failures, Moved, blocked_of, counts_of, failures_of
from shardrun.db.settling import in_order, storable
from shardrun.db.sqlite import dead, driver, status
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout


def counts(connection: sqlite3.Connection, layout: Layout) -> Counts:
    """Count what a queue holds for one subscription, within bounds."""
    indexed = not check.missing_index(layout)
    buried = status.dead(layout, indexed)

    def row(statement: Statement) -> tuple[Any, ...]:
        values = [getattr(layout, name) for name in statement.parameters]
        found: tuple[Any, ...] = connection.execute(statement.text, values).fetchone()
        return found

    with driver.naming_errors(connection):
        along = status.counts if layout.strand is None else status.counts_in_order
        seen, held, later_seen, due_more, later_more, oldest = row(
            along(layout) if indexed else status.counts_by_id(layout)
        )
        dead_count = None if buried is None else row(buried)
    looked = (seen, held, later_seen, bool(due_more), bool(later_more))
    return counts_of(layout, looked, dead_count, oldest, indexed)


def blocked(connection: sqlite3.Connection, layout: Layout) -> Blocked:
    """Find the groups or keys that wait for a row that has failed."""
    statement = status.blocked(layout)
    with driver.naming_errors(connection):
        return blocked_of(connection.execute(statement.text, [layout.group][: len(statement.parameters)]).fetchall())


class SqliteDeadLetters(Letters):
    """The dead letters of one subscription: its statements, built once; holds no state of its own."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._failures = dead.failures(layout)
        self._choose_all = dead.choose(layout, 0)
        self._choose = dead.choose(layout, BATCH)
        self._stuck = dead.stuck(layout, BATCH)
        self._requeue = dead.requeue(layout, BATCH)
        self._remove = dead.remove(layout, BATCH)
        self._purge = dead.purge(layout, BATCH)
        self._waiting, self._idle = dead.waiting(layout, BATCH), dead.idle(layout, BATCH)
        self._park, self._parked = dead.park(layout, BATCH), dead.parked(layout, BATCH)

    def _id_of(self, text: str, column: Column) -> Any:
        return int(text) if column.kind == "int" else storable(text)

    def failures(self, connection: sqlite3.Connection, error: str | None) -> Failures:
        """Group them by error."""
        with driver.naming_errors(connection):
            return failures_of(connection.execute(self._failures.text, self._filters(error)).fetchall())

    def choose(
        self, connection: sqlite3.Connection, error: str | None, ids: Sequence[Any] | None, limit: int
    ) -> list[Any]:
        """Read their ids."""
        with driver.naming_errors(connection):
            if ids is None:
                return _first(connection, self._choose_all, self._filters(error) | {"limit": limit})
            values = self._filters(error) | {"limit": limit}
            return [one for named in _pieces(ids) for one in _first(connection, self._choose, values | named)][:limit]

    def stuck(self, connection: sqlite3.Connection, ids: Sequence[Any]) -> set[Any]:
        """Tell which of these would be left."""
        if self._stuck is None:
            return set()
        with driver.naming_errors(connection):
            return {
                one for named in _pieces(ids) for one in _first(connection, self._stuck, self._filters(None) | named)
            }

    def requeue(self, connection: sqlite3.Connection, ids: Sequence[Any], error: str | None) -> list[Moved]:
        """Put these back into the queue."""
        moved: list[Moved] = []
        with driver.writing(connection):
            for named in _pieces(in_order(ids)):
                rows = connection.execute(self._requeue.text, self._filters(error) | named).fetchall()
                moved += [Moved(*row) for row in rows]
            if self._remove is not None:
                for named in _pieces([one.id for one in moved]):
                    connection.execute(self._remove.text, named)
        return moved

    def purge(self, connection: sqlite3.Connection, ids: Sequence[Any], error: str | None) -> list[Any]:
        """Delete these."""
        with driver.writing(connection):
            values = self._filters(error)
            return [one for named in _pieces(ids) for one in _first(connection, self._purge, values | named)]

    def waiting(self, connection: sqlite3.Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are unfinished rows of the queue."""
        with driver.naming_errors(connection):
            return self._found(connection, self._waiting, ids)

    def idle(self, connection: sqlite3.Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are held by no one."""
        with driver.naming_errors(connection):
            return self._found(connection, self._idle, ids)

    def park(self, connection: sqlite3.Connection, ids: Sequence[Any], reason: str) -> list[Any]:
        """Move those that no one holds to the dead letters."""
        values = self._filters(None) | {"reason": storable(reason)}
        with driver.writing(connection):
            found = self._found(connection, self._idle, in_order(ids))
            for named in _pieces(found):
                connection.execute(self._park.text, values | named)
                if self._parked is not None:
                    connection.execute(self._parked.text, named)
        return found

    def _found(self, connection: sqlite3.Connection, statement: Statement, ids: Sequence[Any]) -> list[Any]:
        values = self._filters(None)
        return [one for named in _pieces(ids) for one in _first(connection, statement, values | named)]


def _pieces(ids: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Give a list's ids as parameters, BATCH of them at a time, filled up with NULL."""
    for start in range(0, len(ids), BATCH):
        piece = [*ids[start : start + BATCH], *[None] * (start + BATCH - len(ids))]
        yield {f"id{number}": value for number, value in enumerate(piece)}


def _first(connection: sqlite3.Connection, statement: Statement, values: dict[str, Any]) -> list[Any]:
    return [row[0] for row in connection.execute(statement.text, values).fetchall()]
