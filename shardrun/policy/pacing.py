"""Decide when a subscription claims, and how many rows: demand, read-ahead, and the wait on an empty table.

The rows that wait in front of a lane are its read-ahead: enough that a lane never waits for the database (about `AHEAD`
seconds of work), none where handlers are slow, so that replicas share slow work fairly.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD = 0.05
"""Seconds of work in front of a lane. Larger: fewer, bigger claims. Smaller: less waits behind a row that turns out slow."""

MOST_AHEAD = 200
"""Rows in front of all lanes of one child. Larger: bigger batches for tiny handlers; more to give back on a stop."""

LARGEST_CLAIM = 250
"""Rows per claim. Larger: cheaper per row on the server, and longer until the first of them starts."""

SMOOTHING = 0.3
"""Weight of the newest measurement of a handler's time. Larger: quicker to follow, and more easily misled by one row."""


def smoothed(average: float | None, measured: float) -> float:
    """Follow the mean seconds that a handler takes."""
    return measured if average is None else average + SMOOTHING * (measured - average)


def read_ahead(average: float | None, lanes_per_child: int) -> int:
    """Say how many rows may wait in front of each lane; none before anything was measured.

    For batches of n rows it says how many batches, given the time of one, and n times the lanes.
    """
    if average is None or average >= AHEAD:
        return 0
    return max(1, min(int(AHEAD / max(average, 1e-7)), MOST_AHEAD // lanes_per_child))


@dataclass(frozen=True, slots=True)
class Demand:
    """What a subscription has room for: `room` rows in all lanes, of `capacity`; `free` lanes have nothing to run."""

    room: int
    capacity: int
    free: int


@dataclass(slots=True)
class Pacing:
    """When one subscription claims next. `poll` is its wait in seconds after a claim that took nothing.

    `together` is how many claims it may have under way at once while rows keep coming (C4 makes it one).
    """

    poll: float
    together: int
    most: int = LARGEST_CLAIM  # rows of one claim
    under_way: int = 0
    asked: int = 0
    drought: bool = True
    not_before: float = 0.0
    one_by_one: bool = False
    claims: int = 0  # answered so far
    early: int = 0  # claims under way that may have looked before what was then committed

    def may_claim(self, spare_connections: int, now: float) -> bool:
        """Tell whether a claim may start now, whatever the demand.

        One beside another starts only while a connection is to spare (C2), and while the last claim took nothing there
        is one at a time (C3).
        """
        if now < self.not_before or spare_connections < 1:
            return False
        return not self.under_way or (not self.drought and self.under_way < self.together)

    def limit(self, demand: Demand, spare_connections: int, now: float) -> int:
        """Say how many rows to claim now, or 0 for none; while rows come that must not wait, for free lanes only (R8)."""
        if not self.may_claim(spare_connections, now):
            return 0
        room = (demand.free if self.one_by_one else demand.room) - self.asked
        if room <= 0:
            return 0
        enough = room * 2 >= min(demand.capacity, self.most)
        return min(room, self.most) if enough or (demand.free and not self.under_way) else 0

    def claiming(self, limit: int) -> None:
        """Note that a claim is sent."""
        self.under_way += 1
        self.asked += limit

    def claimed(self, limit: int, taken: int, careful: bool, now: float, jitter: float) -> None:
        """Note how many rows a claim took that have a place here; `careful` tells that some of them must not wait (R8).

        `jitter` in [-1, 1] spreads the waits of replicas by a tenth of the poll interval.
        """
        self.under_way -= 1
        self.asked -= limit
        self.claims += 1
        self.one_by_one = careful
        self.drought = taken == 0
        if not self._was_early() and self.drought:
            self.not_before = now + self.poll * (1 + jitter / 10)

    def broke(self, limit: int) -> None:
        """Note that a claim failed and took nothing that is known of."""
        self.under_way -= 1
        self.asked -= limit
        self._was_early()

    def wake(self, at: float) -> None:
        """Claim at a time before the poll interval has passed: something may be there."""
        self.not_before = min(self.not_before, at)

    def committed(self) -> None:
        """Claim at once: rows were committed. A claim that was sent before and finds nothing starts no wait."""
        self.early = self.under_way
        self.wake(0.0)

    def _was_early(self) -> bool:
        was, self.early = self.early > 0, max(0, self.early - 1)
        return was
