"""Leases kept from outside the handlers' processes, and what follows when the database goes away, over a real file."""

from __future__ import annotations

import logging

import pytest

from shardrun.coordinator import keeper
from shardrun.coordinator.child import State
from shardrun.db.store import Verb
from shardrun.errors import Conflict
from shardrun.policy.leases import Hold
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Fault, Held, breaks_after, breaks_before, refuses

LATER = "2999-01-01 00:00:00.000"


def holding(make_desk: MakeDesk, count: int, **settings: object) -> Desk:
    """Make a desk that holds rows, each handed to a lane of its own, with leases that are nearly over."""
    desk = make_desk(**{"lanes": (count,), "dead_letter": "q_dead", **settings})
    desk.place.fill(count, payload="{}")
    desk.claim()
    for held in desk.service.book:
        held.deadline -= desk.service.book.lease / 2
    return desk


def tokens(desk: Desk) -> dict[int, str]:
    """Read which tokens rows carry in the database."""
    return dict(desk.rows("id, locked_until"))


def known(desk: Desk) -> dict[int, str]:
    """List which tokens the book believes that they carry."""
    return {held.id: held.token for held in desk.service.book}


def steal(desk: Desk, id: int) -> None:
    """Let another replica hold a row."""
    desk.place.run("update q set locked_until = ? where id = ?", LATER, id)


def extend(desk: Desk) -> None:
    """Extend what wants it, and take the answer."""
    keeper.extend(desk.replica, desk.service)
    desk.until_idle()


def test_leases_that_are_half_over_are_extended_and_the_others_are_left_alone(make_desk: MakeDesk) -> None:
    """B2, R1: rows that run and rows that wait; the child learns until when its rows are held (R14)."""
    desk = holding(make_desk, 3)
    desk.held(2).deadline += 15
    before = tokens(desk)
    desk.place.run("update q set locked_until = strftime('%Y-%m-%d %H:%M:%f', locked_until, '-5 seconds')")
    for held in desk.service.book:
        held.token = tokens(desk)[held.id]
    extend(desk)
    assert desk.store.asked("extend") == [[1, 3]]
    after = tokens(desk)
    assert after == known(desk)
    assert (after[1] >= before[1], after[2] < before[2], after[3] >= before[3]) == (True, True, True)
    child = desk.replica.children[0]
    deadline = min(held.deadline for held in desk.service.book)
    assert child.deliveries.words[words.EXTENDED] == pytest.approx(deadline * 1e9, abs=1e6)


def test_the_keeper_looks_by_itself_a_dozen_times_per_lease(make_desk: MakeDesk) -> None:
    """B2: a row that runs for longer than its lease stays ours."""
    desk = make_desk(lease=0.6)
    desk.place.fill(1, payload="{}")
    desk.claim()
    first = desk.held(1).token
    keeper.start(desk.replica)
    desk.until(lambda: len(desk.store.asked("extend")) >= 4)
    desk.until_idle()
    assert first < desk.held(1).token == tokens(desk)[1]


def test_a_row_that_waits_and_is_lost_leaves_its_line_and_is_counted(make_desk: MakeDesk) -> None:
    """B2: nothing will start it; the others are extended."""
    desk = holding(make_desk, 2)
    desk.replica.children[0].state = State.RECALLED
    desk.hand.read()
    for id in (1, 2):
        desk.hand.report(id, words.UNSTARTED)
    desk.until(lambda: len(desk.service.waiting) == 2)
    steal(desk, 1)
    keeper.extend(desk.replica, desk.service)
    desk.until(lambda: len(desk.service.book) == 1)
    assert [held.id for held in desk.service.waiting] == [2]
    assert (tokens(desk)[1], desk.service.counts.lost) == (LATER, 1)


