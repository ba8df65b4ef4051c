"""The one checker of all cells and faults: eight invariants over what a round left behind, and the few excuses there are.

An excuse is a fault that was injected and that the documents name: nothing else explains a second run, an overlap or a lost
row. A connection that breaks excuses nothing under a plain lease, which is held without one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.cells import EVERYWHERE, IN_A_REPLICA, LEASE
from tests.chaos.history import CHILD_STOP, CONNECTION, CRASH, STOP, History, Window
from tests.witness import DIED, END, Run, intervals

INVARIANTS = {
    1: "no row lost",
    2: "transactional effects exactly once",
    3: "each extra run explained by a fault",
    4: "per key no overlap and no step back",
    5: "settled only by the holder",
    6: "recovery within the bound",
    7: "connections never above the limit",
    8: "nothing left after stop",
}

UNSETTLED = 1.0
"""Seconds, generous, that a row's settlement may still be on its way after its handler has ended."""


class Breach(NamedTuple):
    """An invariant that did not hold, and what shows it."""

    invariant: int
    text: str

    def __str__(self) -> str:
        return f"{INVARIANTS[self.invariant]}: {self.text}"


def check(history: History) -> list[Breach]:
    """Judge a round by all eight invariants."""
    found: list[Breach] = []
    judge = Judge(history)
    for number, look in enumerate(
        (
            judge.lost,
            judge.effects,
            judge.extra_runs,
            judge.order,
            judge.holders,
            judge.recovery,
            judge.over,
            judge.left,
        ),
        1,
    ):
        found += [Breach(number, text) for text in look()]
    return found


