"""The witness: events are whole whoever dies, and what is read from them is what happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.witness import DIED, END, START, Event, Witness, intervals, most_at_once

ROOT = Path(__file__).parent.parent

WRITE_AND_DIE = """
import pathlib, sys
from tests.witness import Witness
witness = Witness(pathlib.Path(sys.argv[1]))
for row in range(200):
    witness.start(row, "k" * 100)
    witness.end(row, "k" * 100)
witness.start("last", "k")
witness.die()
"""


def event(what: str, row: int, time: float, pid: int = 1, key: str = "k", attempt: int = 1) -> Event:
    """Make an event with defaults."""
    return Event(what, row, key, attempt, pid, time)


def test_runs_and_order_are_told_per_row_and_per_key(tmp_path: Path) -> None:
    """Witness: runs(row), ended(row) and order(key)."""
    witness = Witness(tmp_path / "w")
    assert witness.events() == []
    witness.start(2, "a")
    witness.start(1, "a")
    witness.end(1, "a")
    witness.start(2, "a", attempt=2)
    witness.start(3, "b")
    assert witness.order("a") == [2, 1, 2]
    assert (witness.runs(2), witness.ended(2), witness.runs(4)) == (2, 0, 0)
    assert witness.rows() == {1, 2, 3}
    assert witness.overlap("a") == 2
    assert witness.overlap_of_row(2) == 2


def test_runs_one_after_another_do_not_overlap() -> None:
    """Witness: overlap is 1 where each run ends before the next starts, even at the same instant."""
    events = [event(START, 1, 0), event(END, 1, 5), event(START, 2, 5), event(END, 2, 6)]
    assert most_at_once(intervals(events)) == 1


def test_a_run_ends_with_its_process() -> None:
    """Witness: an interval whose process died ends at its death, and others go on."""
    events = [event(START, 1, 0), event(START, 2, 1, pid=2), event(DIED, 0, 2), event(START, 1, 3, pid=3, attempt=2)]
    assert sorted(run.end for run in intervals(events)) == [2, float("inf"), float("inf")]
    assert most_at_once([run for run in intervals(events) if run.start.row == 1]) == 1


def test_a_run_that_nobody_saw_end_stays_open() -> None:
    """Witness: no silence hides an overlap."""
    events = [event(START, 1, 0), event(START, 1, 9, pid=2, attempt=2)]
    assert most_at_once(intervals(events)) == 2


def test_lines_of_several_processes_stay_whole_though_they_are_killed(tmp_path: Path) -> None:
    """Witness: one write per event; a killed process leaves whole lines and its death."""
    file = tmp_path / "w"
    argv = [sys.executable, "-c", WRITE_AND_DIE, str(file)]
    writers = [subprocess.Popen(argv, cwd=ROOT) for _ in range(4)]
    assert [writer.wait(30) for writer in writers] == [-9] * 4
    witness = Witness(file)
    assert len(witness.events()) == 4 * 402
    assert witness.runs("last") == 4
    assert all(run.end < float("inf") for run in intervals(witness.events()))


def test_a_line_that_is_half_written_is_not_there_yet(tmp_path: Path) -> None:
    """Witness: a reader that comes while a line crosses a page of the file sees the lines before it."""
    witness = Witness(tmp_path / "witness")
    witness.start(1)
    whole = witness.path.read_text()
    witness.path.write_text(whole + whole[:30])
    assert witness.rows() == {1}
    assert witness.runs(1) == 1
