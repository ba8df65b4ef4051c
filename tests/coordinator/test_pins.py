"""Connections that hold rows: pinned at the claim, watched while the handler runs, given back by the settlement."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from shardrun.coordinator import clock, pins
from shardrun.coordinator.child import State
from shardrun.coordinator.pins import Pinned
from shardrun.coordinator.service import MOST_LEFT_OUT, Service
from shardrun.db.store import Verb
from shardrun.errors import Conflict, StatementFailed
from shardrun.policy.leases import Hold
from shardrun.policy.pacing import Pacing
from shardrun.policy.routing import lane_of
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Held, breaks_after, breaks_before, refuses
from tests.servers import Postgres
from tests.store.place import usual

MakePinned = Callable[..., Desk]


@pytest.fixture
def make_pinned(make_desk: MakeDesk, postgres: Postgres) -> MakePinned:
    """Give a function that puts a coordinator together whose rows are held by row locks, unless told otherwise."""

    def make(
        rows: int = 1, *, lock: str | None = None, threads: int = 4, without: tuple[str, ...] = (), **more: Any
    ) -> Desk:
        left_out = ["locked_until", "partition_key", *without] if lock is None else ["locked_until"]
        queue = usual(without=left_out, **({"advisory_lock": lock} if lock else {}))
        desk = make_desk(server=postgres.new_database(), threads=threads, queue=queue, **more)
        desk.place.fill(rows, payload='{"a": 1}')
        return desk

    return make


def pinned(desk: Desk) -> set[Any]:
    """Find the connections that hold rows."""
    return cast(Pinned, desk.service.holding).grips


def sessions(desk: Desk) -> list[int]:
    """List the server processes that hold a row for this replica."""
    found = desk.place.run(
        "select pid from pg_stat_activity where state = 'idle in transaction' and application_name = 'shardrun desk'"
    )
    return [pid for (pid,) in found]


def given(desk: Desk) -> list[Any]:
    """Name the rows that the children were handed so far."""
    for hand in desk.hands:
        hand.read()
    return [frame[2] for hand in desk.hands for frame in hand.rows]


def end_session(desk: Desk) -> None:
    """Have the server end the one session that holds a row."""
    (pid,) = sessions(desk)
    desk.place.run("select pg_terminate_backend(?)", pid)


def refuse_for_now(desk: Desk, code: str = "40001") -> None:
    """Have deletes meet an error, which undoes their transaction, until `refusing` is empty."""
    desk.place.run("create table refusing as select 1 as one")
    desk.place.run(
        "create function busy() returns trigger language plpgsql as $$ begin if exists (select from refusing) then "
        f"raise exception 'busy' using errcode = '{code}'; end if; return old; end $$"
    )
    desk.place.run("create trigger busy before delete on q for each row execute function busy()")


def run_one(desk: Desk) -> None:
    """Claim row 1 and hand it to the child."""
    desk.ask()
    desk.until(lambda: desk.hand.ids() == [1])


def test_rows_in_work_leave_a_connection_free_and_each_is_settled_on_its_own(make_pinned: MakePinned) -> None:
    """C1, C2, B1: claims side by side, one row each, as many as the pool has connections less one."""
    desk = make_pinned(9, lanes=(5,), workers=5)
    desk.until(lambda: len(desk.service.book) == 3)
    assert len(sessions(desk)) == len(pinned(desk)) == 3
    assert desk.replica.threads.spare_for_claims == 0
    first = desk.hand.ids()
    desk.hand.report(first[0])
    desk.until(lambda: len(given(desk)) == 4)
    assert len(desk.rows()) == 8
    assert (desk.service.counts.acked, len(pinned(desk))) == (1, 3)
    for id in given(desk)[1:]:
        desk.hand.report(id, words.RETRY)
    desk.until(lambda: desk.service.counts.retried >= 3)
    assert max(desk.rows("attempt"), key=lambda count: count or 0) == 1


def test_no_row_is_read_ahead_of_a_lane(make_pinned: MakePinned) -> None:
    """R8: a connection is kept for rows that run, not for rows that wait."""
    desk = make_pinned(5, lanes=(1, 1), workers=2)
    desk.service.average = 0.0001
    desk.until(lambda: len(given(desk)) == 2)
    assert (desk.service.ahead, len(desk.service.book)) == (0, 2)


def test_a_row_whose_lane_is_busy_goes_back_and_its_key_is_left_out(make_pinned: MakePinned) -> None:
    """D1, R8, C4: other keys are claimed past it, one claim at a time, and no connection is kept for a row that waits."""
    desk = make_pinned(0, lock="{id}", lanes=(1, 1), workers_by_key=2)
    keys = [f"key-{number}" for number in range(20)]
    first, second = [key for key in keys if lane_of(key, 2) == 0][:2]
    for key in (first, second, next(key for key in keys if lane_of(key, 2) == 1)):
        desk.place.fill(1, partition_key=key)
    desk.until(lambda: sorted(given(desk)) == [1, 3])
    desk.until(lambda: not desk.service.releasing)
    assert ({held.id for held in desk.service.book}, len(pinned(desk))) == ({1, 3}, 2)
    assert (desk.rows("attempt"), set(desk.service.passed_over)) == ([1, 0, 1], {second})
    desk.hands[0].report(1)
    desk.until(lambda: sorted(given(desk)) == [1, 2, 3])


def test_subscriptions_on_one_pool_leave_each_other_room(make_pinned: MakePinned) -> None:
    """C2: one that has no row finds a connection; one that needs it for a moment, too."""
    desk = make_pinned(9, lanes=(5,), workers=5, threads=5)
    one = desk.service
    other = Service(
        subscription=one.subscription,
        label="q/other",
        store=one.store,
        pacing=Pacing(poll=1000.0, together=4, most=1, not_before=float("inf")),
        book=type(one.book)(float("inf")),
        children=1,
        holding=Pinned(),
    )
    desk.replica.services.append(other)
    desk.until(lambda: len(one.book) == 3)
    assert (one.holding.spare(desk.replica, one), other.holding.spare(desk.replica, other)) == (0, 1)


def test_a_running_row_whose_session_ends_is_lost_and_its_handler_told(make_pinned: MakePinned) -> None:
    """B4: the socket is watched; the late settlement is refused, and nothing is written."""
    desk = make_pinned()
    run_one(desk)
    (no,) = desk.hand.child.handed
    end_session(desk)
    desk.until(lambda: desk.held(1).hold is Hold.LOST)
    assert desk.hand.child.deliveries.words[words.lost(0)] == no
    assert not pinned(desk)
    desk.until(lambda: desk.replica.outage is None)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.lost == 1)
    assert (desk.rows("id, attempt"), len(desk.service.book), desk.service.counts.acked) == ([(1, None)], 0, 0)
    assert desk.replica.threads.spare_for_claims == 3


def test_a_row_that_waits_when_its_session_ends_is_not_started(make_pinned: MakePinned) -> None:
    """B1: another may have it by now; no delivery of it has ended, so none is counted."""
    desk = make_pinned()
    desk.hand.child.state = State.STARTING
    desk.ask()
    end_session(desk)
    desk.until(lambda: not pinned(desk) and desk.replica.outage is None)
    desk.hand.child.state = State.READY
    desk.step()
    assert (desk.hand.ids(), len(desk.service.book), desk.service.counts.lost) == ([], 0, 0)


def test_a_lost_row_that_is_claimed_again_here_is_not_delivered_twice(make_pinned: MakePinned) -> None:
    """R2: while it still runs it is adopted, by the new connection, and settled there."""
    desk = make_pinned(lanes=(2,), workers=2)
    run_one(desk)
    end_session(desk)
    desk.until(lambda: desk.held(1).hold is Hold.LOST and desk.replica.outage is None)
    desk.ask()
    assert (desk.held(1).hold, len(pinned(desk)), desk.hand.ids()) == (Hold.SURE, 1, [])
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    assert (desk.rows(), desk.service.counts.lost) == ([], 0)


@pytest.mark.parametrize(("fault", "left"), [(breaks_before, [1]), (breaks_after, [])])
def test_a_settlement_in_doubt_is_lost_and_never_repeated(make_pinned: MakePinned, fault: Any, left: list[int]) -> None:
    """B1: whether it was committed or not, another may have the row by now."""
    desk = make_pinned()
    run_one(desk)
    desk.store.fail("settle", fault)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.lost == 1 and desk.replica.outage is None)
    assert len(desk.store.asked("settle")) == 1
    assert (desk.rows(), len(desk.service.book), len(pinned(desk))) == (left, 0, 0)


def test_a_settlement_that_meets_a_conflict_is_repeated_on_its_connection(make_pinned: MakePinned) -> None:
    """B7: deadlocks and serialization failures pass."""
    desk = make_pinned()
    run_one(desk)
    (session,) = sessions(desk)
    desk.store.fail("settle", refuses(Conflict("deadlock")), refuses(Conflict("deadlock")))
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    assert len(desk.store.asked("settle")) == 3
    assert (desk.rows(), session in sessions(desk)) == ([], False)


def test_an_ack_that_the_database_refuses_is_a_failed_attempt_and_what_it_refuses_again_is_let_go_of(
    make_pinned: MakePinned,
) -> None:
    """E1: the row is not lost to others for it; one that can never be written is left alone for a while."""
    desk = make_pinned(2)
    desk.place.run("create function no() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    desk.place.run("create trigger d before delete on q for each row when (old.id = 1) execute function no()")
    run_one(desk)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.retried == 1)
    assert desk.place.run("select attempt, last_error from q where id = 1") == [(1, "PostgreSQL refused: no")]
    desk.place.run("create trigger u before update on q for each row when (old.id = 2) execute function no()")
    desk.ask()
    desk.until(lambda: 2 in desk.hand.ids())
    desk.hand.report(2, words.RETRY)
    desk.until(lambda: desk.service.counts.lost == 1 and not pinned(desk))
    assert sessions(desk) == []
    assert desk.replica.threads.spare_for_claims == 3


def test_a_row_claimed_again_before_its_settlement_was_answered_goes_back(make_pinned: MakePinned) -> None:
    """R2, R8: the two connections answer in any order; the new delivery is no attempt."""
    desk = make_pinned(without=("retry_after",))
    run_one(desk)
    held = Held(after=True)
    desk.store.fail("settle", held)
    desk.hand.report(1, words.RETRY)
    desk.until(held.begun.is_set)
    desk.ask()
    assert len(pinned(desk)) == 2
    held.go()
    desk.until(lambda: not pinned(desk) and not len(desk.service.book))
    assert (desk.rows("attempt"), desk.service.counts.retried, desk.service.releasing) == ([1], 1, 0)


@pytest.mark.parametrize("then", ["it is claimed again here", "its session ends"])
def test_a_row_whose_settlement_met_a_conflict_may_be_claimed_or_lost_before_the_repeat(
    make_pinned: MakePinned, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """R2, B7: its transaction is undone, so that it is free: what has ended is written by whoever has it, if anyone."""
    monkeypatch.setattr(pins, "AGAIN", 1000.0)
    desk = make_pinned(lanes=(2,), workers=2)
    refuse_for_now(desk)
    run_one(desk)
    (session,) = sessions(desk)
    desk.hand.report(1)
    desk.until(lambda: desk.replica.complaints)
    assert sessions(desk) == []
    if then == "its session ends":
        desk.place.run("select pg_terminate_backend(?)", session)
    else:
        desk.place.run("delete from refusing")
        desk.service.pacing.together = 1
        desk.ask()
    desk.until(lambda: not pinned(desk) and desk.replica.outage is None)
    left, acked, lost = ([1], 0, 1) if then == "its session ends" else ([], 1, 0)
    counts = desk.service.counts
    assert (desk.rows(), counts.acked, counts.lost, len(desk.service.book)) == (left, acked, lost, 0)
    assert desk.replica.threads.spare_for_claims == 3


@pytest.mark.parametrize("code", ["40001", "P0001"])
def test_a_row_claimed_again_before_its_refusal_was_answered_is_settled_where_it_is_held(
    make_pinned: MakePinned, code: str
) -> None:
    """R2: the refusal was the other connection's, which is free again."""
    desk = make_pinned(lanes=(2,), workers=2)
    refuse_for_now(desk, code)
    run_one(desk)
    held = Held()

    def answers_late(execute: Callable[[], Any]) -> Any:
        with pytest.raises((Conflict, StatementFailed)) as refusal:
            execute()
        return held(lambda: refuses(refusal.value)(execute))

    desk.store.fail("settle", answers_late)
    desk.hand.report(1)
    desk.until(held.begun.is_set)
    desk.place.run("delete from refusing")
    desk.service.pacing.together = 1
    desk.ask()
    assert len(pinned(desk)) == 2
    held.go()
    desk.until(lambda: not pinned(desk))
    assert (desk.rows(), desk.service.counts.acked, len(desk.service.book)) == ([], 1, 0)
    assert desk.replica.threads.spare_for_claims == 3


