"""Rows of one delivery: how batches are made up, handed out, taken back and blamed; the test plays the child."""

from __future__ import annotations

from typing import Any

from shardrun.coordinator import supervisor, timeouts
from shardrun.coordinator.child import State
from shardrun.coordinator.replica import Life
from shardrun.db.store import Claimed, Verb
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.test_claiming import MILLISECOND, keys


def batches(desk: Desk, hand: int = 0) -> list[list[Any]]:
    """Name the rows of each batch that was handed over since the last time."""
    return [[row[2] for row in frame[2]] for frame in desk.hands[hand].read()]


def numbers(desk: Desk) -> list[list[int]]:
    """Name the deliveries of each batch that was ever handed over, by row."""
    return [[row[0] for row in frame[2]] for frame in desk.hand.rows]


def report(desk: Desk, no: int, code: int = words.ACK, *more: Any) -> None:
    """Report a batch, and take the report."""
    finished = desk.replica.children[0].finished
    desk.hand.say((no, code, 100, *more))
    desk.until(lambda: no not in desk.replica.children[0].batches)
    assert code == words.UNSTARTED or desk.replica.children[0].finished > finished


def claimed(make_desk: MakeDesk, rows: int, batch: int, key: str | None = None, **settings: Any) -> Desk:
    """Make a desk whose table has rows, and claim them."""
    desk = make_desk(batch=batch, **{"lanes": (1,), **settings})
    desk.place.fill(rows, payload="{}", partition_key=key)
    desk.claim()
    return desk


def test_a_batch_is_whatever_is_there_and_never_waits_to_fill(make_desk: MakeDesk) -> None:
    """B6: a free lane gets three of five at once; rows that come meanwhile gather until it is free, or a batch is full."""
    desk = claimed(make_desk, 3, 5)
    assert batches(desk) == [[1, 2, 3]]
    desk.service.average = MILLISECOND
    desk.place.fill(4, payload="{}")
    desk.claim()
    assert batches(desk) == []
    desk.place.fill(3, payload="{}")
    desk.claim()
    assert batches(desk) == [[4, 5, 6, 7, 8]]
    report(desk, numbers(desk)[0][0])
    report(desk, numbers(desk)[1][0])
    desk.until_idle()
    assert batches(desk) == [[9, 10]]
    assert desk.rows() == [9, 10]


def test_a_claim_takes_a_batch_for_each_free_lane_and_reads_whole_batches_ahead(make_desk: MakeDesk) -> None:
    """B6, C6: so that batches fill when rows are there; rows without a key fill one lane's batch after another's."""
    desk = claimed(make_desk, 100, 8, lanes=(1, 1), workers=2)
    assert [batches(desk, hand) for hand in (0, 1)] == [[list(range(1, 9))], [list(range(9, 17))]]
    desk.service.average = MILLISECOND
    assert desk.service.ahead == 6 * 8
    desk.service.average = 1.0
    assert desk.service.ahead == 0


def test_no_lane_is_handed_more_than_its_share_of_the_read_ahead(make_desk: MakeDesk) -> None:
    """C6, B6: a batch that runs and two that wait, for batches of 25 ms; where they are slow, none waits behind one that
    has room."""
    desk = make_desk(batch=5)
    desk.service.average = 0.005
    desk.place.fill(40, payload="{}")
    desk.claim()
    assert batches(desk) == [list(range(first, first + 5)) for first in (1, 6, 11)]
    lane = desk.service.lanes[0]
    lane.handed, desk.service.average = 3, 1.0
    lane.waiting.clear()
    assert desk.service.demand().room == 0
    lane.handed = 0
    assert desk.service.demand().room == 5
    lane.handed = 15


def test_a_batch_by_key_holds_one_lanes_rows_in_claim_order(make_desk: MakeDesk) -> None:
    """B6, D1: each lane has batches of its own keys."""
    desk = make_desk(lanes=(2,), workers_by_key=2, batch=4)
    for key in keys(2) * 3:
        desk.place.fill(1, payload="{}", partition_key=key)
    desk.claim()
    found = [(frame[1], [row[2] for row in frame[2]]) for frame in desk.hand.read()]
    assert found == [(0, [1, 3, 5]), (1, [2, 4, 6])]


