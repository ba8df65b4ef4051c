"""Claim rows strand by strand on PostgreSQL; see `db/strands.py`.

A strand's guard is an advisory lock of the transaction that claims. Claims run at READ COMMITTED whatever isolation the queue
asks for: each statement behind the guard must see what had been committed by the time the guard was got (R5).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from shardrun.db.postgres import apart, driver, locks_sql, sql, strands_sql
from shardrun.db.postgres.driver import BEGIN, COMMIT, Connection, Step, array_of
from shardrun.db.postgres.fetch import Fetch
from shardrun.db.postgres.locks import NOTHING as LOCKS_NOTHING
from shardrun.db.postgres.locks import RowLockStore
from shardrun.db.postgres.store import NOTHING, PostgresStore
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement
from shardrun.db.strands import Seen, Stranded, Strands
from shardrun.db.table import Column, Layout
from shardrun.errors import ShardrunError, StatementFailed

MOST_GUARDED = 256
"""Strands that one transaction guards. Larger: fewer transactions; smaller: fewer of the server's locks at a time."""

MOST_OF_ONE = 64
"""Rows that one claim takes from a key at most. Larger: a long one goes faster when it is alone; smaller: keys take turns."""

FEWEST_OF_ONE = 8
"""Rows that it may take from each of many. Larger: more that are looked at in vain; smaller: more claims."""

MORE: Mapping[str, Any] = {"strands": "{}", "after": None, "visits": 0, "held": "{}", "most": 0}
"""Parameters of the statements here, under which they claim no row and guard no strand."""

log = logging.getLogger("shardrun")

_names = array_of(Column("name", "text", "text"))


