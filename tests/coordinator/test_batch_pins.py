"""A batch under row locks: one connection and one transaction for all its rows; the test plays the child."""

from __future__ import annotations

from typing import cast

import pytest

from shardrun.coordinator import pins
from shardrun.coordinator.grips import Grip
from shardrun.coordinator.pins import Pinned
from shardrun.db.store import Verb
from shardrun.errors import StatementFailed
from shardrun.policy.leases import Hold
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import breaks_before, refuses
from tests.coordinator.test_batch_rows import batches, numbers, report
from tests.coordinator.test_claiming import keys
from tests.coordinator.test_pins import refuse_for_now
from tests.servers import Postgres
from tests.store.place import usual


@pytest.fixture
def desk(make_desk: MakeDesk, postgres: Postgres) -> Desk:
    """Put a coordinator together that has a batch of three rows under row locks in work."""
    queue = usual(without=["locked_until", "partition_key"])
    made = make_desk(server=postgres.new_database(), threads=4, queue=queue, batch=3, lanes=(2,), workers=2)
    made.service.pacing.most = 3
    made.place.fill(3, payload='{"a": 1}')
    made.ask()
    made.until(lambda: made.hand.read() or made.hand.rows)
    assert [[row[2] for row in frame[2]] for frame in made.hand.rows] == [[1, 2, 3]]
    return made


def grips(desk: Desk) -> int:
    """Count the connections that hold rows."""
    return len(cast(Pinned, desk.service.holding).grips)


def end_session(desk: Desk) -> None:
    """Have the server end the session that holds the batch."""
    (pid,) = [
        pid
        for (pid,) in desk.place.run(
            "select pid from pg_stat_activity where state = 'idle in transaction' and application_name = 'shardrun desk'"
        )
    ]
    desk.place.run("select pg_terminate_backend(?)", pid)


def test_the_rows_of_a_batch_share_a_connection_and_settle_together(desk: Desk) -> None:
    """B6, B1: nothing is written before the last of them has ended, here by itself after their child died."""
    first, second, third = numbers(desk)[0]
    assert grips(desk) == 1
    child = desk.replica.children[0]
    child.batches.clear()
    for no, code in ((first, words.DROP), (second, words.RETRY)):
        desk.hand.say((no, code, 1, 0.0, None, None))
    desk.until(lambda: list(child.handed) == [third])
    assert (desk.rows(), desk.store.asked("settle")) == ([1, 2, 3], [])
    desk.hand.say((third, words.ACK, 1))
    desk.until(lambda: not grips(desk))
    assert len(desk.store.asked("settle")) == 1
    assert desk.rows("id, attempt") == [(2, 1)]
    counts = desk.service.counts
    assert (counts.acked, counts.dropped, counts.retried) == (1, 1, 1)


