"""Rows handed to children over real rings, and put back where claim order wants them; the test plays the children."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.coordinator import claim, clock, route
from shardrun.coordinator.child import State
from shardrun.coordinator.replica import Life
from shardrun.db.store import Claimed
from shardrun.policy.leases import Stage
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.test_claiming import MILLISECOND, keys


def filled(make_desk: MakeDesk, count: int, key: str | None = None, **settings: Any) -> Desk:
    """Make a desk whose table has rows, read ahead as far as a quick handler wants, and claimed."""
    desk = make_desk(**settings)
    desk.service.average = MILLISECOND
    desk.place.fill(count, payload='{"a": 1}', partition_key=key)
    desk.claim()
    return desk


def resumed(desk: Desk) -> list[tuple[Any, ...]]:
    """List the orders that lanes may go on."""
    desk.hand.read()
    return [order for order in desk.hand.orders if order[0] == words.RESUME]


def test_a_delivery_says_all_that_a_handler_may_know(make_desk: MakeDesk) -> None:
    """E5: number, lane, id, attempt, deadline, key, group, headers, body."""
    desk = filled(make_desk, 1, "k", queue=None)
    held = desk.held(1)
    assert desk.hand.read() == [(1, 0, 1, 1, held.deadline, "k", None, None, '{"a": 1}')]
    assert 29 < held.deadline - clock.now() <= 30


def test_rows_without_a_key_are_dealt_to_the_lanes_that_have_the_fewest(make_desk: MakeDesk) -> None:
    """C1, D1: over all children."""
    desk = filled(make_desk, 9, lanes=(2, 1), workers=3)
    assert [len(hand.read()) for hand in desk.hands] == [6, 3]
    assert [lane.handed for lane in desk.service.lanes] == [3, 3, 3]


def test_no_lane_is_handed_more_than_its_share_of_the_read_ahead(make_desk: MakeDesk) -> None:
    """C6: one that runs and 50 that wait, for a handler of a millisecond."""
    desk = filled(make_desk, 120, lanes=(1,))
    assert desk.hand.ids() == list(range(1, 52))


def test_a_row_whose_lease_may_be_over_is_not_handed_out(make_desk: MakeDesk) -> None:
    """R14: no row starts past its deadline; what is behind it in its lane waits, too."""
    desk = filled(make_desk, 1, lanes=(1,))
    desk.hand.read()
    desk.replica.children[0].state = State.RECALLED
    desk.place.fill(2, payload="{}")
    desk.claim()
    desk.held(2).deadline = clock.now() - 1
    desk.replica.children[0].state = State.READY
    desk.step()
    assert desk.hand.ids() == []
    desk.held(2).deadline = clock.now() + 30
    desk.step()
    assert desk.hand.ids() == [2, 3]


def test_nothing_is_handed_out_on_a_stop(make_desk: MakeDesk) -> None:
    """H5: unstarted rows go back instead."""
    desk = make_desk()
    desk.place.fill(1, payload="{}")
    claim.claim(desk.replica)
    desk.replica.life = Life.DRAINING
    desk.until_idle()
    assert desk.hand.ids() == []


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_that_a_lane_refused_come_again_in_claim_order_after_it_may_go_on(
    make_desk: MakeDesk, keyed: bool
) -> None:
    """D5, R14: the first refusal refuses all that follow; none passes another, and none is handed out before RESUME."""
    key = keys(1)[0] if keyed else None
    desk = filled(make_desk, 5, key, lanes=(1,), **({"workers_by_key": 1} if keyed else {"workers": 1}))
    assert desk.hand.ids() == [1, 2, 3, 4, 5]
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    for id in (2, 3, 4):
        desk.hand.report(id, words.UNSTARTED)
    desk.until(lambda: desk.service.lanes[0].handed == 1)
    assert desk.hand.ids() == []
    assert resumed(desk) == []
    desk.hand.report(5, words.UNSTARTED)
    desk.until(lambda: desk.service.lanes[0].handed == 4)
    assert desk.hand.ids() == [2, 3, 4, 5]
    assert resumed(desk) == [(words.RESUME, 0)]
    assert [held.attempt for held in desk.service.book] == [1, 1, 1, 1]


def test_a_lane_that_refused_holds_up_no_other_lane(make_desk: MakeDesk) -> None:
    """D5: rows of other keys go on."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    first, second = keys(2)
    for key in (first, first, second):
        desk.place.fill(1, payload="{}", partition_key=key)
    desk.service.average = MILLISECOND
    desk.claim()
    desk.hand.read()
    desk.hand.report(1, words.UNSTARTED)
    desk.hand.report(3)
    desk.until(lambda: desk.service.counts.acked == 1)
    desk.place.fill(1, payload="{}", partition_key=second)
    desk.claim()
    assert desk.hand.ids() == [4]
    assert [held.id for held in desk.service.lanes[0].waiting] == [1]


def test_rows_put_back_stand_before_those_that_were_claimed_later(make_desk: MakeDesk) -> None:
    """D5: whatever order they come back in."""
    key = keys(1)[0]
    desk = filled(make_desk, 3, key, lanes=(1,), workers_by_key=1)
    desk.hand.read()
    desk.replica.children[0].state = State.RECALLED
    desk.place.fill(2, payload="{}", partition_key=key)
    desk.claim()
    for id in (3, 1, 2):
        desk.hand.report(id, words.UNSTARTED)
    desk.until(lambda: len(desk.service.lanes[0].waiting) == 5)
    assert [held.id for held in desk.service.lanes[0].waiting] == [1, 2, 3, 4, 5]