def test_a_row_that_runs_and_is_lost_is_counted_when_it_ends_and_written_nowhere(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """B2, R14: its handler cannot be called back; its settlement never reaches the other holder's row."""
    desk = holding(make_desk, 1)
    steal(desk, 1)
    extend(desk)
    assert "q row 1: the lease is lost" in caplog.text
    assert (desk.held(1).hold, desk.service.counts.lost) == (Hold.LOST, 0)
    desk.hand.report(1)
    desk.until(lambda: not len(desk.service.book))
    assert (tokens(desk)[1], desk.service.counts.lost, desk.service.counts.acked) == (LATER, 1, 0)
    assert desk.store.asked("settle") == []


def test_a_row_that_runs_and_is_lost_keeps_no_row_behind_it_from_starting(make_desk: MakeDesk) -> None:
    """R14: the child learns until when those are held; where the lost one has not started itself, it must not."""
    desk = holding(make_desk, 2, lanes=(2,))
    child = desk.replica.children[0]
    steal(desk, 1)
    extend(desk)
    assert child.deliveries.words[words.EXTENDED] == 0
    desk.hand.run(1, desk.service.lanes.index(desk.held(1).lane))
    desk.held(2).deadline -= desk.service.book.lease / 2
    extend(desk)
    assert child.deliveries.words[words.EXTENDED] == int(desk.held(2).deadline * 1e9) > 0


def test_a_settlement_waits_for_the_answer_of_an_extension(make_desk: MakeDesk) -> None:
    """R1: the token that the row carries must be known; rows that are not being extended do not wait."""
    desk = holding(make_desk, 2, threads=3)
    desk.held(2).deadline += 15
    held = Held(after=True)
    desk.store.fail("extend", held)
    keeper.extend(desk.replica, desk.service)
    assert held.begun.wait(10)
    desk.acknowledge(1, 2)
    desk.until(lambda: 2 not in desk.service.book)
    assert desk.store.asked("settle") == [[("ACK", 2)]]
    held.go()
    desk.until(lambda: not len(desk.service.book))
    assert (desk.rows(), desk.service.counts.acked, desk.service.counts.lost) == ([], 2, 0)


def test_an_extension_leaves_out_rows_whose_settlement_is_under_way(make_desk: MakeDesk) -> None:
    """R1: extension and settlement of a row never overlap."""
    desk = holding(make_desk, 2, threads=3)
    held = Held()
    desk.store.fail("settle", held)
    desk.acknowledge(1)
    desk.send()
    assert held.begun.wait(10)
    keeper.extend(desk.replica, desk.service)
    desk.until(lambda: not desk.service.extending)
    assert desk.store.asked("extend") == [[2]]
    held.go()
    desk.until(lambda: desk.service.counts.acked == 1)


def test_a_row_that_is_adopted_while_its_extension_is_under_way_keeps_its_new_token(make_desk: MakeDesk) -> None:
    """R2: the extension found it gone, the claim had it."""
    desk = holding(make_desk, 1, threads=3)
    held = Held()
    desk.store.fail("extend", held)
    keeper.extend(desk.replica, desk.service)
    assert held.begun.wait(10)
    desk.expire(1)
    desk.service.lanes[0].handed = 0  # room for one more
    desk.ask()
    desk.service.lanes[0].handed = 1
    held.go()
    desk.until_idle()
    assert (desk.held(1).hold, known(desk), desk.service.counts.lost) == (Hold.SURE, tokens(desk), 0)


def test_an_extension_that_meets_a_conflict_is_asked_for_again(make_desk: MakeDesk) -> None:
    """B7: nothing was done; the rows are still ours, and no outage begins."""
    desk = holding(make_desk, 1)
    desk.store.fail("extend", refuses(Conflict("the file is locked")))
    extend(desk)
    assert (desk.held(1).hold, desk.replica.outage) == (Hold.SURE, None)
    extend(desk)
    assert known(desk) == tokens(desk)
    assert len(desk.store.asked("extend")) == 2


@pytest.mark.parametrize("fault", [breaks_before, breaks_after])
def test_after_an_extension_in_doubt_the_token_is_found_out_before_anything_else(
    make_desk: MakeDesk, fault: Fault
) -> None:
    """R1: the old or the new value is ours; a settlement waits until it is known which."""
    desk = holding(make_desk, 2)
    desk.store.fail("extend", fault)
    keeper.extend(desk.replica, desk.service)
    desk.until(lambda: desk.replica.outage is not None)
    assert len(desk.held(1).tokens) == 2
    desk.acknowledge(1)
    desk.until_idle()
    assert desk.store.verbs()[-3:] == ["lease_end", "extend", "settle"]
    assert (desk.rows(), desk.service.counts.acked, desk.service.counts.lost) == ([2], 1, 0)
    assert known(desk) == tokens(desk)


def test_a_row_in_doubt_that_carries_neither_value_is_lost(make_desk: MakeDesk) -> None:
    """R1: anything else means that another has it."""
    desk = holding(make_desk, 2)
    held = Held()
    desk.store.fail("extend", breaks_before, held)
    keeper.extend(desk.replica, desk.service)
    desk.until(lambda: desk.replica.outage is not None)
    assert held.begun.wait(10)
    steal(desk, 2)
    held.go()
    desk.until_idle()
    assert (desk.held(1).hold, desk.held(2).hold) == (Hold.SURE, Hold.LOST)
    assert tokens(desk)[2] == LATER


@pytest.mark.parametrize("fault", [breaks_before, breaks_after])
def test_after_an_outage_leases_are_extended_first_then_doubts_repeated_then_rows_claimed(
    make_desk: MakeDesk, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """R2: so that no row of ours is claimed by ourselves, and none that we acked runs again."""
    desk = holding(make_desk, 3)
    desk.place.fill(1, payload="{}")
    desk.store.calls.clear()
    desk.store.fail("settle", fault)
    desk.acknowledge(1)
    desk.end(2, Verb.RETRY, delay=3600.0)
    desk.until(lambda: desk.replica.outage is not None)
    desk.claims = True
    desk.service.pacing.not_before = 0.0
    desk.until(lambda: 4 in desk.service.book)
    verbs = desk.store.verbs()
    assert [verb for verb in verbs if verb != "lease_end"][-4:] == ["settle", "extend", "settle", "claim"]
    assert desk.store.asked("extend") == [[3]]
    assert desk.rows("id, attempt") == [(2, 1), (3, 1), (4, 1)]
    counts = desk.service.counts
    assert (counts.acked, counts.retried, counts.lost) == (1, 1, 0)
    assert "the connection to the database is gone" in caplog.text
    assert "the database answers again" in caplog.text


def test_while_the_database_is_away_tries_back_off_and_nothing_else_is_sent(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """F4: tries wait longer and longer; what ends meanwhile is settled when it is back."""
    desk = holding(make_desk, 3)
    desk.store.calls.clear()
    desk.store.away = desk.database.away = True
    desk.acknowledge(1)
    desk.claims = True
    desk.send()
    desk.until(lambda: desk.replica.outage is not None and desk.replica.outage.tries >= 3)
    desk.acknowledge(2)
    desk.until(lambda: desk.replica.outage is not None and desk.replica.outage.tries >= 4)
    assert desk.store.asked("claim") == []
    assert desk.store.asked("settle") == [[("ACK", 1)]]
    assert caplog.text.count("the connection to the database is gone") == 1
    assert "answers again" not in caplog.text
    desk.store.away = desk.database.away = False
    desk.until(lambda: desk.service.counts.acked == 2)
    assert (desk.rows(), desk.service.counts.lost) == ([3], 0)
    assert known(desk) == tokens(desk)


@pytest.mark.parametrize("held", [0, 1])
def test_an_outage_without_a_lease_to_extend_ends_when_the_database_answers_and_not_before(
    make_desk: MakeDesk, held: int, caplog: pytest.LogCaptureFixture
) -> None:
    """F4: with nothing in hand, or with nothing but a batch in doubt; no turning round and round meanwhile."""
    desk = make_desk(lanes=(2,))
    desk.place.fill(1, payload="{}")
    if held:
        desk.claim()
    desk.store.away = desk.database.away = True
    if held:
        desk.acknowledge(1)
    desk.claims = True
    desk.service.pacing.not_before = 0.0
    desk.step()
    desk.until(lambda: desk.replica.outage is not None)
    outage = desk.replica.outage
    desk.until(lambda: outage is not None and outage.tries >= 4)
    assert desk.replica.outage is outage
    assert len(desk.store.asked("settle")) == held
    assert caplog.text.count("the connection to the database is gone") == 1
    desk.store.away = desk.database.away = False
    desk.until(lambda: desk.service.counts.acked == held and desk.replica.outage is None)
    assert "the database answers again" in caplog.text


def test_an_outage_is_told_once_and_its_end_too(make_desk: MakeDesk, caplog: pytest.LogCaptureFixture) -> None:
    """K2: one line for the begin and one for the end, with its length."""
    desk = holding(make_desk, 2)
    desk.store.fail("settle", breaks_before)
    desk.acknowledge(1)
    with caplog.at_level(logging.WARNING, "shardrun"):
        desk.until_idle()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == "the connection to the database is gone: the connection broke before"
    assert lines[1].startswith("the database answers again, after 0.")
