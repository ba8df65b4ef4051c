"""Rows that are offered to children (row lock, advisory lock, in transactions): what is read, forgotten and counted."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun import boot
from shardrun.config import Settings
from shardrun.coordinator import clock, supervisor
from shardrun.coordinator.service import Ended
from shardrun.db.store import Verb
from shardrun.policy.leases import Stage
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import breaks_after
from tests.coordinator.test_batch_rows import batches
from tests.coordinator.test_settling import looks_before_a_wake
from tests.store.place import subscribe, usual

TOKEN = 9
LOCK = "select 1 from q where id = 1 for update nowait"


@pytest.fixture
def make(make_desk: MakeDesk, postgres: Any) -> Any:
    """Give a function that makes a desk of a transactional handler on PostgreSQL, with rows to offer."""

    def made(rows: int = 3, keys: str = "", **settings: Any) -> Desk:
        more = {"advisory_lock": "key-{partition_key}"} if settings.pop("form", "") == "advisory" else {}
        queue = usual(without=["locked_until"], **more)
        settings = {"threads": 2, "workers": 1, **settings}
        desk = make_desk(server=postgres.new_database(), queue=queue, transactional=True, **settings)
        for number in range(rows):
            desk.place.fill(1, payload="{}", partition_key=keys[number] if keys else str(number))
        return desk

    return made


def bury(desk: Desk, cause: str = "killed by signal 9") -> None:
    """Let the child of row 1 be dead."""
    supervisor._bury(desk.replica, desk.hand.child, [desk.held(1)], cause, [])


@pytest.mark.parametrize("form", ["row lock", "advisory"])
def test_rows_are_offered_to_free_lanes_only_and_nothing_holds_them(make: Any, form: str) -> None:
    """R3, C1: one statement for all free lanes, never a row ahead, none twice; no connection and no lock is kept."""
    desk = make(rows=4, form=form, lanes=(1, 1), workers=2)
    desk.service.average = 0.001
    desk.claim()
    assert [hand.ids() for hand in desk.hands] == [[1], [2]]
    assert [(held.stage, held.attempt, held.pin) for held in desk.service.book] == [(Stage.TAKEN, 1, None)] * 2
    desk.place.run(LOCK)
    assert desk.rows("attempt") == [0] * 4 or desk.rows("attempt") == [None] * 4
    assert desk.place.run("select 1 from pg_locks where locktype = 'advisory'") == []
    desk.hands[1].report(2)
    desk.claims = True
    desk.service.pacing.not_before = 0.0
    desk.until(lambda: desk.hands[1].ids())
    assert desk.store.asked("offer") == [(2, [], [], []), (1, [], [1], [])]
    assert desk.store.asked("settle") == []


def test_a_missed_row_is_forgotten_counts_nothing_and_rests_with_its_key(make: Any) -> None:
    """R3: "taken elsewhere"; it is offered again after a moment, with no attempt spent, before what follows it in its lane."""
    desk = make(keys="aab", workers_by_key=1, workers=None)
    desk.claim()
    assert desk.hand.ids() == [1]
    desk.hand.report(1, words.MISSED, None, "locked")
    desk.until(lambda: 1 not in desk.service.book)
    desk.ask()
    assert [held.id for held in desk.service.book] == [3]
    assert desk.store.asked("offer")[-1] == (1, ["a"], [], [1])
    desk.place.run("delete from q where id = 3")
    desk.hand.report(3)
    desk.claims = True
    before = clock.now()
    desk.until(lambda: desk.hand.ids() == [1])  # of its own accord
    assert clock.now() - before < 5
    assert desk.hand.rows[-1][3] == 1
    assert (desk.service.counts.total, desk.service.counts.acked) == (1, 1)


def test_a_row_that_has_rested_is_offered_even_if_a_claim_under_way_had_left_it_out(make: Any) -> None:
    """R3: what that claim did not find starts no wait."""
    desk = make(rows=1)
    desk.claim()
    desk.hand.read()
    desk.hand.report(1, words.MISSED, None, "locked")
    looks_before_a_wake(desk)


def test_a_row_that_kills_its_children_is_counted_and_comes_first_again_until_its_last_attempt(make: Any) -> None:
    """R8, H4, D5: each death is committed beside its reason; the row stays in front of its lane under a new token."""
    desk = make(max_attempts=2, dead_letter="q_dead")
    desk.claim()
    (row,) = desk.hand.read()
    bury(desk)
    desk.until(lambda: desk.hand.ids() == [1])
    assert desk.hand.rows[-1][3] == 2
    assert desk.hand.rows[-1][TOKEN] != row[TOKEN]
    assert desk.rows("attempt, last_error")[0] == (1, "killed by signal 9")
    bury(desk)
    desk.until(lambda: desk.service.counts.dead == 1)
    assert desk.place.run("select id, attempt, last_error from q_dead") == [(1, 2, "killed by signal 9")]
    assert desk.store.asked("settle") == [("RECOUNT", 1), ("BURY", 1)]


@pytest.mark.parametrize("how", ["locked", "changed", "gone"])
def test_a_dead_childs_row_that_another_has_is_left_as_it_is(make: Any, how: str) -> None:
    """R8: taken elsewhere, put off there, or done: no attempt is spent, and nothing is written."""
    desk = make(rows=1)
    desk.claim()
    other = desk.place.connect()
    if how == "locked":
        other.execute("begin")
        other.execute(LOCK)
    else:
        desk.place.run("delete from q" if how == "gone" else "update q set payload = '[]'")
    bury(desk)
    desk.until(lambda: desk.service.counts.total == 1)
    counts = desk.service.counts
    assert (counts.lost, counts.retried, counts.acked) == {
        "locked": (1, 0, 0),
        "changed": (0, 1, 0),
        "gone": (0, 0, 1),
    }[how]
    assert len(desk.service.book) == 0
    if how == "locked":
        other.execute("rollback")
    assert desk.rows("last_error") == ([] if how == "gone" else [None])


def test_what_a_child_could_not_settle_is_settled_here_while_it_is_as_it_was(make: Any) -> None:
    """B5: a failed attempt is written by a fresh transaction; a row that was changed behind our back is left."""
    desk = make(lanes=(1, 1), workers=2)
    desk.claim()
    desk.place.run("update q set payload = '[]' where id = 2")
    for hand, id in zip(desk.hands, (1, 2), strict=True):
        hand.report(id, words.FAILED, 60.0, "ended by itself")
    desk.until(lambda: desk.service.counts.total == 2)
    assert (desk.service.counts.retried, desk.service.counts.lost) == (1, 1)
    assert desk.rows("attempt, last_error")[:2] == [(1, "ended by itself"), desk.rows("attempt, last_error")[2]]


def test_a_settlement_in_doubt_is_sent_again_and_counted_once(make: Any) -> None:
    """R1: where the connection broke behind the commit, the repeat finds the row changed: it was written."""
    desk = make(rows=1)
    desk.claim()
    desk.store.fail("settle", breaks_after)
    desk.hand.report(1, words.FAILED, 60.0, "ended by itself")
    desk.until(lambda: desk.service.counts.total == 1)
    assert desk.service.counts.retried == 1
    assert desk.store.asked("settle") == [("RETRY", 1)] * 2
    assert desk.rows("attempt") == [1]


def test_a_row_that_has_not_begun_is_forgotten_on_a_drain(make: Any) -> None:
    """H5, R8: no attempt was counted, nothing is written, and nothing waits for it."""
    desk = make(rows=1)
    desk.claim()
    desk.release(1)
    desk.until_idle()
    assert (len(desk.service.book), desk.service.releasing) == (0, 0)
    assert desk.store.asked("settle") == []
    assert desk.service.counts.total == 0


def test_the_default_pool_has_no_connection_for_each_row_that_children_take() -> None:
    """C2, F: the plain lock forms keep one for each lane; here the children's pools serve."""
    settings = Settings(processes=8)
    plain, taken = (
        subscribe(usual(without=["locked_until"])),
        subscribe(usual(without=["locked_until"]), transactional=True),
    )
    assert [boot.budget_of(settings, [each], None).coordinator for each in (plain, taken)] == [9, 3]
    assert boot.budget_of(settings, [plain, taken], None).coordinator == 9


