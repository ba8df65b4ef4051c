"""Claim rows that keep an order over all replicas, strand by strand.

A strand is the rows of one FIFO group (`fifo=True`), or of one partition key under `key_scope="cluster"`. Rows of a strand
stand in this order: those that have begun (their `attempt` is above 0), then the others; each by `Layout.strand_order`.

FIFO             a strand is free while none of its rows is held and none that has begun is put off; its head is the first
                 row in order that has begun or is due, and one row is claimed
key_scope        a row is claimed only if each unfinished row before it is held by this replica, or claimed with it, and no row
                 of its key by another

    look: which strands are free, without locks -> take: guard a strand, then, in a new statement, look again and claim (R5, R6)

A claim looks at strands that a row of this replica has just left, and at some others in turn, from where the last claim has
ended: so a thousand that are blocked slow none that is not, and none is looked at again before its turn. Rows that have no
strand, their column being NULL, are claimed as in any table.
"""

from __future__ import annotations

import heapq
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, NamedTuple, Protocol

from shardrun.db.store import Claimed, Connection, Store
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError
from shardrun.queue import Form

FEWEST, MOST_AT_ONCE = 8, 4096
"""Strands that one look visits, behind those that were left. Larger: fewer looks past blocked ones; smaller: less in vain."""

MOST_VISITED = 20_000
"""Strands that a claim visits before it gives up for now. Larger: a free one behind more blocked ones is found at once.
Smaller: less work on a table where all are blocked."""

LONGEST = 1.0
"""Seconds after which a claim that has found nothing gives up for now. Larger: a stop may wait for it for longer."""

LEFT_AT_ONCE = 64
"""Strands that were left which one look visits at least. Larger: longer statements; smaller: more of them."""

GUARDED = 0.05
"""Seconds until a strand that seemed free and was not, as while another replica guards it, is looked at again. Larger: it
waits for longer. Smaller: more looks in vain."""

REST = 0.5
"""Seconds after a claim that found no strand free in which the next ones visit few. Larger: new rows of another process in a
table with many strands wait for longer. Smaller: where nearly all are blocked, these are looked at more often."""

MOST_REMEMBERED = 10_000
"""Strands that are remembered as left, or as falling due. Beyond them strands are found in their turn."""

log = logging.getLogger("shardrun")


class Seen(NamedTuple):
    """A strand that was looked at."""

    strand: Any
    is_free: bool
    seconds: float | None = None  # until a row that has begun falls due, where that is what it waits for