@pytest.mark.parametrize("fault", [breaks_before, refuses(Conflict("deadlock"))])
def test_an_adopted_rows_count_that_undoes_its_transaction_is_not_written_again(
    make_pinned: MakePinned, fault: Any
) -> None:
    """R2, F4: the row is lost with its lock, and the replica does not stay in an outage for it."""
    desk = make_pinned(lanes=(2,), workers=2)
    run_one(desk)
    end_session(desk)
    desk.until(lambda: desk.held(1).hold is Hold.LOST and desk.replica.outage is None)
    desk.store.fail("settle", fault)
    desk.ask()
    desk.until(lambda: not pinned(desk) and desk.replica.outage is None)
    assert desk.held(1).hold is Hold.LOST
    assert (desk.store.asked("settle"), pinned(desk)) == ([[("RECOUNT", 1)]], set())
    desk.claims = True
    desk.service.pacing.not_before = 0.0
    desk.until(lambda: desk.held(1).hold is Hold.SURE)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)


def test_a_row_whose_key_changes_in_work_moves_to_the_lock_of_the_new_one(make_pinned: MakePinned) -> None:
    """B4, R2: the connection that has the old key's lock lets it go, and is free again."""
    desk = make_pinned(lock="k-{priority}", lanes=(2,), workers=2)
    run_one(desk)
    desk.place.run("update q set priority = 7")
    desk.ask()
    desk.until(lambda: len(pinned(desk)) == 1)
    assert len(desk.place.run("select 1 from pg_locks where locktype = 'advisory'")) == 1
    desk.hand.report(1)
    desk.until(lambda: not pinned(desk))
    assert desk.place.run("select 1 from pg_locks where locktype = 'advisory'") == []
    assert (desk.rows(), desk.service.counts.acked, desk.hand.ids()) == ([], 1, [])


