"""Settling over a real SQLite file: batches, lost rows, refusals, conflicts."""

from __future__ import annotations

import logging

import pytest

from shardrun.coordinator import batches, clock
from shardrun.coordinator.replica import Life
from shardrun.db.store import Verb
from shardrun.errors import Conflict, StatementFailed
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import LONG, Desk
from tests.coordinator.faults import Held, breaks_after, breaks_before, passes, refuses
from tests.store.place import usual


def claimed(make_desk: MakeDesk, count: int, **settings: object) -> Desk:
    """Make a desk that holds the first rows of its table, each waiting in front of a lane."""
    desk = make_desk(**{"lanes": (count,), "dead_letter": "q_dead", **settings})
    desk.place.fill(count, payload="{}")
    desk.claim()
    assert len(desk.service.book) == count
    return desk


def looks_before_a_wake(desk: Desk) -> None:
    """Wait for a wake while a claim is under way, which then finds nothing: another is due at once."""
    pacing = desk.service.pacing
    pacing.not_before = LONG + clock.now()
    pacing.claiming(1)
    desk.until(lambda: pacing.not_before == 0.0)
    pacing.claimed(1, 0, False, clock.now(), 0.0)
    assert pacing.not_before == 0.0


def forbid(desk: Desk, id: int, action: str = "delete") -> None:
    """Have the database refuse to delete (or update) a row, as a foreign key does."""
    desk.place.run(
        f"create trigger refuse_{action}_{id} before {action} on q when old.id = {id} "
        "begin select raise(abort, 'row is referred to'); end"
    )


def test_rows_that_end_while_a_batch_is_with_the_database_make_the_next_one(make_desk: MakeDesk) -> None:
    """B2: one statement for many rows, one batch at a time."""
    desk = claimed(make_desk, 6)
    held = Held()
    desk.store.fail("settle", held)
    desk.acknowledge(1)
    desk.send()
    desk.acknowledge(2, 3)
    desk.end(4, Verb.RETRY, delay=5.0)
    desk.step()
    held.go()
    desk.until_idle()
    assert desk.store.asked("settle") == [[("ACK", 1)], [("ACK", 2), ("ACK", 3), ("RETRY", 4)]]
    assert desk.rows() == [4, 5, 6]
    assert sorted(each.id for each in desk.service.book) == [5, 6]


def test_each_ending_writes_what_it_says(make_desk: MakeDesk) -> None:
    """E1: rows, counts and the summary agree."""
    desk = claimed(make_desk, 6)
    desk.acknowledge(1)
    desk.end(2, Verb.DROP, reason="not wanted")
    desk.end(3, Verb.RETRY, delay=3600.0, reason="ValueError: no")
    desk.end(4, Verb.SNOOZE, delay=3600.0)
    desk.end(5, Verb.BURY, reason="hopeless")
    desk.release(6)
    desk.until_idle()
    assert desk.rows("id, attempt, last_error") == [(3, 1, "ValueError: no"), (4, 0, None), (6, 0, None)]
    assert desk.value(5, "last_error", "q_dead") == "hopeless"
    counts = desk.service.counts
    assert (counts.acked, counts.dropped, counts.retried, counts.dead, counts.lost) == (1, 1, 2, 1, 0)
    assert not len(desk.service.book)


