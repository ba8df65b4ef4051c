"""The checker finds each breach of each invariant in made-up rounds, and accepts what it must accept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.cells import ADVISORY, LEASE, ROW_LOCK, Cell
from tests.chaos.check import check
from tests.chaos.history import CHILD_STOP, CONNECTION, CRASH, STOP, History, Stopped, Window
from tests.witness import DIED, END, START, Event

PLAIN = Cell("postgres", LEASE)
DEAD = frozenset({11})
CHILDREN = {11: 1, 12: 1, 21: 2, 22: 2}


def run(row: int, pid: int, begin: float, end: float | None, key: str = "k", attempt: int = 1) -> list[Event]:
    """Make a run; no `end`: nobody saw it."""
    events = [Event(START, row, key, attempt, pid, begin)]
    return events if end is None else [*events, Event(END, row, key, attempt, pid, end)]


def died(pid: int, at: float) -> list[Event]:
    """Make a death."""
    return [Event(DIED, None, None, 0, pid, at)]


def past(*events: list[Event], cell: Cell = PLAIN, rows: int = 2, **more: object) -> History:
    """Make a round of rows 1, 2, ... which all were acked by replica 1."""
    in_order = sorted((event for some in events for event in some), key=lambda event: event.time)
    stopped = [Stopped(1, 0, {"acked": rows, "lost": 0})]
    made = History(cell, set(range(1, rows + 1)), in_order, stopped=stopped, parents=CHILDREN, limit=5)
    return replace(made, **more)  # type: ignore[arg-type]


def breached(history: History) -> set[int]:
    """List the invariants that did not hold."""
    return {each.invariant for each in check(history)}


GOOD = (run(1, 11, 1, 2), run(2, 11, 3, 4))
TRANSACTIONAL = Cell("postgres", LEASE, transactional=True)


def test_a_round_without_a_fault_holds() -> None:
    """H1: nothing is found where nothing is wrong."""
    assert check(past(*GOOD)) == []
    assert check(past(*GOOD, cell=TRANSACTIONAL, effects={1: 1, 2: 1})) == []


BREACHES: dict[str, tuple[int, History]] = {
    "a row is left": (1, past(*GOOD, left=1)),
    "a row never ended": (1, past(run(1, 11, 1, 2))),
    "a row is a dead letter": (1, past(*GOOD, dead={2: 50})),
    "poison got away": (1, past(*GOOD, poison={2}, most=1)),
    "an effect is missing": (2, past(*GOOD, cell=TRANSACTIONAL, effects={1: 1})),
    "an effect is there twice": (2, past(*GOOD, cell=TRANSACTIONAL, effects={1: 2, 2: 1})),
    "a row ran twice": (3, past(*GOOD, run(2, 11, 5, 6, attempt=2))),
    "a row ran twice, another child had died": (3, past(*GOOD, died(12, 4), run(2, 11, 5, 6, attempt=2))),
    "a row ran twice, its child died much later": (3, past(*GOOD, run(2, 12, 5, 6, attempt=2), died(11, 7))),
    "a lease was lost with a connection": (
        3,
        past(*GOOD, run(2, 12, 5, 6, attempt=2), windows=[Window(CONNECTION, 3.5, 4.5)]),
    ),
    "a transaction ran twice after a stop": (
        3,
        past(
            *GOOD,
            run(2, 21, 5, 6, attempt=2),
            cell=TRANSACTIONAL,
            effects={1: 1, 2: 1},
            windows=[Window(STOP, 3.5, 4.5, DEAD)],
        ),
    ),
    "poison ran too often": (
        3,
        past(*GOOD, run(3, 11, 5, 6), run(3, 11, 7, 8, attempt=2), rows=3, poison={3}, dead={3: 1}, most=1),
    ),
    "two rows of a key at once": (4, past(run(1, 11, 1, 3), run(2, 12, 2, 4))),
    "a key steps back": (4, past(run(2, 11, 1, 2), run(1, 11, 3, 4))),
    "a key steps back in a replica": (4, past(run(2, 11, 1, 2), run(1, 11, 3, 4), cell=Cell("postgres", ROW_LOCK))),
    "a row runs on after its coordinator's death": (
        4,
        past(run(1, 11, 1, 9), run(1, 21, 5, 6, attempt=2), run(2, 21, 7, 8), windows=[Window(CRASH, 3, 4, DEAD)]),
    ),
    "a key steps back over replicas": (4, past(run(2, 11, 1, 2), run(1, 21, 3, 4))),
    "a row passes one whose child died": (
        4,
        past(run(1, 11, 1, None), died(11, 2), run(2, 12, 3, 4), run(1, 12, 5, 6, attempt=2)),
    ),
    "locks of one key held twice": (4, past(run(1, 11, 1, 3), run(2, 21, 2, 4), cell=Cell("mariadb", ADVISORY))),
    "a locked row runs twice at once": (
        4,
        past(
            run(1, 11, 1, 4),
            run(1, 21, 2, 3, attempt=2),
            run(2, 21, 5, 6),
            cell=Cell("postgres", ROW_LOCK),
            windows=[Window(STOP, 1, 4, DEAD)],
        ),
    ),
    "a stopped child's lease was taken": (
        4,
        past(
            run(1, 11, 1, 4),
            run(1, 21, 2, 3, attempt=2),
            run(2, 21, 5, 6),
            windows=[Window(CHILD_STOP, 1, 4, DEAD)],
        ),
    ),
    "a row starts past its deadline in a stopped replica": (
        4,
        past(
            run(1, 11, 3.5, 6),
            run(1, 21, 4, 5, attempt=2),
            run(2, 21, 7, 8),
            windows=[Window(STOP, 2, 6, DEAD)],
        ),
    ),
    "a replica lost a row": (5, past(*GOOD, stopped=[Stopped(1, 0, {"acked": 2, "lost": 1})])),
    "a row was acked twice": (
        5,
        past(*GOOD, stopped=[Stopped(1, 0, {"acked": 2}), Stopped(2, 0, {"acked": 1})]),
    ),
    "a row was never acked": (5, past(*GOOD, stopped=[Stopped(1, 0, {"acked": 1})])),
    "recovery is slow": (6, past(*GOOD, recoveries=[0.4, 1.2])),
    "one connection too many": (7, past(*GOOD, connections={"1": 6})),
    "a session is left": (8, past(*GOOD, left_behind=["shardrun web1-1 child 2"])),
    "a replica does not end well": (8, past(*GOOD, stopped=[Stopped(1, 1, {"acked": 2})])),
}


@pytest.mark.parametrize("name", list(BREACHES))
def test_each_breach_is_found(name: str) -> None:
    """H1, H2, H3, H4, D4, B1, B2, B4, B5, F2, R14: the invariant that it breaks is named, among others perhaps."""
    invariant, history = BREACHES[name]
    assert invariant in breached(history)


ACCEPTED: dict[str, History] = {
    "a child died in a row": past(run(1, 11, 1, None), died(11, 2), run(1, 12, 3, 4, attempt=2), run(2, 12, 5, 6)),
    "a coordinator died before it had settled": past(
        *GOOD,
        run(1, 21, 5, 6, attempt=2),
        run(2, 21, 7, 8, attempt=2),
        died(11, 4.1),
        windows=[Window(CRASH, 2.5, 4.2, frozenset({11, 12}))],
        stopped=[],
    ),
    "a replica was stopped for longer than its lease": past(
        run(1, 11, 1, 4),
        run(1, 21, 2, 3, attempt=2),
        run(2, 21, 5, 6),
        windows=[Window(STOP, 1.5, 3.5, DEAD)],
        stopped=[Stopped(1, 0, {"acked": 1, "lost": 1}), Stopped(2, 0, {"acked": 1})],
    ),
    "a lock went with its connection": past(
        *GOOD,
        run(2, 11, 5, 6),
        cell=Cell("postgres", ROW_LOCK),
        windows=[Window(CONNECTION, 3.5, 4.5)],
    ),
    "poison was counted out": past(
        *GOOD, run(3, 11, 5, 6), run(3, 11, 7, 8, attempt=2), rows=3, poison={3}, dead={3: 2}, most=2,
        stopped=[Stopped(1, 0, {"acked": 2})],
    ),
    "a lock went a moment before the child that ran the row": past(
        run(1, 11, 1, None),
        died(11, 3.01),
        run(1, 21, 3.005, 4),
        run(2, 21, 7, 8),
        cell=Cell("postgres", ROW_LOCK),
        windows=[Window(CRASH, 3, 3.02, DEAD)],
        stopped=[],
    ),
    "a key steps back under row locks since another replica had its first row": past(
        run(2, 11, 1, 2), run(1, 21, 3, 4), cell=Cell("postgres", ROW_LOCK)
    ),
    "keys overlap in two replicas under row locks": past(
        run(1, 11, 1, 3), run(2, 21, 2, 4), cell=Cell("postgres", ROW_LOCK)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_what_a_fault_explains_is_accepted(name: str) -> None:
    """H2, H3, H4, R8, R14: the excuses are those that the documents name."""
    assert check(ACCEPTED[name]) == []
