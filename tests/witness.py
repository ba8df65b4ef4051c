"""What handlers did, kept outside the database under test so that kills and rollbacks cannot remove it.

Each event is one line, written with one `os.write` to a file opened with O_APPEND: whole, whoever else writes and dies.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

START, END, DIED = "start", "end", "died"


class Event(NamedTuple):
    """The start or the end of one run of a handler, or a process's death; `time` is time.monotonic()."""

    what: str
    row: Any
    key: Any
    attempt: int
    pid: int
    time: float


class Run(NamedTuple):
    """A run's first event, and when it ended: infinite for one that never did and whose process nobody saw die."""

    start: Event
    end: float


@dataclass(frozen=True)
class Witness:
    """A file of events. Handlers write to it; tests read it."""

    path: Path

    def start(self, row: Any, key: Any = None, attempt: int = 1) -> None:
        """Write that a run of `row` begins in this process."""
        self._write(START, row, key, attempt, os.getpid())

    def end(self, row: Any, key: Any = None, attempt: int = 1) -> None:
        """Write that a run of `row` ends in this process."""
        self._write(END, row, key, attempt, os.getpid())

    def note(self, what: str, row: Any, key: Any = None, attempt: int = 1) -> None:
        """Write how a run of `row` ends in this process, in a word of the test's own."""
        self._write(what, row, key, attempt, os.getpid())

    def died(self, pid: int) -> None:
        """Write that a process is dead, and with it all that it ran."""
        self._write(DIED, None, None, 0, pid)

    def kill(self, pid: int) -> None:
        """Kill a process with SIGKILL, and write its death first: nothing may take up its rows before that."""
        self.died(pid)
        os.kill(pid, signal.SIGKILL)

    def die(self) -> NoReturn:
        """Kill this process, as a handler that crashes does."""
        self.kill(os.getpid())
        raise AssertionError("still alive after SIGKILL")

    def _write(self, *fields: Any) -> None:
        line = json.dumps([*fields, time.monotonic()]) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        """Read all events, in the order of writing."""
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_text().rpartition(
            "\n"
        )  # a reader may see the half of a line that is being written
        return [Event(*json.loads(line)) for line in whole.splitlines()]

    def rows(self) -> set[Any]:
        """List the rows that ever started."""
        return {event.row for event in self.events() if event.what == START}

    def runs(self, row: Any) -> int:
        """Count the starts of a row."""
        return sum(event.what == START and event.row == row for event in self.events())

    def ended(self, row: Any) -> int:
        """Count the ends of a row."""
        return sum(event.what == END and event.row == row for event in self.events())

    def order(self, key: Any) -> list[Any]:
        """List a key's rows in the order of their starts."""
        return [event.row for event in self.events() if event.what == START and event.key == key]

    def overlap(self, key: Any) -> int:
        """Count how many runs of a key were open at once, at most."""
        return most_at_once([run for run in intervals(self.events()) if run.start.key == key])

    def overlap_of_row(self, row: Any) -> int:
        """Count how many runs of a row were open at once, at most."""
        return most_at_once([run for run in intervals(self.events()) if run.start.row == row])


def intervals(events: list[Event]) -> list[Run]:
    """Pair each start with its end, or with the death of its process."""
    opened: dict[tuple[int, Any, int], Event] = {}
    runs: list[Run] = []
    for event in events:
        name = (event.pid, event.row, event.attempt)
        if event.what == START:
            opened[name] = event
        elif event.what == END:
            runs.append(Run(opened.pop(name), event.time))
        else:
            ended = [name for name in opened if name[0] == event.pid]
            runs += [Run(opened.pop(name), event.time) for name in ended]
    return runs + [Run(start, float("inf")) for start in opened.values()]


def most_at_once(runs: list[Run]) -> int:
    """Count the runs that were open at once, at most; one that ends when another starts does not overlap it."""
    changes = sorted([(run.start.time, 1) for run in runs] + [(run.end, -1) for run in runs])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