def test_a_late_row_spends_its_attempt_here(make: Any) -> None:
    """E4: it is put off by the retry rule, with the reason, and goes to the dead letters at its last attempt."""
    desk = make(rows=1, timeout=1.0)
    desk.claim()
    held = desk.taken(1)
    late = Ended(held, Verb.RETRY, 60.0, "ran longer than its timeout of 1 s")
    held.lane = desk.hand.child.lanes[0]
    supervisor._bury(desk.replica, desk.hand.child, [], "", [late])
    desk.until(lambda: desk.service.counts.retried == 1)
    assert desk.rows("attempt, last_error") == [(1, "ran longer than its timeout of 1 s")]


@pytest.mark.parametrize("form", ["row lock", "advisory"])
def test_a_free_lane_is_offered_a_batch_and_nothing_is_read_ahead(make: Any, form: str) -> None:
    """B6, R3, C1: one statement for all free lanes, however quick the handler is; a lane that runs gets nothing more."""
    desk = make(rows=8, form=form, lanes=(1, 1), workers=2, batch=3)
    desk.service.average = 0.001
    desk.claim()
    assert [batches(desk, hand) for hand in (0, 1)] == [[[1, 2, 3]], [[4, 5, 6]]]
    assert {held.stage for held in desk.service.book} == {Stage.TAKEN}
    desk.place.run("delete from q where id <= 3")
    desk.hands[0].say((desk.hands[0].rows[0][0], words.ACK, 100))
    desk.until(lambda: len(desk.service.book) == 3)
    desk.claim()
    assert [batches(desk, hand) for hand in (0, 1)] == [[[7, 8]], []]
    assert [call[::2] for call in desk.store.asked("offer")] == [(6, []), (3, [4, 5, 6])]


