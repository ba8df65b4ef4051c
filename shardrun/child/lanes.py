"""Run rows on lanes: a lane one row at a time and in order, lanes side by side where a subscription has several.

one lane of a `def` handler       the child's main thread, shared with other such lanes in order of arrival
several lanes of a `def` handler  a thread for each
lanes of an `async def` handler   tasks of one event loop, which has a thread of its own (event_loop.py)
"""

from __future__ import annotations

import enum
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from shardrun.child import guard
from shardrun.child.call import Call, boot_time
from shardrun.child.endings import UNSTARTED
from shardrun.child.reports import Reports
from shardrun.ring.wire import Frame
from shardrun.ring.words import EACH, EXTENDED, FINAL, RESUME, STOP, lost, running

NANOSECONDS = 1_000_000_000


class Place(enum.Enum):
    """Where a lane's rows run."""

    MAIN_THREAD = enum.auto()
    THREAD = enum.auto()
    EVENT_LOOP = enum.auto()


def places(subscriptions: Sequence[int], is_async: Sequence[bool]) -> list[Place]:
    """Say for each lane, given its subscription, where its rows run."""
    lanes = Counter(subscriptions)

    def place(subscription: int) -> Place:
        if is_async[subscription]:
            return Place.EVENT_LOOP
        return Place.MAIN_THREAD if lanes[subscription] == 1 else Place.THREAD

    return [place(subscription) for subscription in subscriptions]


class Lane:
    """One lane: starts a row or refuses it, has it called, reports it."""

    def __init__(self, index: int, call: Call, coordinator: memoryview[int], reports: Reports) -> None:
        self.call = call
        self._coordinator = coordinator
        self._reports = reports
        self._words = reports.words
        self._running = running(index)
        self._lost = lost(index)
        self._refusing = False

    def take(self, row: Frame) -> None:
        """Carry a row through."""
        began = self.begin(row)
        if began is not None:
            self.end(self.call.run(row, began))

    def begin(self, row: Frame) -> float | None:
        """Say that this row runs, then look whether it may; None means that it was reported as unstarted.

        In this order: the coordinator first forbids starts, then waits a little, then reads what runs. After a refusal all
        rows are refused until the coordinator, which has them all back then, says RESUME: they come again in order.
        """
        if row[0] == RESUME:
            self._refusing = False
            return None
        self._words[self._running] = row[0]
        now = boot_time()
        is_extended = now * NANOSECONDS <= self._coordinator[EXTENDED] and not self.call.is_transactional
        late = now > row[4] and not is_extended
        if not (late or self._refusing or self._coordinator[STOP]):
            return now
        self._refusing = True
        self._words[self._running] = 0
        self._reports.add((row[0], UNSTARTED.code, 0, *UNSTARTED[1:]))
        return None

    def end(self, report: Frame) -> None:
        """Report a row, and only then say that nothing runs: in between a death is blamed on nobody.

        Where keys keep their order over all replicas, nothing follows a row that may go back before the coordinator says so.
        """
        self._reports.add(report)
        self._words[self._running] = 0
        if self.call.keeps_keys:
            reports = report[3] if report[1] == EACH else (report,)
            goes_back = any(each[1] not in FINAL for each in reports) or self._coordinator[self._lost] == report[0]
            self._refusing = self._refusing or goes_back


class Feed(Protocol):
    """Takes rows for lanes that run beside the reader."""

    def put(self, lane: Lane, row: Frame) -> None:
        """Hand over a row; the rows of a lane run in this order."""

    def close(self) -> None:
        """Say that no more rows come."""

    def join(self) -> None:
        """Wait until all rows have been reported."""


class QueueFeed:
    """Rows that wait for one thread; whichever thread calls `run` runs them, in order of arrival."""

    def __init__(self) -> None:
        self._rows: queue.SimpleQueue[tuple[Lane, Frame] | None] = queue.SimpleQueue()

    def put(self, lane: Lane, row: Frame) -> None:
        self._rows.put((lane, row))

    def close(self) -> None:
        self._rows.put(None)

    def run(self) -> None:
        """Run rows until the feed is closed."""
        while (entry := self._rows.get()) is not None:
            lane, row = entry
            lane.take(row)

    def join(self) -> None:
        """Return at once: `run` does not return before the rows are done."""


class ThreadFeed(QueueFeed):
    """Rows that wait for a thread of their own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.run()
        except BaseException:  # No handler's error comes here; without this thread its rows would wait for ever.
            guard.die(self._thread.name)

    def join(self) -> None:
        self._thread.join()