def test_a_crash_is_counted_on_the_connection_that_holds_the_row(make_pinned: MakePinned) -> None:
    """R8, H4: it is delivered again from the head of its lane, still locked, as the next attempt."""
    desk = make_pinned()
    run_one(desk)
    session = sessions(desk)
    desk.end(1, Verb.RECOUNT, reason="killed by signal 9")
    desk.service.lanes[0].waiting.append(desk.held(1))
    desk.until(lambda: [frame[3] for frame in desk.hand.read()] == [2])
    assert sessions(desk) == session
    desk.hand.report(1, words.SNOOZE, 60.0)
    desk.until(lambda: desk.service.counts.retried == 1)
    assert desk.rows("attempt, last_error") == [(1, "killed by signal 9")]


def test_a_key_that_becomes_free_is_claimed_for_at_once(make_pinned: MakePinned) -> None:
    """B4: rows that wait for a key wait for no poll interval; a busy key is not asked for again and again."""
    desk = make_pinned(3, lock="k-{priority}", lanes=(2,), workers=2)
    run_one(desk)
    desk.claims = True
    desk.until(lambda: desk.service.pacing.drought)
    claims = desk.service.pacing.claims
    desk.step()
    assert (desk.service.pacing.claims, desk.service.pacing.under_way) == (claims, 0)
    desk.hand.report(1)
    desk.until(lambda: desk.hand.ids() == [2])
    desk.hand.report(2)
    desk.until(lambda: desk.hand.ids() == [3])
    assert desk.place.run("select id, attempt from q") == [(3, 1)]