def test_rows_of_a_batch_end_each_in_its_own_way(make_desk: MakeDesk) -> None:
    """C104, B6: one report, and a settlement for each row."""
    desk = claimed(make_desk, 4, 10)
    batches(desk)
    first, *others = numbers(desk)[0]
    endings = [(others[0], words.DROP, 1, None, "no", None), (others[1], words.RETRY, 1, None, None, None)]
    report(desk, first, words.EACH, [(first, words.ACK, 1), *endings, (others[2], words.FAILED, 1, 60.0, "bad", None)])
    desk.until_idle()
    assert desk.rows("id, attempt, last_error") == [(3, 1, None), (4, 1, "bad")]
    assert (desk.service.counts.acked, desk.service.counts.dropped, desk.service.counts.retried) == (1, 1, 2)
    assert batches(desk) == []
    desk.claim()
    assert batches(desk) == [[3]]


def test_an_unstarted_batch_goes_back_whole_and_uncounted(make_desk: MakeDesk) -> None:
    """H5, R14: refused by its lane, or taken back from a child that is recalled."""
    desk = claimed(make_desk, 3, 5)
    batches(desk)
    report(desk, 1, words.UNSTARTED, None, None, None)
    desk.until(lambda: [held.attempt for held in desk.service.book] == [1] * 3)
    assert batches(desk) == [[1, 2, 3]]
    child = desk.replica.children[0]
    child.state, desk.replica.life = State.RECALLED, Life.DRAINING
    supervisor._take_back(desk.replica, child)
    assert not child.handed
    assert desk.service.lanes[0].handed == 0
    for id in (1, 2, 3):
        desk.release(id)
    desk.until_idle()
    assert desk.rows("id, attempt") == [(1, 0), (2, 0), (3, 0)]


def test_a_batch_that_killed_its_child_comes_again_row_by_row_and_each_row_alone(make_desk: MakeDesk) -> None:
    """R7, H4: each spends an attempt, and one that ends well by itself gets it back; the batch behind it waits uncounted."""
    desk = claimed(make_desk, 6, 3, workers=1)
    child = desk.replica.children[0]
    desk.service.average = MILLISECOND
    desk.claim()
    assert batches(desk) == [[1, 2, 3], [4, 5, 6]]
    desk.hand._reports.words[words.running(0)] = 1
    assert child.running() == [1, 2, 3]
    desk.replica.life = Life.DRAINING  # nothing comes in its place
    blamed = [child.handed[no] for no in child.running()]
    supervisor._bury(desk.replica, child, blamed, "it broke", [])
    desk.replica.life = Life.SERVING
    desk.until_idle()
    assert desk.rows("id, attempt, last_error") == [
        *((id, 2, "it broke") for id in (1, 2, 3)),
        *((id, 1, None) for id in (4, 5, 6)),
    ]
    for id in (1, 2, 3):
        assert batches(desk) == [[id]]
        no = numbers(desk)[-1][0]
        report(desk, no, words.EACH, [(no, words.RETRY, 1, 60.0, None, None)])
        desk.until_idle()
        assert desk.value(id, "attempt") == 1
    assert batches(desk) == [[4, 5, 6]]


def test_all_rows_of_a_late_batch_are_late(make_desk: MakeDesk) -> None:
    """E4, B6: the timeout is the batch's; each row spends an attempt."""
    desk = claimed(make_desk, 3, 3, timeout=5, workers=1)
    batches(desk)
    child = desk.replica.children[0]
    desk.hand._reports.words[words.running(0)] = 1
    assert not timeouts.is_late(child, 100.0)
    assert any(timeouts.is_late(child, 100 + step / 16) for step in range(100))
    late = timeouts.late_rows(desk.replica, child)
    assert sorted(ended.held.id for ended in late) == [1, 2, 3]
    assert {ended.verb for ended in late} == {Verb.RETRY}
    assert desk.service.lanes[0].handed == 0


def test_a_row_that_cannot_cross_fails_alone(make_desk: MakeDesk) -> None:
    """H1: the others of its batch are handed over, and answered for under the number that the child knows."""
    desk = make_desk(batch=5)
    desk.place.fill(3, payload="{}")
    execute = desk.store.claim

    def with_a_strange_value(*arguments: Any) -> list[Claimed]:
        return [row._replace(body=object()) if row.id == 1 else row for row in execute(*arguments)]

    desk.store.claim = with_a_strange_value  # type: ignore[method-assign,assignment]
    desk.claim()
    assert batches(desk) == [[2, 3]]
    assert "cannot be handed to a child" in desk.value(1, "last_error")
    desk.store.claim = execute  # type: ignore[method-assign]
    report(desk, desk.hand.rows[0][0])
    desk.until_idle()
    assert desk.rows() == [1]
    assert desk.service.lanes[0].handed == 0