def test_a_row_that_another_replica_holds_is_lost_and_left_alone(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """B2: zero rows changed means lost, which is reported and changes nothing."""
    desk = claimed(make_desk, 3)
    desk.place.run("update q set locked_until = ?, attempt = 2 where id = 2", "2999-01-01 00:00:00.000")
    desk.acknowledge(1, 2)
    desk.end(3, Verb.RETRY, delay=1.0)
    with caplog.at_level(logging.WARNING, "shardrun"):
        desk.until_idle()
    assert desk.rows("id, attempt, locked_until")[0] == (2, 2, "2999-01-01 00:00:00.000")
    assert (desk.service.counts.acked, desk.service.counts.retried, desk.service.counts.lost) == (1, 1, 1)
    assert "q row 2: lost; another replica holds it" in caplog.text
    assert not len(desk.service.book)


def test_a_settlement_that_the_database_refuses_holds_up_no_other_row(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """E2: a foreign key that blocks the delete makes a failed attempt, with the database's words; the others are acked."""
    desk = claimed(make_desk, 5)
    forbid(desk, 3)
    desk.acknowledge(1, 2, 3, 4)
    desk.end(5, Verb.SNOOZE, delay=60.0)
    desk.until_idle()
    assert desk.rows() == [3, 5]
    assert "row is referred to" in desk.value(3, "last_error")
    assert desk.value(3, "retry_after > strftime('%Y-%m-%d %H:%M:%f', 'now')")
    counts = desk.service.counts
    assert (counts.acked, counts.retried, counts.lost) == (3, 2, 0)
    assert "q row 3: the database refused to settle it (ACK)" in caplog.text
    assert not len(desk.service.book)


def test_a_refused_settlement_at_the_last_attempt_goes_where_failures_go(make_desk: MakeDesk) -> None:
    """E3: it counts as a failure; where the move is refused as well the lease runs out, and nothing hangs."""
    desk = claimed(make_desk, 2, max_attempts=1)
    forbid(desk, 1)
    desk.acknowledge(1, 2)
    desk.until_idle()
    assert desk.store.asked("settle")[-1] == [("BURY", 1)]
    assert desk.rows() == [1]
    assert desk.place.run("select * from q_dead") == []
    assert (desk.service.counts.acked, desk.service.counts.lost) == (1, 1)
    assert not len(desk.service.book)


def test_a_refusal_that_repeats_gives_the_row_up_to_its_lease(make_desk: MakeDesk) -> None:
    """E2: StatementFailed twice for one row; the subscription goes on."""
    desk = claimed(make_desk, 2)
    forbid(desk, 1)
    forbid(desk, 1, "update")
    desk.acknowledge(1)
    desk.until_idle()
    assert not desk.is_free(1)
    desk.acknowledge(2)
    desk.until_idle()
    assert desk.rows() == [1]
    assert (desk.service.counts.acked, desk.service.counts.lost) == (1, 1)


def test_a_refused_release_lets_claims_go_on(make_desk: MakeDesk) -> None:
    """B2: nothing is claimed past rows on their way back, and a refusal ends that."""
    desk = claimed(make_desk, 1)
    forbid(desk, 1, "update")
    desk.release(1)
    desk.until_idle()
    assert desk.service.releasing == 0
    desk.place.fill(1, payload="{}")
    desk.claim()
    assert [each.id for each in desk.service.book] == [2]


def test_a_batch_that_met_a_conflict_is_repeated_until_it_is_written(make_desk: MakeDesk) -> None:
    """B7, C5: deadlocks and locked files are tried again; meanwhile no second batch overtakes it."""
    desk = claimed(make_desk, 4)
    desk.store.fail("settle", *[refuses(Conflict("the file is locked"))] * 3)
    desk.acknowledge(1)
    desk.end(2, Verb.RETRY, delay=1.0)
    desk.send()
    desk.acknowledge(3)
    desk.until_idle()
    asked = desk.store.asked("settle")
    assert asked[0] == [("ACK", 1), ("RETRY", 2)]
    assert {each for batch in asked[3:] for each in batch} == {("ACK", 1), ("RETRY", 2), ("ACK", 3)}
    assert max(map(len, asked[1:4])) == 1, "in smaller pieces, so that one locked row holds up no other"
    assert desk.rows() == [2, 4]
    assert (desk.service.counts.acked, desk.service.counts.retried) == (2, 1)


def test_a_conflict_while_rows_are_written_one_by_one_repeats_the_batch(make_desk: MakeDesk) -> None:
    """B7, R1: those that were written before it count as theirs, once."""
    desk = claimed(make_desk, 3)
    desk.store.fail("settle", refuses(StatementFailed("no")), passes, refuses(Conflict("the file is locked")))
    desk.acknowledge(1, 2, 3)
    desk.until_idle()
    assert desk.rows() == []
    assert (desk.service.counts.acked, desk.service.counts.lost) == (3, 0)


def test_a_connection_lost_while_rows_are_written_one_by_one_repeats_the_batch(make_desk: MakeDesk) -> None:
    """R1: those that were written before it count as theirs, once."""
    desk = claimed(make_desk, 3)
    desk.store.fail("settle", refuses(StatementFailed("no")), passes, breaks_before)
    desk.acknowledge(1, 2, 3)
    desk.until_idle()
    assert desk.rows() == []
    assert (desk.service.counts.acked, desk.service.counts.lost) == (3, 0)


@pytest.mark.parametrize("fault", [breaks_before, breaks_after])
def test_a_settlement_in_doubt_takes_effect_once(make_desk: MakeDesk, fault: object) -> None:
    """R1: every verb, whether the connection broke before or after the commit, is counted once and not lost."""
    desk = claimed(make_desk, 7)
    desk.store.fail("settle", fault)  # type: ignore[arg-type]
    desk.acknowledge(1)
    desk.end(2, Verb.DROP, reason="not wanted")
    desk.end(3, Verb.RETRY, delay=3600.0)
    desk.end(4, Verb.SNOOZE, delay=3600.0)
    desk.end(5, Verb.BURY, reason="hopeless")
    desk.release(6)
    desk.end(7, Verb.RECOUNT, reason="exit code 3")
    desk.until_idle()
    assert desk.rows("id, attempt") == [(3, 1), (4, 0), (6, 0), (7, 2)]
    assert [row[0] for row in desk.place.run("select id from q_dead")] == [5]
    counts = desk.service.counts
    assert (counts.acked, counts.dropped, counts.retried, counts.dead, counts.lost) == (1, 1, 2, 1, 0)
    assert (desk.service.releasing, [each.id for each in desk.service.book]) == (0, [7])
    assert desk.held(7).attempt == 2


def test_a_row_put_off_for_less_than_the_poll_interval_is_claimed_when_it_falls_due(make_desk: MakeDesk) -> None:
    """E1: Retry(after=...) does not wait for the next poll."""
    desk = claimed(make_desk, 1)
    desk.end(1, Verb.RETRY, delay=0.03)
    desk.claims = True
    desk.until(lambda: 1 in desk.service.book and desk.held(1).attempt == 2)


def test_a_row_that_falls_due_while_a_claim_is_under_way_is_claimed_all_the_same(make_desk: MakeDesk) -> None:
    """E1: that claim may have looked before; what it did not find starts no wait."""
    desk = claimed(make_desk, 1)
    desk.end(1, Verb.RETRY, delay=0.03)
    desk.until_idle()
    looks_before_a_wake(desk)


def test_what_goes_back_unstarted_asks_for_no_claim_and_what_is_done_for_one(make_desk: MakeDesk) -> None:
    """B4: a key that becomes free is claimed for at once, except by the row that has just been given back."""
    desk = make_desk(queue=usual(without=["locked_until"], advisory_lock="{id}"), lanes=(2,), workers=2)
    desk.place.fill(2, payload="{}")
    desk.claim()
    pacing = desk.service.pacing
    pacing.not_before = LONG + clock.now()
    desk.release(1)
    desk.until_idle()
    assert pacing.not_before > clock.now()
    desk.acknowledge(2)
    desk.until_idle()
    assert pacing.not_before == 0.0


def test_rows_that_ended_after_they_were_lost_are_counted_and_written_nowhere(make_desk: MakeDesk) -> None:
    """B2: the book knows it already."""
    desk = claimed(make_desk, 3)
    desk.step()
    rows = [desk.held(id) for id in (1, 2, 3)]
    desk.service.book.extending(rows)
    assert len(desk.service.book.extended(rows, "new", 0.0, set(), set())) == 3
    desk.acknowledge(1)
    desk.end(2, Verb.RETRY)
    desk.release(3)
    desk.until_idle()
    assert desk.store.asked("settle") == []
    assert (desk.service.counts.lost, desk.service.releasing, len(desk.service.book)) == (3, 0, 0)


def test_a_row_that_ends_while_others_are_in_work_waits_a_moment_for_company(make_desk: MakeDesk) -> None:
    """P4: one statement for rows that end close together, and not much later for one that ends alone."""
    desk = claimed(make_desk, 4)
    started = clock.now()
    desk.acknowledge(1)
    desk.step()
    desk.acknowledge(2)
    desk.until_idle()
    assert desk.store.asked("settle") == [[("ACK", 1), ("ACK", 2)]]
    assert clock.now() - started >= batches.HOLD


@pytest.mark.parametrize("reason", ["enough of them", "nothing else in hand", "on their way back", "a stop"])
def test_rows_wait_for_no_company_when_there_is_reason_not_to(make_desk: MakeDesk, reason: str) -> None:
    """P4, H5: the last rows of a table and those of a stop are written at once, and so are many."""
    count = batches.ENOUGH + 1
    desk = claimed(make_desk, count)
    match reason:
        case "enough of them":
            desk.acknowledge(*range(1, count))
        case "nothing else in hand":
            desk.acknowledge(*range(1, count + 1))
        case "on their way back":
            desk.release(1)
        case _:
            desk.acknowledge(1)
            desk.replica.life = Life.DRAINING
    desk.step()
    assert desk.service.settling is not None