def test_a_key_that_becomes_free_while_a_claim_is_under_way_is_claimed_for_at_once(make_pinned: MakePinned) -> None:
    """B4: that claim may have looked before, and what it did not find starts no wait."""
    desk = make_pinned(2, lock="k-{priority}", lanes=(2,), workers=2)
    run_one(desk)
    looked = Held(after=True)
    desk.store.fail("claim", looked)
    desk.service.pacing.together = 1
    desk.claims, desk.service.pacing.not_before = True, 0.0
    desk.until(looked.begun.is_set)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    looked.go()
    desk.until(lambda: desk.hand.ids() == [2])


def test_a_row_that_goes_back_unstarted_asks_for_no_claim_of_its_key(make_pinned: MakePinned) -> None:
    """B4, D1: where more keys are passed over than a claim can leave out, the same row would be taken again and again."""
    desk = make_pinned(2, lock="{id}", lanes=(1, 1), workers_by_key=2)
    key = next(key for key in map(str, range(20)) if lane_of(key, 2) == 0)
    desk.place.run("update q set partition_key = ?", key)
    desk.ask()
    desk.until(lambda: given(desk) == [1])
    desk.service.passed_over = {f"other {number}": desk.service.lanes[0] for number in range(MOST_LEFT_OUT)}
    desk.ask()
    desk.until(lambda: len(pinned(desk)) == 1)
    assert desk.rows("attempt") == [1, 0]
    assert desk.service.pacing.not_before > clock.now()


def test_a_transaction_that_stays_open_for_long_is_named_once(
    make_pinned: MakePinned, caplog: pytest.LogCaptureFixture
) -> None:
    """B1: old snapshots cost every queue on the server."""
    desk = make_pinned()
    run_one(desk)
    with caplog.at_level(logging.WARNING, "shardrun"):
        for _ in range(2):
            pins.name_long_ones(desk.service, clock.now() + 59)
        assert caplog.messages == []
        for _ in range(2):
            pins.name_long_ones(desk.service, clock.now() + 61)
    (message,) = caplog.messages
    assert message.startswith("q row 1: its transaction has been open for 61 s")