def test_with_keys_a_batch_has_rows_of_one_lane_and_what_is_behind_a_missed_one_rests_with_it(make: Any) -> None:
    """B6, D1, R3: each lane is offered its own rows; no later row of a key is offered while an earlier one rests."""
    desk = make(rows=8, keys="abcdabcd", lanes=(1, 1), workers_by_key=2, workers=None, batch=8)
    desk.claim()
    first, second = ([row for batch in batches(desk, hand) for row in batch] for hand in (0, 1))
    assert sorted(first + second) == list(range(1, 9))
    assert first == sorted(first)
    assert not {each % 4 for each in first} & {each % 4 for each in second}
    hand, rows = next((hand, rows) for hand, rows in zip(desk.hands, (first, second), strict=True) if rows)
    (batch,) = hand.rows
    missed = [(row[0], words.MISSED, 10, None, "locked", None) for row in batch[2]]
    hand.say((batch[0], words.EACH, 10, missed))
    desk.until(lambda: not set(rows) & {held.id for held in desk.service.book})
    desk.place.fill(1, payload="{}", partition_key="abcd"[rows[0] - 1])
    desk.claims = True
    desk.until(lambda: batches(desk, desk.hands.index(hand)) == [[*rows, 9]])


@pytest.mark.parametrize("form", ["row lock", "advisory"])
def test_of_a_batch_that_killed_its_child_each_row_is_looked_at_and_goes_on_by_itself(make: Any, form: str) -> None:
    """R7, R8, B6: what was committed, or is another's by now, spends nothing; the others spend an attempt and run alone."""
    desk = make(rows=5, form=form, batch=5, max_attempts=2, dead_letter="q_dead")
    desk.claim()
    assert batches(desk) == [[1, 2, 3, 4, 5]]
    desk.place.run("delete from q where id = 2")
    desk.place.run("update q set payload = '[]' where id = 3")
    supervisor._bury(desk.replica, desk.hand.child, [desk.held(id) for id in range(1, 6)], "killed", [])
    alone = []

    def all_are_done() -> bool:
        for (row,) in batches(desk):
            alone.append(row)
            assert desk.hand.rows[-1][2][0][3] == 2
            desk.place.run("delete from q where id = ?", row)
            desk.hand.say((desk.hand.rows[-1][0], words.ACK, 100))
        return len(alone) == 3

    desk.until(all_are_done)
    assert alone == [1, 4, 5]
    desk.until(lambda: desk.service.counts.total == 5)
    assert (desk.service.counts.acked, desk.service.counts.retried) == (4, 1)
    assert sorted(desk.store.asked("settle")) == [("RECOUNT", 1), ("RECOUNT", 4), ("RECOUNT", 5)]
