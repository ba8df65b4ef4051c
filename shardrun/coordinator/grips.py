"""A connection that is kept for the rows which it holds, from the claim until it is sure to hold nothing any more."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

from shardrun.coordinator import clock
from shardrun.coordinator.replica import Replica
from shardrun.coordinator.service import Ended
from shardrun.coordinator.threads import Done, Pin, Work
from shardrun.db.store import Connection
from shardrun.errors import ConnectionLost, ShardrunError
from shardrun.policy.leases import Held

T = TypeVar("T")


class State(enum.Enum):
    """A grip's life; `Grip.go_down` is its transition function, and it only goes down this list."""

    TOGETHER = enum.auto()  # its rows share a transaction: they are settled when the last of them has ended
    APART = enum.auto()  # each is settled by itself: they have locks of their own, or were refused together
    LEAVING = enum.auto()  # no row of it is sure, and what it may hold is being let go of: nothing more is sent
    GONE = enum.auto()  # its connection is broken, or serves others


class Grip:
    """A pinned connection with the rows that it holds; `lost` is called when the session is found to have ended."""

    def __init__(
        self, replica: Replica, pin: Pin, state: State, rows: list[Held], lost: Callable[[Grip, ShardrunError], None]
    ) -> None:
        self.state = state
        self.rows = rows  # those that it still holds, and those of which an answer will tell
        self.parked: list[Ended] = []  # rows that wait to be settled with the others, or for a conflict to pass
        self.holds_more = False  # than its rows: that is let go of in the end
        self.pin = pin
        self.since = clock.now()
        self.is_named = False  # as one that is held for long
        self._replica = replica
        self._lost = lost
        self._pending = 0
        self._is_watched = False

    @property
    def is_sure(self) -> bool:
        """Tell whether it is known to hold its rows, so that they can be settled on it."""
        return self.state in (State.TOGETHER, State.APART)

    def go_down(self, state: State) -> bool:
        """Take a step down; False where it is there, or beyond."""
        if self.state.value >= state.value:
            return False
        self.state = state
        if state is State.GONE:
            self._look_away()
            self.pin.release()
        return True

    def run(self, work: Work[T], done: Done[T]) -> None:
        """Run a statement on the connection."""
        self._look_away()
        self._pending += 1

        def then(result: T | ShardrunError) -> None:
            self._pending -= 1
            done(result)
            self.look()

        self.pin.submit(work, then)

    def look(self) -> None:
        """Watch the socket while nothing runs."""
        idle = self.is_sure and not (self._pending or self._is_watched)
        if idle and self.pin.descriptor is not None:
            self._is_watched = True
            self._replica.events.watch(self.pin.descriptor, self._stirred)

    def _look_away(self) -> None:
        if self._is_watched and self.pin.descriptor is not None:
            self._is_watched = False
            self._replica.events.unwatch(self.pin.descriptor)

    def _stirred(self) -> None:
        """See what the server has said unasked: mostly that the session has ended."""
        is_alive = self._replica.database.is_alive

        def work(connection: Connection) -> None:
            if not is_alive(connection):
                raise ConnectionLost("the server has ended the session that held a row")

        self.run(work, lambda result: self._lost(self, result) if isinstance(result, ShardrunError) else None)
