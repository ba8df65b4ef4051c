"""Keys in order over replicas, as the coordinator keeps them: what goes back takes along what follows it (R6)."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.coordinator import keeper
from shardrun.db.store import Claimed
from shardrun.policy.leases import Stage
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Held
from tests.coordinator.test_settling import forbid


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    """Make a desk with one lane, which has been handed five rows of two keys."""
    made = make_desk(key_scope="cluster", workers_by_key=1, dead_letter="q_dead", max_attempts=9)
    for id, key in enumerate("ababa", 1):
        made.place.fill(1, id=id, payload="{}", partition_key=key)
    made.service.average = 0.001
    made.claim()
    assert made.hand.ids() == [1, 3, 5, 2, 4]
    made.claims = False
    return made


def refuse(desk: Desk, *ids: int) -> None:
    """Report rows as a lane does that has stopped."""
    for id in ids:
        desk.hand.report(id, words.UNSTARTED)


def resumed(desk: Desk) -> int:
    """Count the orders that the lane may go on."""
    desk.hand.read()
    return sum(order[0] == words.RESUME for order in desk.hand.orders)


@pytest.mark.parametrize(("code", "attempt"), [(words.RETRY, 1), (words.SNOOZE, 0), (words.FAILED, 1)])
def test_what_follows_a_row_that_goes_back_goes_back_uncounted(desk: Desk, code: int, attempt: int) -> None:
    """R6: with the attempts that it had; rows of other keys come again, in order, when the lane has none in hand."""
    desk.hand.report(1, code, 60.0)
    refuse(desk, 3, 5, 2)
    desk.until(lambda: len(desk.service.book) == 2)
    assert desk.rows("id, attempt") == [(1, attempt), (2, 1), (3, 0), (4, 1), (5, 0)]
    assert (resumed(desk), desk.hand.ids()) == (0, [])
    refuse(desk, 4)
    desk.until(lambda: resumed(desk) == 1)
    assert [frame[2] for frame in desk.hand.rows[5:]] == [2, 4]


def test_nothing_of_the_key_is_claimed_before_all_of_it_has_gone_back(desk: Desk) -> None:
    """R6: not behind the one that goes back, and not behind those that its child has still to give back."""
    desk.place.fill(1, id=6, payload="{}", partition_key="a")
    desk.hand.report(1, words.RETRY, 0.0)
    desk.until(lambda: 1 not in desk.service.book)
    desk.ask()
    assert not {1, 6} & {held.id for held in desk.service.book}
    refuse(desk, 3, 5, 2, 4)
    desk.until(lambda: len(desk.service.book) == 2)
    desk.ask()
    assert [held.id for held in desk.service.book if held.row.lane_key == "a"] == [1, 3, 5, 6]


def test_rows_of_a_claim_that_was_under_way_go_back_too(desk: Desk) -> None:
    """R6: it was sent when the row before them was in work here, and answered when that had gone back."""
    desk.place.fill(1, id=6, payload="{}", partition_key="a")
    held = Held(after=True)
    desk.store.fail("claim", held)
    desk.claims = True
    desk.service.pacing.not_before = 0.0
    desk.until(held.begun.is_set)
    desk.claims = False
    desk.hand.report(1, words.RETRY, 60.0)
    desk.until(lambda: desk.service.turned_back)
    held.go()
    refuse(desk, 3, 5, 2, 4)
    desk.until(lambda: {each.id for each in desk.service.book} == {2, 4})
    assert desk.rows("id, attempt")[5] == (6, 0)
    assert desk.is_free(6)


def test_what_ends_for_good_keeps_what_follows(desk: Desk) -> None:
    """R6: an ack, a drop; a dead letter stops the lane, too, since its child cannot know, and all come again."""
    desk.hand.report(1)
    desk.hand.report(3, words.DROP)
    desk.hand.report(5, words.DEAD_LETTER, None, "no use")
    refuse(desk, 2, 4)
    desk.until(lambda: len(desk.service.book) == 2)
    desk.until(lambda: resumed(desk) == 1)
    assert [frame[2] for frame in desk.hand.rows[5:]] == [2, 4]
    assert all(each.stage is Stage.RUNNING for each in desk.service.book)


def test_a_key_of_which_a_running_row_is_lost_goes_no_further(desk: Desk) -> None:
    """R6, R14: the child learns it, and stops its lane behind that row; what waits in it goes back."""
    desk.place.run(f"update q set locked_until = {desk.place.seconds(99)} where id = 1")
    for held in desk.service.book:
        held.deadline = 0.0
    keeper.extend(desk.replica, desk.service)
    desk.until_idle()
    deliveries: Any = desk.hand.child.deliveries
    assert deliveries.words[words.lost(0)] == desk.hand.no(1)
    desk.hand.report(1)
    refuse(desk, 3, 5, 2, 4)
    desk.until(lambda: {each.id for each in desk.service.book} == {2, 4})
    assert desk.service.counts.lost == 1
    assert desk.rows("id, attempt")[2] == (3, 0)


def test_a_row_whose_ack_is_refused_goes_back_with_what_follows_it(desk: Desk) -> None:
    """R6, E2: the database refuses to delete it; its lane is stopped, and nothing that was handed over begins behind it."""
    forbid(desk, 1)
    desk.hand.report(1)
    desk.hand.run(3)
    desk.until(lambda: desk.service.turned_back)
    deliveries: Any = desk.hand.child.deliveries
    assert deliveries.words[words.lost(0)] == desk.hand.no(3)
    desk.hand.report(3)
    refuse(desk, 5, 2, 4)
    desk.until(lambda: {each.id for each in desk.service.book} == {2, 4})
    assert desk.rows("id, attempt") == [(1, 1), (2, 1), (4, 1), (5, 0)]


def test_what_follows_a_row_that_cannot_cross_is_not_sent(make_desk: MakeDesk) -> None:
    """R6, H1: it is a failed attempt; rows of its key that were to be written with it go back, others run."""
    desk = make_desk(key_scope="cluster", workers_by_key=1, dead_letter="q_dead", max_attempts=9)
    for id, key in enumerate("ababa", 1):
        desk.place.fill(1, id=id, payload="{}", partition_key=key)
    desk.service.average = 0.001
    execute = desk.store.claim_strands

    def with_a_strange_value(*arguments: Any) -> list[Claimed]:
        return [row._replace(body=object()) if row.id == 1 else row for row in execute(*arguments)]

    desk.store.claim_strands = with_a_strange_value  # type: ignore[method-assign,assignment]
    desk.ask()
    desk.until(lambda: len(desk.service.book) == 2)
    assert desk.hand.ids() == [2, 4]
    assert desk.rows("id, attempt") == [(1, 1), (2, 1), (3, 0), (4, 1), (5, 0)]


def test_a_batch_holds_one_row_of_a_key(make_desk: MakeDesk) -> None:
    """R6, B6: the next one must not pass it, should it go back while others of the batch are done."""
    desk = make_desk(key_scope="cluster", workers_by_key=1, batch=3)
    for id, key in enumerate("aabcb", 1):
        desk.place.fill(1, id=id, payload="{}", partition_key=key)
    desk.service.average = 0.001
    desk.claim()
    assert [[row[2] for row in batch[2]] for batch in desk.hand.read()] == [[1, 3, 4]]