class Verbs(Protocol):
    """What a database does for a claim of strands."""

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look, without locks, at `these` strands, and at the `visits` next ones behind `after` in the database's order
        (None: from the first); fewer than `visits` say that there is none behind them.

        `full_keys` are lane keys of strands that are not free, whatever their rows say; `held` are the ids of rows that this
        replica holds.
        """

    def take(self, connection: Connection, strands: Sequence[Any], limit: int, held: Collection[Any]) -> list[Claimed]:
        """Guard strands that nobody else guards, look at them again in a new statement, and claim up to `limit` rows in all.

        Rows come strand by strand, each in order. A guard is let go of behind the COMMIT; under row locks it holds as long
        as the transaction, and the first strand that gives a row is the only one.
        """

    def strand_of(self, row: Claimed) -> Any:
        """Give the strand of a row that `take` returned, as `look` names it."""


class StrandStore(Store, Protocol):
    """The statements of one subscription whose claims go by strands."""

    strands: Strands

    def claim_strands(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], held: Collection[Any]
    ) -> list[Claimed]:
        """Take up to `limit` rows; `held` are the ids of all rows that this replica holds. One claim at a time (C4)."""


@dataclass(slots=True)
class Strands:
    """Where the claims of one subscription look next."""

    verbs: Verbs
    after: Any | None = None  # the strand where the last claim ended
    left: dict[Any, None] = field(default_factory=dict)  # strands that a row of ours has left, in that order
    due: list[tuple[float, int, Any]] = field(default_factory=list)  # strands that wait for a time, as a heap
    due_at: dict[Any, float] = field(default_factory=dict)  # when each of them does first
    strand_of: dict[Any, Any] = field(default_factory=dict)  # of the rows that were claimed and are held
    rows_each: float = 1.0  # that the strands of the last claim gave
    walk_is_enough: bool = False  # it was for the last claim: those that were left come in their turn
    numbered: int = 0
    rests_until: float = (
        0.0  # no strand was free a moment ago: only those that were left, and a few others, are looked at
    )

    def claim(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], held: Collection[Any]
    ) -> list[Claimed]:
        """Take up to `limit` rows; fewer say nothing of what is there, none says that no strand is free."""
        self._note_left(held)
        began, visits, visited, whole = monotonic(), max(FEWEST, 2 * self.enough(limit)), 0, self.after is None
        while True:
            these = [] if self.walk_is_enough else self._next_left(max(limit, LEFT_AT_ONCE))
            left, walked = self.verbs.look(connection, these, self.after, visits, full_keys, held)
            rows, last = self._take(connection, walked, left, limit, held)
            self.walk_is_enough = last is not None
            at_end = len(walked) < visits and last is None
            self.after = last if last is not None else None if at_end else walked[-1].strand
            for seen in left:
                if seen.seconds is not None:
                    self._add_due(seen.strand, seen.seconds)
            if rows:
                return rows
            if at_end and whole:
                self.left.clear()  # they have been walked to
            visited += len(walked) + len(left)
            rests = monotonic() < self.rests_until
            if not self.left and (rests or (at_end and whole)):
                break
            if visited >= MOST_VISITED or monotonic() > began + LONGEST:
                break
            whole = whole or at_end
            visits = FEWEST if rests else min(4 * visits, MOST_AT_ONCE)
        if not rests:
            self.rests_until = monotonic() + REST
        return []

    def enough(self, rows: int) -> int:
        """Say how many strands are likely to give so many rows, by those of the last claim."""
        return 1 + int(rows / self.rows_each)

    def wake(self) -> None:
        """Look at all strands again: there are new rows."""
        self.rests_until = 0.0

    @property
    def next_due(self) -> float | None:
        """Say in how many seconds a remembered strand wants to be looked at, if any does."""
        return max(0.0, self.due[0][0] - monotonic()) if self.due else None

    def _take(
        self, connection: Connection, walked: list[Seen], left: list[Seen], limit: int, held: Collection[Any]
    ) -> tuple[list[Claimed], Any | None]:
        """Claim from what seemed free, in turn; tells also behind which strand the next walk begins, if not behind all."""
        free = {seen.strand: None for seen in walked if seen.is_free}
        wanted = list(free | {seen.strand: None for seen in left if seen.is_free})
        rows = self.verbs.take(connection, wanted, limit, held) if wanted else []
        self.strand_of |= {row.id: self.verbs.strand_of(row) for row in rows}
        taken = {self.strand_of[row.id] for row in rows}
        self.rows_each = len(rows) / len(taken) if taken else 1.0
        tried = len(wanted)
        if len(rows) >= limit:
            tried = 1 + max(number for number, strand in enumerate(wanted) if strand in taken)
        for strand in wanted[:tried]:
            if strand not in taken:
                self._add_due(strand, GUARDED)
        for strand in wanted[tried:]:
            if strand not in free:  # the others are walked to again
                self._add_left(strand)
        return rows, wanted[tried - 1] if tried < len(free) else None

    def _note_left(self, held: Collection[Any]) -> None:
        """Find the strands that rows of ours have left since the last claim, and those that fall due by now."""
        for id in [id for id in self.strand_of if id not in held]:
            self._add_left(self.strand_of.pop(id))
        now = monotonic()
        while self.due and self.due[0][0] <= now:
            at, _, strand = heapq.heappop(self.due)
            if self.due_at.get(strand) == at:
                del self.due_at[strand]
                self._add_left(strand)

    def _next_left(self, limit: int) -> list[Any]:
        these = list(islice(self.left, limit))
        for strand in these:
            del self.left[strand]
        return these

    def _add_left(self, strand: Any) -> None:
        if len(self.left) < MOST_REMEMBERED:
            self.left[strand] = None

    def _add_due(self, strand: Any, seconds: float) -> None:
        """Remember when to look at a strand again: at the first of the times that are noted for it."""
        at = monotonic() + seconds
        if len(self.due) < MOST_REMEMBERED and at < self.due_at.get(strand, inf):
            self.numbered += 1
            self.due_at[strand] = at
            heapq.heappush(self.due, (at, self.numbered, strand))


class Stranded(ABC):
    """What a store whose claims go by strands does in the same way on every database."""

    layout: Layout
    strands: Strands

    @abstractmethod
    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take rows that have no strand, as any table's rows are taken."""

    def claim_strands(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], held: Collection[Any]
    ) -> list[Claimed]:
        """Take up to `limit` rows of strands, then of those that have none."""
        rows = self.strands.claim(connection, limit, full_keys, held)
        left = 0 if rows and self.layout.form is Form.ROW_LOCK else limit - len(rows)
        if left and self.layout.roles[str(self.layout.strand)].nullable:
            try:
                rows += self.claim(connection, left, full_keys)
            except ShardrunError as error:
                if not rows:
                    raise
                log.warning("%s: a claim ended early, after %d rows: %s", self.layout.table.name, len(rows), error)
        return rows