def test_a_suspect_runs_alone_in_its_child(make_desk: MakeDesk) -> None:
    """R7: it starts when the child has nothing else, nothing starts beside it, and then all goes on."""
    desk = make_desk(lanes=(2,), workers=2)
    desk.place.fill(1, payload="{}")
    desk.claim()
    desk.replica.children[0].state = State.RECALLED
    desk.place.fill(2, payload="{}")
    desk.service.pacing.one_by_one = False
    desk.service.average = MILLISECOND
    desk.claim()
    desk.held(2).alone = True
    desk.replica.children[0].state = State.READY
    desk.step()
    assert desk.hand.ids() == [1]
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    assert desk.hand.ids() == [2]
    desk.step()
    assert desk.hand.ids() == []
    desk.hand.report(2)
    desk.until(lambda: desk.service.counts.acked == 2)
    assert desk.hand.ids() == [3]


def test_a_suspect_that_ends_well_gets_its_attempt_back_and_one_that_fails_does_not(make_desk: MakeDesk) -> None:
    """R7: the death beside which it ran was not its own."""
    for code, attempt in ((words.SNOOZE, 0), (words.FAILED, 2)):
        desk = make_desk()
        desk.place.fill(1, payload="{}")
        desk.claim()
        held = desk.held(1)
        held.attempt, held.alone, held.charged = 2, True, True
        desk.place.run("update q set attempt = 2")
        desk.hand.read()
        desk.hand.report(1, code, 60.0, "no")
        desk.until(lambda: not len(desk.service.book))  # noqa: B023
        assert desk.value(1, "attempt") == attempt
        desk.place.run("drop table q")
        desk.place.run("drop table q_dead")


def test_a_value_that_cannot_cross_is_a_failed_attempt_and_no_other_row_suffers(make_desk: MakeDesk) -> None:
    """H1: rows of the same write arrive; the reason is stored."""
    desk = make_desk(lanes=(3,))
    desk.place.fill(3, payload="{}")
    execute = desk.store.claim

    def with_a_strange_value(*arguments: Any) -> list[Claimed]:
        return [row._replace(body=object()) if row.id == 2 else row for row in execute(*arguments)]

    desk.store.claim = with_a_strange_value  # type: ignore[method-assign,assignment]
    desk.claim()
    assert desk.hand.ids() == [1, 3]
    assert "cannot be handed to a child" in desk.value(2, "last_error")
    assert [lane.handed for lane in desk.service.lanes] == [1, 0, 1]


def test_rows_larger_than_the_ring_arrive_in_pieces_and_block_nobody(make_desk: MakeDesk) -> None:
    """H1: the coordinator never waits for space; what does not fit follows when the child has read."""
    desk = make_desk(lanes=(3,))
    body = '"' + "x" * 3_000_000 + '"'
    desk.place.fill(3, payload=body)
    desk.claim()
    seen: list[Any] = []
    desk.until(lambda: len(seen.extend(desk.hand.read()) or seen) == 3)  # type: ignore[func-returns-value]
    assert [(row[2], row[8] == body) for row in seen] == [(1, True), (2, True), (3, True)]
    assert not desk.replica.children[0].crowded


def test_reports_teach_how_long_the_handler_takes(make_desk: MakeDesk) -> None:
    """C6: measured as it runs; slow rows end the read-ahead."""
    desk = make_desk(lanes=(1,))
    desk.place.fill(3, payload="{}")
    for id, micros, ahead in ((1, 1000, True), (2, 60_000, True), (3, 600_000, False)):
        desk.claim()
        desk.hand.read()
        desk.hand.report(id, elapsed_us=micros)
        desk.until(lambda: id not in desk.service.book)  # noqa: B023
        assert (desk.service.ahead > 0) is ahead


@pytest.mark.parametrize("keyed", [True, False])
def test_a_row_that_must_run_alone_is_not_starved_by_the_other_lanes_of_its_child(
    make_desk: MakeDesk, keyed: bool
) -> None:
    """R7: while it waits, its child gets nothing else, so that it will be idle; with no key, one child does."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    desk.service.average = 0.01
    first, second = keys(2)
    desk.place.fill(1, payload="{}", partition_key=first if keyed else None)
    desk.place.fill(1, payload="{}", partition_key=second)
    desk.claim()
    assert sorted(desk.hand.ids()) == [1, 2]
    suspect = desk.taken(1)
    desk.service.book.put_back(suspect)
    suspect.alone = True
    route.put_back(desk.service, suspect)
    desk.place.fill(1, payload="{}", partition_key=second)
    desk.claim()
    assert (desk.hand.ids(), desk.held(3).stage) == ([], Stage.WAITING), (
        "its lane has room, and its child must get idle"
    )
    desk.hand.report(2)
    desk.until(lambda: desk.hand.read())
    assert [frame[2] for frame in desk.hand.rows][2:] == [1]
    desk.hand.report(1)
    desk.until(lambda: desk.hand.read())
    assert [frame[2] for frame in desk.hand.rows][2:] == [1, 3]


def test_a_session_that_a_child_has_closed_in_good_order_is_not_counted_any_more(make_desk: MakeDesk) -> None:
    """F1, R4: what is left is ended when the child dies; a name that was never heard of changes nothing."""
    desk = make_desk()
    for notice in ((words.SESSION, "7:a"), (words.SESSION, "8:b"), (words.CLOSED, "7:a"), (words.CLOSED, "9:c")):
        desk.hand.say(notice)
    desk.until(lambda: desk.replica.children[0].sessions == ["8:b"])
