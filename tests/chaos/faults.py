"""The faults of processes. Each is a small class: what it does, how it is healed, and how soon all is well again.

What a fault excuses it writes down with `field.mark`; the death of a child is in the witness already.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tests.chaos.cells import Cell
from tests.chaos.field import Field
from tests.chaos.history import CHILD_STOP, STOP

LEASES = 3
"""So many of them a stopped process stays stopped."""


class Fault(ABC):
    """Something that goes wrong. `bound` is how soon, in seconds, what `recovery` names must have come."""

    name: ClassVar[str]
    recovery: ClassVar[str]
    bound: ClassVar[float]
    replicas: ClassVar[int] = 1
    hits: ClassVar[int] = 3
    through_proxy: ClassVar[bool] = False
    settings: ClassVar[dict[str, Any]] = {}

    def fits(self, cell: Cell) -> bool:
        """Tell whether it makes sense in a cell."""
        return True

    @abstractmethod
    def inject(self, field: Field) -> None:
        """Do the harm."""

    def heal(self, field: Field) -> None:
        """Undo it."""
        return None

    @abstractmethod
    def recovered(self, field: Field) -> float | None:
        """Wait until all is well; returns how many seconds that took, None where nothing had been hit."""

    def hit(self, field: Field) -> None:
        """Do the harm once, and measure."""
        field.flows()
        field.pause(field.chance.uniform(0, 0.3))
        self.inject(field)
        self.heal(field)
        seconds = self.recovered(field)
        if seconds is not None:
            field.past.recoveries.append(seconds)


class ChildKilled(Fault):
    """SIGKILL for a child at a random moment."""

    name, recovery, bound = "child killed", "death to redelivery of its row", 1.0
    hits = 4

    def inject(self, field: Field) -> None:
        """Kill a child that has run rows, mostly while it runs one."""
        replica, child = field.victim()
        if field.chance.random() < 0.8:
            field.until(lambda: field.opened(child.pid))
        replica.kill_child(child)
        self.pid = child.pid

    def recovered(self, field: Field) -> float | None:
        """Wait until the row that ran is started again; there may have been none."""
        row, died = field.opened(self.pid), field.death(self.pid)
        if row is None:
            return None
        started: float = field.until(lambda: field.started_again(row.row, died))
        return started - died


class HandlerKillsItself(Fault):
    """SIGKILL in the handler, after its write."""

    name, recovery, bound = "child killed in its handler", "death to redelivery of its row", 1.0

    def inject(self, field: Field) -> None:
        """Insert a row that kills its child once."""
        (self.row,) = field.feed({"do": "die once"})

    def recovered(self, field: Field) -> float | None:
        """Wait until the row is started again."""
        first: float = field.until(lambda: field.started_again(self.row, 0))
        second: float = field.until(lambda: field.started_again(self.row, first))
        pid = next(each.pid for each in field.events() if each.row == self.row)
        return second - field.death(pid)


class CoordinatorKilled(Fault):
    """SIGKILL for a coordinator whose children are busy; another replica goes on."""

    name, recovery, bound = "coordinator killed", "death to the end of its last child", 2.0
    replicas = 2

    def inject(self, field: Field) -> None:
        """Kill one."""
        self.seconds = field.crash(field.chance.choice(field.live))

    def heal(self, field: Field) -> None:
        """Start another in its place."""
        field.start()

    def recovered(self, field: Field) -> float | None:
        """Tell how long its children lived on."""
        return self.seconds


class Stopped(Fault):
    """SIGSTOP for three leases."""

    recovery, bound = "SIGCONT to its next row", 2.0
    replicas = 2
    hits = 1
    what: ClassVar[str]

    def inject(self, field: Field) -> None:
        """Stop it in the middle of a row and let the time pass; the others go on."""
        self.replica, child = field.victim()
        field.until(lambda: field.opened(child.pid))
        family = self.replica.pids()
        stopped = {CHILD_STOP: [child.pid], STOP: [self.replica.pid]}.get(self.what, [self.replica.pid, *family])
        self.hit_pids = {child.pid} if self.what == CHILD_STOP else set(family)
        begin = time.monotonic()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        field.pause(LEASES * field.settings["lease"])
        for pid in stopped:
            _continue(pid)
        self.continued = time.monotonic()
        field.mark(CHILD_STOP if self.what == CHILD_STOP else STOP, begin, pids=self.hit_pids)

    def recovered(self, field: Field) -> float | None:
        """Wait until its replica has started a row again."""

        def look() -> float | None:
            pids = set(self.replica.pids())
            times = (each.time for each in field.events() if each.what == "start" and each.pid in pids)
            return next((each for each in times if each > self.continued), None)

        started: float = field.until(look)
        return started - self.continued


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # its coordinator has ended it meanwhile, for its timeout


class ChildStopped(Stopped):
    """SIGSTOP for a child."""

    name, what = "child stopped for three leases", CHILD_STOP


class CoordinatorStopped(Stopped):
    """SIGSTOP for a coordinator; its children run what they have."""

    name, what = "coordinator stopped for three leases", STOP


class ReplicaStopped(Stopped):
    """SIGSTOP for a coordinator and its children, as a suspended machine does."""

    name, what = "replica stopped for three leases", "all"


class RollingRestart(Fault):
    """SIGTERM for one replica after the other under load; a new one takes over first, where two may share the table."""

    name, recovery, bound = "rolling restart", "SIGTERM to exit", 3.0
    replicas = 2

    def inject(self, field: Field) -> None:
        """Start a new one, and stop the oldest."""
        if field.cell.may_share:
            field.start()
        self.seconds = field.stop(field.live[0])
        if not field.live:
            field.start()

    def recovered(self, field: Field) -> float | None:
        """Tell how long it took to stop."""
        return self.seconds


class Poison(Fault):
    """Rows that kill their children, never end, or fail in ways that are hard to write down."""

    name, recovery, bound = "poison rows", "first run to dead letter, of all six", 30.0
    hits = 1
    settings: ClassVar[dict[str, Any]] = {"lease": 4, "timeout": 1.5, "most": 3}
    kinds = ("os._exit", "segfault", "endless loop", "recursion", "NUL in its error", "lone surrogates in its error")

    def inject(self, field: Field) -> None:
        """Insert one of each, in random order."""
        kinds = list(self.kinds)
        field.chance.shuffle(kinds)
        self.rows = set(field.feed(*({"do": kind} for kind in kinds)))
        field.past.poison |= self.rows

    def recovered(self, field: Field) -> float | None:
        """Wait until all are dead letters; nothing is inserted meanwhile, since rows that were never put off come first."""
        field.feeding = False
        field.until(lambda: self.rows <= set(field.site.dead()), 60 * field.patience)
        field.feeding = True
        first = min(each.time for each in field.events() if each.row in self.rows)
        seconds: float = time.monotonic() - first
        return seconds


PROCESS_FAULTS: list[type[Fault]] = [
    ChildKilled,
    HandlerKillsItself,
    CoordinatorKilled,
    ChildStopped,
    CoordinatorStopped,
    ReplicaStopped,
    RollingRestart,
    Poison,
]