class Line:
    """The statements that look at the strands of one subscription."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.first, self.next = (strands_sql.walk(layout, goes_on) for goes_on in (False, True))
        self.these, self.choose = strands_sql.these(layout), strands_sql.choose(layout)
        self.guard = strands_sql.guard(layout, first_alone=layout.column("locked_until") is None)
        self._ids = array_of(layout.roles["id"])

    def statements(self) -> list[Statement]:
        """List them."""
        return [self.first, self.next, self.these, self.choose, self.guard]

    def values(self, held: Collection[Any], avoided: Iterable[Any], **more: Any) -> dict[str, Any]:
        """Give the values that a look takes."""
        given = {"group": self.layout.group, "avoided": self._ids(avoided), **more}
        return given if self.layout.is_fifo else {"held": self._ids(held), **given}

    def look(
        self, connection: Connection, these: Sequence[str], after: str | None, visits: int, values: Mapping[str, Any]
    ) -> tuple[list[Seen], list[Seen]]:
        """Look at `these` strands, and at the next ones behind `after`."""
        statement = self.first if after is None else self.next
        steps: list[Step] = [(statement, {**values, "after": after, "visits": visits})]
        if these:
            steps.append((self.these, {**values, "strands": _names(these)}))
        walked, *left = (list(map(Seen._make, each.fetchall())) for each in driver.run_all(connection, steps))
        return left[0] if left else [], walked


class PostgresStrandStore(PostgresStore, Stranded):
    """The statements of one subscription whose rows carry a lease and are claimed strand by strand."""

    nothing: ClassVar[Mapping[str, Any]] = {**NOTHING, **MORE}

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self.strands = Strands(self)
        self._line = Line(layout)
        self._claim_these = sql.claim_these(replace(layout, strand=None))
        self._name = name
        self._strand_of: dict[Any, str] = {}  # of the rows that the last `take` chose
        self._chosen: list[Any] = []  # the rows that its last transaction chose
        self._most = FEWEST_OF_ONE  # rows that the last `take` wanted of one key

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        return [*self._line.statements(), self._claim_these, *super().statements()]

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look, without locks, at `these` strands, and at the `visits` next ones behind `after`."""
        values = self._line.values(held, self._around.avoided.ids())
        left, walked = self._line.look(connection, these, after, visits, values)
        full = {_name_of(key) for key in full_keys}
        return _but_for(full, left), _but_for(full, walked)

    def take(self, connection: Connection, strands: Sequence[Any], limit: int, held: Collection[Any]) -> list[Claimed]:
        """Guard strands, choose rows in a new statement, and claim up to `limit` in all; some strands in each transaction."""
        self._strand_of = {}
        self._most = max(FEWEST_OF_ONE, min(MOST_OF_ONE, 2 * limit // max(1, len(strands))))
        rows: list[Claimed] = []
        place = 0
        while place < len(strands) and len(rows) < limit:
            some = strands[place : place + min(self.strands.enough(limit - len(rows)), MOST_GUARDED)]
            place += len(some)
            try:
                rows += self._take_of(connection, some, limit - len(rows), held)
            except ShardrunError as error:
                if not rows:
                    raise
                log.warning("%s: a claim ended early, after %d rows: %s", self._name, len(rows), error)
                break
        return rows

    def strand_of(self, row: Claimed) -> Any:
        """Give the strand of a row of the last claim."""
        return self._strand_of[row.id]

    def _take_of(
        self, connection: Connection, strands: Sequence[str], limit: int, held: Collection[Any]
    ) -> list[Claimed]:
        try:
            return self._claim_of(connection, strands, limit, held)
        except StatementFailed:
            return self._take_one_by_one(connection, strands, limit, held)

    def _take_one_by_one(
        self, connection: Connection, strands: Sequence[str], limit: int, held: Collection[Any]
    ) -> list[Claimed]:
        """Take a row of each strand in a transaction of its own: one that the database refuses keeps its strand alone."""
        rows: list[Claimed] = []
        for strand in strands:
            if len(rows) == limit:
                break
            try:
                rows += self._claim_of(connection, [strand], 1, held)
            except ShardrunError as error:
                if isinstance(error, StatementFailed) and self._chosen:
                    self._around.avoided.refused(self._chosen[0], error)
                elif not rows:
                    raise
                else:  # those that are claimed are delivered
                    log.warning("%s: a claim ended early, after %d rows: %s", self._name, len(rows), error)
                    break
        return rows

    def _claim_of(
        self, connection: Connection, strands: Sequence[str], limit: int, held: Collection[Any]
    ) -> list[Claimed]:
        """Guard, choose, claim and commit."""
        line, self._chosen = self._line, []
        with driver.naming_errors(connection):
            guarded = driver.run_together(connection, [BEGIN, (line.guard, {"strands": _names(strands)})])[1].fetchall()
            if guarded:
                more = {"strands": _names(row[0] for row in guarded), "limit": limit, "most": self._most}
                values = line.values(held, self._around.avoided.ids(), **more)
                found = driver.run(connection, line.choose, values).fetchall()
                self._strand_of |= {id: strand for strand, id in found}
                self._chosen = [id for _, id in found]
            if not self._chosen:
                connection.rollback()
                return []
            return self._write(connection, self._chosen)

    def _write(self, connection: Connection, chosen: list[Any]) -> list[Claimed]:
        """Write the leases of rows and commit; where the database swallows one nothing is written, since others follow it."""
        values = {"limit": len(chosen), "ids": self._ids(chosen), "group": self.layout.group}
        names = list(self.layout.table.columns) if self.layout.row_mode else None
        rows = apart.read(driver.run(connection, self._claim_these, values), names)
        if len(rows) < len(chosen):
            connection.rollback()
            for id in set(chosen) - {row.id for row in rows}:
                self._around.avoided.swallowed(id)
            return []
        rows = with_bodies(connection, self._fetch, rows)
        driver.run(connection, *COMMIT)
        by_id = {row.id: row for row in rows}
        return [by_id[id] for id in chosen]


class RowLockStrandStore(RowLockStore, Stranded):
    """FIFO groups whose rows are held by the transaction that read them; it has the guard, too, until the row is settled."""

    nothing: ClassVar[Mapping[str, Any]] = {**LOCKS_NOTHING, **MORE}

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self.strands = Strands(self)
        self._line = Line(layout)
        self._lock = locks_sql.claim(replace(layout, strand=None), these=True)
        self._guard_again = strands_sql.guard_of(layout)
        self._locked: str | None = None  # the strand of the row that the last `take` locked

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [*self._line.statements(), self._lock, self._guard_again, *super().statements()]

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],  # noqa: ARG002 - lanes by key are refused beside FIFO groups
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look, without locks, at `these` strands, and at the `visits` next ones behind `after`; those guarded are not free."""
        return self._line.look(connection, these, after, visits, self._line.values(held, self._avoided.ids()))

    def take(
        self,
        connection: Connection,
        strands: Sequence[Any],
        limit: int,  # noqa: ARG002 - a transaction holds one strand's row
        held: Collection[Any],
    ) -> list[Claimed]:
        """Guard the first strand that nobody guards and lock its head, in a new statement; else go on to the next."""
        rest, rows = list(strands), list[Claimed]()
        while rest and not rows:
            guard = (self._line.guard, {"strands": _names(rest)})
            guarded = driver.run_together(connection, [BEGIN, guard])[1].fetchone()
            if guarded is None:
                self.let_go(connection)
                break
            self._locked = guarded[0]
            rest = rest[rest.index(guarded[0]) + 1 :]
            rows = self._or_let_go(connection, partial(self._lock_head, connection, guarded[0], held))
        return rows

    def strand_of(self, row: Claimed) -> Any:  # noqa: ARG002
        """Give the strand of the row of the last claim."""
        return self._locked

    def _lock_head(self, connection: Connection, strand: str, held: Collection[Any]) -> list[Claimed]:
        values = self._line.values(held, self._avoided.ids(), strands=_names([strand]), limit=1)
        chosen = [id for _, id in driver.run(connection, self._line.choose, values).fetchall()]
        if not chosen:
            return []
        locked = driver.run(connection, self._lock, {**self._values(1, []), "ids": self._ids(chosen)})
        return with_bodies(connection, self._fetch, apart.read(locked, self._names))

    def _rows_taken_again(
        self, connection: Connection, settlements: Sequence[Settlement], begin: list[Step]
    ) -> set[Any]:
        """Guard the strands of rows again before they are locked again: a row whose strand another has is lost."""
        guards: list[Step] = [(self._guard_again, {"id": one.id}) for one in settlements]
        found = [each.fetchall() for each in driver.run_together(connection, [*begin, *guards])[len(begin) :]]
        guarded = [one for one, rows in zip(settlements, found, strict=True) if rows and rows[0][0]]
        return super()._rows_taken_again(connection, guarded, []) if guarded else set()


def _name_of(key: Any) -> str:
    """Name a strand by its lane key, as the statements name it."""
    return f"\\x{bytes(key).hex()}" if isinstance(key, bytes) else str(key)


def _but_for(full: Collection[str], seen: list[Seen]) -> list[Seen]:
    return (
        [each._replace(is_free=False, seconds=None) if each.strand in full else each for each in seen] if full else seen
    )