def test_a_row_that_the_database_refuses_to_settle_fails_no_other_of_its_batch(desk: Desk) -> None:
    """E1, C104: then they are written one by one, each only if nobody has taken it meanwhile."""
    desk.place.run("create function no() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    desk.place.run("create trigger d before delete on q for each row when (old.id = 2) execute function no()")
    report(desk, numbers(desk)[0][0])
    desk.until(lambda: desk.service.counts.retried == 1 and not grips(desk))
    assert desk.rows("id, attempt, last_error") == [(2, 1, "PostgreSQL refused: no")]
    assert desk.service.counts.acked == 2


def test_a_batch_whose_session_ends_is_lost_as_a_whole_and_its_handler_told(desk: Desk) -> None:
    """B4, B6: under the number that the child knows it by; nothing of it is written."""
    no = numbers(desk)[0][0]
    end_session(desk)
    desk.until(lambda: all(held.hold is Hold.LOST for held in desk.service.book))
    assert desk.hand.child.deliveries.words[words.lost(0)] == no
    desk.until(lambda: desk.replica.outage is None)
    report(desk, no)
    desk.until(lambda: desk.service.counts.lost == 3)
    assert desk.rows("id, attempt") == [(1, None), (2, None), (3, None)]
    assert (len(desk.service.book), grips(desk)) == (0, 0)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_lost_batch_that_is_claimed_again_here_is_adopted_as_a_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    """R2: by one connection, whether the end of the other was seen before or not; its rows are settled there."""
    (grip,) = cast(Pinned, desk.service.holding).grips
    if not is_noticed:
        monkeypatch.setattr(Grip, "look", lambda _: None)
        grip._look_away()
    end_session(desk)
    if is_noticed:
        desk.until(lambda: all(held.hold is Hold.LOST for held in desk.service.book) and not desk.replica.outage)
    desk.ask()
    assert [held.hold for held in desk.service.book] == [Hold.SURE] * 3
    report(desk, numbers(desk)[0][0])
    desk.until(lambda: not grips(desk))
    assert (desk.rows(), desk.service.counts.acked, desk.service.counts.lost) == ([], 3, 0)


def test_a_batch_of_which_one_row_is_claimed_again_after_a_conflict_is_settled_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, B7: that one on its new connection, the others on the old one, each if it can be had again."""
    monkeypatch.setattr(pins, "AGAIN", 1000.0)
    refuse_for_now(desk)
    report(desk, numbers(desk)[0][0])
    desk.until(lambda: desk.replica.complaints)
    desk.place.run("delete from refusing")
    desk.service.pacing.most = desk.service.pacing.together = 1
    desk.ask()
    desk.until(lambda: not grips(desk))
    assert (desk.rows(), desk.service.counts.acked, len(desk.service.book)) == ([], 3, 0)


def test_rows_whose_connection_breaks_while_another_of_their_batch_is_counted_are_told_so(desk: Desk) -> None:
    """B1, B4: the others are no more held than the one that was being written."""
    no = numbers(desk)[0][0]
    desk.store.fail("settle", breaks_before)
    desk.end(1, Verb.RECOUNT, reason="killed by signal 9")
    desk.until(lambda: not grips(desk))
    assert {held.id: held.hold for held in desk.service.book} == {2: Hold.LOST, 3: Hold.LOST}
    assert desk.hand.child.deliveries.words[words.lost(0)] == no
    assert desk.service.counts.lost == 1


@pytest.mark.parametrize("code", ["40001", "P0001"])
def test_a_count_that_undoes_the_transaction_loses_the_other_rows_of_the_batch(desk: Desk, code: str) -> None:
    """B1, B4: what runs without a lock is told so and settles nothing; the row itself is taken again, where that may pass."""
    desk.place.run("create table refusing as select 1 as one")
    desk.place.run(
        "create function no() returns trigger language plpgsql as $$ begin if exists (select from refusing) then "
        f"raise exception 'no' using errcode = '{code}'; end if; return new; end $$"
    )
    desk.place.run("create trigger u before update on q for each row when (old.id = 1) execute function no()")
    desk.end(1, Verb.RECOUNT, reason="killed by signal 9")
    desk.until(lambda: all(desk.held(id).hold is Hold.LOST for id in (2, 3)))
    desk.place.run("delete from refusing")
    if code == "P0001":
        desk.until(lambda: not grips(desk))
        assert [held.id for held in desk.service.book] == [2, 3]
        return
    desk.until(lambda: desk.held(1).attempt == 2)
    assert (desk.held(1).hold, grips(desk), desk.service.counts.lost) == (Hold.SURE, 1, 0)
    assert desk.place.run("select id from q order by id for update skip locked") == [(2,), (3,)]


def test_a_row_that_goes_back_with_the_rest_of_its_batch_keeps_no_claim_from_being_sent(desk: Desk) -> None:
    """B6: the others may run for long."""
    first, _, third = numbers(desk)[0]
    desk.hand.child.batches.clear()
    desk.release(2)
    desk.step()
    assert (desk.service.releasing, desk.store.asked("settle")) == (0, [])
    for no in (first, third):
        desk.hand.say((no, words.ACK, 1))
    desk.until(lambda: not grips(desk))
    assert (desk.rows("id, coalesce(attempt, 0)"), desk.service.releasing) == ([(2, 0)], 0)


def test_a_batch_given_back_unstarted_frees_its_connection(desk: Desk) -> None:
    """H5: uncounted, in one transaction."""
    desk.release(1, 2, 3)
    desk.until(lambda: not grips(desk))
    assert (desk.service.releasing, len(desk.store.asked("settle"))) == (0, 1)
    assert desk.rows("id, coalesce(attempt, 0)") == [(1, 0), (2, 0), (3, 0)]


def test_a_batch_by_key_locks_rows_of_one_lane_only(make_desk: MakeDesk, postgres: Postgres) -> None:
    """B6, D1: those of the first lane that is free; the others stay free for the next claim."""
    queue = usual(without=["locked_until"])
    desk = make_desk(server=postgres.new_database(), threads=4, queue=queue, batch=4, lanes=(2,), workers_by_key=2)
    desk.service.pacing.most = 4
    for key in keys(2) * 3:
        desk.place.fill(1, payload="{}", partition_key=key)
    desk.until(lambda: len(desk.service.book) == 5)
    assert batches(desk) == [[1, 3], [2, 4, 6]]
    assert grips(desk) == 2


def test_a_key_whose_row_could_not_be_settled_is_free_when_its_batch_has_ended(
    make_desk: MakeDesk, postgres: Postgres
) -> None:
    """B4, B6: the connection holds more than it wrote, and serves others afterwards."""
    queue = usual(without=["locked_until", "partition_key"], advisory_lock="{id}")
    desk = make_desk(server=postgres.new_database(), threads=4, queue=queue, batch=2, lanes=(1,), workers=1)
    desk.service.pacing.most = 2
    desk.place.fill(2, payload="{}")
    desk.ask()
    desk.until(lambda: batches(desk) == [[1, 2]])
    desk.store.fail("settle", refuses(StatementFailed("no")))
    desk.end(1, Verb.RETRY)
    desk.until(lambda: desk.service.counts.lost == 1)
    desk.acknowledge(2)
    desk.until(lambda: not grips(desk))
    assert desk.place.run("select 1 from pg_locks where locktype = 'advisory'") == []
