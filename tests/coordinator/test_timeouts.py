"""Which child is ended for a late row, and who pays for it; the test plays the child and says what time it is."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pytest

from shardrun.coordinator import supervisor, timeouts
from shardrun.coordinator.child import Child
from shardrun.coordinator.replica import Life
from shardrun.db.store import Verb
from shardrun.outcome import Backoff
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk

LOOKS = 16
"""Looks a second."""


def running(make_desk: MakeDesk, lanes: int = 3, **settings: Any) -> Desk:
    """Make a desk whose one child has a row in each lane and runs it, the first row in the first lane, and so on."""
    desk = make_desk(lanes=(lanes,), workers=lanes, **{"timeout": 5, **settings})
    desk.place.fill(lanes, payload="{}")
    desk.claim()
    for lane in range(lanes):
        desk.hand.run(lane + 1, lane)
    return desk


def child_of(desk: Desk) -> Child:
    """Name the desk's only child."""
    return desk.replica.children[0]


def looked(desk: Desk, begin: float, end: float) -> bool:
    """Look often from a second to another; tells whether the child is to be ended, which is said once."""
    times = range(int(begin * LOOKS), int(end * LOOKS) + 1)
    told = [timeouts.is_late(child_of(desk), 100.0 + time / LOOKS) for time in times]
    assert sum(told) <= 1
    return any(told)


def let_die(desk: Desk, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the child die, on a stop: nothing comes in its place."""
    desk.replica.life = Life.DRAINING
    child_of(desk).process.send_signal(number)
    supervisor._died(desk.replica, child_of(desk))


def endings(desk: Desk) -> dict[int, tuple[Verb, float | None]]:
    """Tell how rows ended, before that is written."""
    return {ended.held.id: (ended.verb, ended.delay) for ended in desk.service.ended}


def test_a_child_is_ended_once_and_not_a_look_before_a_row_passes_its_timeout(make_desk: MakeDesk) -> None:
    """E4: five seconds are five seconds."""
    desk = running(make_desk)
    assert not looked(desk, 0, 4.95)
    assert looked(desk, 5, 8)
    assert len(child_of(desk).late) == 3


def test_lanes_that_end_rows_in_time_are_left_alone(make_desk: MakeDesk) -> None:
    """E4: however long they are busy; and a delivery that has been reported already is not late."""
    desk = running(make_desk, lanes=1)
    for turn in range(5):
        assert not looked(desk, turn * 4, turn * 4 + 3.9)
        desk.hand.report(turn + 1)
        desk.until(lambda: not child_of(desk).handed)
        desk.until_idle()
        desk.place.fill(1, payload="{}")
        desk.claim()
        assert not looked(desk, turn * 4 + 3.95, turn * 4 + 3.95)
        desk.hand.run(turn + 2)


def test_a_subscription_without_a_timeout_is_never_late(make_desk: MakeDesk) -> None:
    """E4: there is a limit where one is asked for."""
    assert not looked(running(make_desk, timeout=None), 0, 1000)


def test_the_late_row_alone_is_put_off_by_its_rule_and_those_beside_it_go_on(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """E2, E4, R7: the others spend nothing and need not run alone; the log says who, how long, which attempt, what next."""
    desk = running(make_desk, retry=Backoff(first=600, jitter=0), max_attempts=3, dead_letter="q_dead")
    pid = child_of(desk).pid
    desk.hand.stop_running(1)
    desk.hand.stop_running(2)
    assert not looked(desk, 0, 3)
    desk.hand.run(2, 1)
    assert looked(desk, 3, 6)
    with caplog.at_level(logging.INFO, "shardrun"):
        let_die(desk)
    assert endings(desk) == {1: (Verb.RETRY, 600.0)}
    assert [(held.id, held.attempt, held.alone, held.charged) for held in desk.service.waiting] == [
        (2, 1, False, False),
        (3, 1, False, False),
    ]
    assert caplog.messages == [
        f"child 1 (pid {pid}) was ended: row 1 of q ran longer than its timeout of 5 s and spends attempt 1 of 3. "
        "Again in 600 s."
    ]
    desk.send()
    desk.until_idle()
    assert desk.value(1, "last_error") == "ran longer than its timeout of 5 s"
    assert desk.rows("attempt") == [1, 1, 1]


def test_a_row_that_ends_just_before_its_child_is_settled_as_it_ended(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """E4, R7: what was written before the end is read first; then nobody pays."""
    desk = running(make_desk, lanes=2)
    desk.hand.stop_running(1)
    assert looked(desk, 0, 5)
    desk.hand.report(1)
    let_die(desk)
    assert [held.id for held in desk.service.acked] == [1]
    assert endings(desk) == {}
    assert [(held.id, held.attempt, held.alone) for held in desk.service.waiting] == [(2, 1, False)]
    assert "ended just then. No attempt is spent." in caplog.text


def test_a_child_that_dies_of_something_else_first_is_blamed_on_what_ran(make_desk: MakeDesk) -> None:
    """R7: which of them it was is not known."""
    desk = running(make_desk, lanes=2)
    assert looked(desk, 0, 5)
    let_die(desk, signal.SIGTERM)
    assert {id: verb for id, (verb, _) in endings(desk).items()} == {1: Verb.RECOUNT, 2: Verb.RECOUNT}


def test_a_late_row_pays_though_a_stop_interrupts_the_others(make_desk: MakeDesk) -> None:
    """E4, H5: it was late before the drain came to its end."""
    desk = running(make_desk, lanes=2, max_attempts=1, dead_letter="q_dead", retry=lambda attempt, error: 5)
    desk.hand.stop_running(1)
    assert looked(desk, 0, 5)
    desk.replica.interrupted = True
    let_die(desk)
    assert endings(desk) == {1: (Verb.BURY, None)}
    assert [held.id for held in desk.service.waiting] == [2]


def test_the_replacement_of_a_child_that_was_ended_does_not_wait(make_desk: MakeDesk) -> None:
    """E4, H4: children that are ended again and again have not come to nothing."""
    desk = running(make_desk)
    desk.replica.fruitless = [7]
    assert looked(desk, 0, 5)
    child_of(desk).process.kill()
    supervisor._died(desk.replica, child_of(desk))
    assert desk.replica.fruitless == [0]