class Judge:
    """One method for each invariant; each tells what is wrong."""

    def __init__(self, history: History) -> None:
        self.past = history
        self.died = {event.pid: event.time for event in history.events if event.what == DIED}
        self.runs = sorted((self._ended(run) for run in intervals(history.events)), key=lambda run: run.start.time)
        self.of_row: defaultdict[int, list[Run]] = defaultdict(list)
        self.last_of_pid: dict[int, Run] = {}
        for run in self.runs:
            self.of_row[run.start.row].append(run)
            self.last_of_pid[run.start.pid] = run

    def _ended(self, run: Run) -> Run:
        """Give a run that was cut short by its timeout the end that it had at the earliest; nobody saw that child die."""
        if run.end == float("inf") and self.past.timeout:
            return Run(run.start, run.start.time + self.past.timeout)
        return run

    def _released(self, run: Run) -> float:
        """Say until when a run must have its row to itself: locks that a coordinator holds go as it dies, its children just
        after (invariant 6 says how soon).
        """
        cell = self.past.cell
        if cell.form == LEASE or cell.transactional or run.end != self.died.get(run.start.pid):
            return run.end
        kills = (each.begin for each in self.past.windows if each.what == CRASH and run.start.pid in (each.pids or ()))
        return min(run.end, *kills, run.end)

    def lost(self) -> Iterator[str]:
        """1: each row has ended well, or is poison and a dead letter; the table is empty."""
        past = self.past
        ended = {event.row for event in past.events if event.what == END}
        if past.left:
            yield f"{past.left} rows still in the table"
        if missing := past.rows - past.poison - ended:
            yield f"never ended: {shown(missing)}"
        if set(past.dead) != past.poison:
            yield f"dead letters {shown(set(past.dead) ^ past.poison)} are not as they should be"
        if strange := ended - past.rows:
            yield f"rows that nobody inserted: {shown(strange)}"

    def effects(self) -> Iterator[str]:
        """2: each row that ended well has its effect once."""
        if not self.past.cell.transactional:
            return
        wanted = self.past.rows - self.past.poison
        wrong = {row: count for row, count in self.past.effects.items() if count != 1 or row not in wanted}
        if wrong or wanted - set(self.past.effects):
            yield f"effects by row {dict(sorted(wrong.items())[:5])}, missing {shown(wanted - set(self.past.effects))}"

    def extra_runs(self) -> Iterator[str]:
        """3: a row runs again only because of a fault that was injected; poison exactly as often as it may."""
        for row, runs in self.of_row.items():
            if row in self.past.poison:
                if len(runs) != self.past.most:
                    yield f"poison row {row} ran {len(runs)} times, not {self.past.most}"
                continue
            for run in runs[:-1]:
                if self.excuse(run) is None:
                    yield f"row {row} ran {len(runs)} times, and nothing explains the end of {told(run)}"

    def excuse(self, run: Run) -> str | None:
        """Say which fault explains that a run was not a row's last."""
        pid = run.start.pid
        crashed = self._window(run, CRASH)
        if crashed:
            return CRASH
        if pid in self.died and self.last_of_pid[pid] is run and run.end >= self.died[pid] - UNSETTLED:
            return DIED
        cell = self.past.cell
        if not cell.survives_its_connection and self._window(run, CONNECTION):
            return CONNECTION
        if self._is_unfenced(run):
            return STOP
        if cell.has_timeout and (self._window(run, STOP) or self._window(run, CHILD_STOP)):
            return CHILD_STOP  # held up for longer than a transaction may last there
        return None

    def _window(self, run: Run, what: str) -> Window | None:
        """Find the fault of a kind that hit a run, or its settlement just afterwards."""
        for window in self.past.windows:
            hit = window.what == what and (window.pids is None or run.start.pid in window.pids)
            if hit and run.start.time <= window.end + UNSETTLED and run.end >= window.begin - UNSETTLED:
                return window
        return None

    def order(self) -> Iterator[str]:
        """4: by row everywhere; by key as far as the cell promises it."""
        for row, runs in self.of_row.items():
            yield from self._overlaps(f"row {row}", runs)
        for scope, runs in self._scopes(alone=self.past.cell.order == IN_A_REPLICA).items():
            yield from self._overlaps(f"key {scope[0]}", runs)
        if self.past.cell.order != EVERYWHERE and len(self._coordinators()) > 1:
            return  # a row that another replica had claimed first may come later than those behind it
        for scope, runs in self._scopes(alone=False).items():
            yield from self._steps_back(f"key {scope[0]}", runs)

    def _coordinators(self) -> set[int]:
        return {self.past.parents.get(run.start.pid, 0) for run in self.runs}

    def _scopes(self, alone: bool) -> dict[tuple[str, int], list[Run]]:
        """Group the runs by key, and by replica where each stands `alone`."""
        scopes: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in self.runs:
            scopes[run.start.key, self.past.parents.get(run.start.pid, 0) if alone else 0].append(run)
        return scopes

    def _overlaps(self, what: str, runs: list[Run]) -> Iterator[str]:
        opened: list[Run] = []
        for run in runs:
            opened = [each for each in opened if self._released(each) > run.start.time]
            for other in opened:
                if not self._is_unfenced(other):
                    yield f"{what}: {told(other)} overlaps {told(run)}"
            opened.append(run)

    def _is_unfenced(self, run: Run) -> bool:
        """Tell whether R14 excuses what becomes of a run: it is held by a lease, and its replica was stopped for longer.

        No row starts past its deadline, which is extended no more from the stop on: a later start has no excuse.
        """
        if self.past.cell.form != LEASE or self.past.cell.transactional:
            return False
        window = self._window(run, STOP)
        return window is not None and run.start.time <= window.begin + self.past.lease

    def _steps_back(self, what: str, runs: list[Run]) -> Iterator[str]:
        strict = self.past.cell.order == EVERYWHERE
        greatest: Run | None = None
        before: dict[int, Run] = {}
        for run in runs:
            row = run.start.row
            if not strict and row in self.past.poison:
                continue  # a row that is put off gives up its place
            if greatest is not None and row < greatest.start.row and not self._may_come_again(before.get(row), strict):
                yield f"{what}: {told(run)} after {told(greatest)}"
            if greatest is None or row > greatest.start.row or row in before:
                greatest = run
            before[row] = run

    def _may_come_again(self, earlier: Run | None, strict: bool) -> bool:
        """Tell whether a row may run again behind later ones: it had ended, and what was to settle it died, or is stopped."""
        if earlier is None or earlier.end == self.died.get(earlier.start.pid):
            return False  # a row that was cut short comes again before any other of its key
        excuse = self.excuse(earlier)
        return excuse in (CRASH, STOP) or (not strict and excuse == CONNECTION)

    def holders(self) -> Iterator[str]:
        """5: only a replica that was stopped or cut off has lost rows; no row was acked by two."""
        past = self.past
        for each in past.stopped:
            hit = any(window.what != CRASH and self._hits(window, each.pid) for window in past.windows)
            if each.counts.get("lost") and not hit:
                yield f"a replica that no fault hit has lost {each.counts['lost']} rows"
        settled = len(past.rows) - len(past.dead)
        acked = sum(each.counts.get("acked", 0) for each in past.stopped)
        crashed = any(window.what == CRASH for window in past.windows)
        cut_off = any(window.what == CONNECTION for window in past.windows)  # then what was settled may be told as lost
        told = acked + sum(each.counts.get("lost", 0) for each in past.stopped if cut_off)
        if acked > settled or (told < settled and not crashed):
            yield f"{acked} rows were acked where {settled} ended"

    def _hits(self, window: Window, coordinator: int) -> bool:
        return window.pids is None or any(self.past.parents.get(pid) == coordinator for pid in window.pids)

    def recovery(self) -> Iterator[str]:
        """6: within the bound that is stated."""
        late = [seconds for seconds in self.past.recoveries if seconds > self.past.bound]
        if late:
            yield f"{', '.join(f'{seconds:.2f}' for seconds in late)} s where {self.past.bound:g} s are stated"

    def over(self) -> Iterator[str]:
        """7: of one replica, as the server counts."""
        for name, most in self.past.connections.items():
            if self.past.limit is not None and most > self.past.limit:
                yield f"{most} of {name} where {self.past.limit} are allowed"

    def left(self) -> Iterator[str]:
        """8: no process, shared memory, session or lock; and each replica that was asked to stop ended well."""
        yield from self.past.left_behind
        for each in self.past.stopped:
            if each.code:
                yield f"a replica ended with exit code {each.code}"


def told(run: Run) -> str:
    """Tell a run by what the witness has of it."""
    start = run.start
    end = f"{run.end - start.time:.3f} s" if run.end != float("inf") else "never ended"
    return f"row {start.row} attempt {start.attempt} in {start.pid} at {start.time:.3f} ({end})"


def shown(rows: set[int]) -> str:
    """List some rows."""
    return f"{sorted(rows)[:8]}" + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
