"""The coordinator's part of transactional mode: what is handed over, what is extended, what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.coordinator import clock, keeper, one_writer, supervisor
from shardrun.db.store import Verb
from shardrun.policy.leases import Hold, Stage
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Held

TOKEN, CHARGED = 9, 10


@pytest.fixture
def make(make_desk: MakeDesk) -> Any:
    """Give a function that makes a desk of a transactional handler with rows in hand; `many` where several may write."""

    def made(rows: int = 3, many: bool = True, **settings: Any) -> Desk:
        desk = make_desk(transactional=True, **settings)
        if many:
            desk.database.one_writer = False  # type: ignore[attr-defined]
        desk.place.fill(rows, payload="{}")
        desk.service.average = 0.001  # rows are read ahead
        desk.claim()
        return desk

    return made


def settled(verb: Verb, delay: float | None = None, reason: str | None = None) -> tuple[Any, ...]:
    """Write what a report says of a settlement: behind its code, seconds, reason, trace, verb and delay."""
    return (delay, reason, None, verb.value, delay)


def test_a_lane_gets_one_row_at_a_time_with_its_token_and_its_child_settles_it(make: Any) -> None:
    """R3, B5: never a second one ahead; an ack that is reported is committed, and nothing is written for it."""
    desk = make()
    (row,) = desk.hand.read()
    held = desk.held(1)
    assert row[2] == 1
    assert row[TOKEN:] == (held.token, False)
    assert held.stage is Stage.TAKEN
    assert desk.hand.read() == []
    desk.hand.report(1)
    desk.until(lambda: desk.hand.ids() == [2])
    assert desk.service.counts.acked == 1
    assert 1 not in desk.service.book
    assert desk.store.asked("settle") == []


def test_rows_in_front_of_lanes_are_extended_and_a_row_that_was_handed_over_is_not(make: Any) -> None:
    """R3: the child takes it by its token; and what its child is told about deadlines is about others' rows only (R14)."""
    desk = make()
    keeper.extend(desk.replica, desk.service, everything=True)
    desk.until_idle()
    assert desk.store.asked("extend") == [[2, 3]]
    assert desk.held(1).hold is Hold.SURE
    assert desk.hand.child.deliveries.words[words.EXTENDED] == 0


def test_a_row_is_handed_over_only_while_its_token_is_known(make: Any) -> None:
    """R1, R3: not while an extension is under way."""
    desk = make()
    gate = Held()
    desk.store.fail("extend", gate)
    keeper.extend(desk.replica, desk.service, everything=True)
    assert gate.begun.wait(10)
    desk.hand.report(1)
    desk.until(lambda: desk.service.counts.acked == 1)
    assert desk.hand.ids() == []
    gate.go()
    desk.until(lambda: desk.hand.ids() == [2])
    assert desk.hand.rows[-1][TOKEN] == desk.held(2).token


@pytest.mark.parametrize("still_ours", [True, False])
def test_a_missed_row_counts_nothing_and_is_asked_for_before_it_is_handed_again(make: Any, still_ours: bool) -> None:
    """R3: "taken elsewhere"; where it is ours it comes again, with no attempt spent, before the rows behind it.

    It is asked for by itself, and not by the keeper's next look only: its lane stands still until then.
    """
    desk = make()
    if not still_ours:
        desk.place.run(f"update q set locked_until = {desk.place.seconds(60)} where id = 1")
    gate = Held()
    desk.store.fail("extend", gate)
    desk.hand.report(1, words.MISSED, None, "locked")
    desk.until(lambda: desk.held(1).hold is Hold.EXTENDING)
    assert gate.begun.wait(10)
    assert desk.hand.ids() == []
    gate.go()
    desk.until(lambda: bool(desk.hand.ids()))
    assert desk.hand.rows[-1][2] == (1 if still_ours else 2)
    assert desk.service.counts.total == desk.service.counts.lost == (0 if still_ours else 1)
    assert desk.value(1, "attempt") == 1


def test_a_missed_row_is_asked_for_after_an_extension_that_was_sent_before(make: Any) -> None:
    """R1, R3: that one leaves it out, and two extensions are never under way together."""
    desk = make(threads=3)
    earlier = Held()
    desk.store.fail("extend", earlier)
    keeper.extend(desk.replica, desk.service, everything=True)
    assert earlier.begun.wait(10)
    desk.hand.report(1, words.MISSED, None, "locked")
    desk.until(lambda: desk.held(1).hold is Hold.DOUBT)
    keeper._look_between(desk.replica, desk.service)
    assert desk.held(1).hold is Hold.DOUBT
    earlier.go()
    desk.until(lambda: desk.hand.ids() == [1])
    assert desk.store.asked("extend") == [[2, 3], [1]]


ENDINGS = [
    (words.RETRY, settled(Verb.RETRY, 0.0), "retried"),
    (words.SNOOZE, settled(Verb.SNOOZE, 9.0), "retried"),
    (words.FAILED, settled(Verb.BURY, None, "ValueError: no"), "dead"),
    (words.UNDECODABLE, settled(Verb.RETRY, 2.0, "no dict"), "retried"),
    (words.DROP, settled(Verb.DROP, None, "not wanted"), "dropped"),
    (words.LOST, (None, "in doubt", None), "lost"),
]


@pytest.mark.parametrize(("code", "more", "counted"), ENDINGS)
def test_what_a_child_has_settled_is_counted_and_logged_and_not_written_again(
    make: Any, caplog: pytest.LogCaptureFixture, code: int, more: tuple[Any, ...], counted: str
) -> None:
    """B5, E1: counts, logs and what `--until-empty` waits for are those of plain mode."""
    desk = make(rows=1)
    desk.replica.until_empty = True
    desk.hand.report(1, code, *more)
    desk.until(lambda: desk.service.counts.total == 1)
    assert getattr(desk.service.counts, counted) == 1
    assert desk.store.asked("settle") == []
    assert len(desk.service.book) == 0
    assert desk.service.awaited == ({1} if counted == "retried" else set())
    assert ("q row 1 attempt 1" in caplog.text) is (code in (words.FAILED, words.UNDECODABLE))


def test_what_a_child_could_not_settle_is_settled_here(make: Any) -> None:
    """B5: by the same token, as any other row."""
    desk = make(rows=1)
    desk.hand.report(1, words.FAILED, 60.0, "TransactionEnded: by itself")
    desk.until(lambda: desk.service.counts.retried == 1)
    assert desk.store.asked("settle") == [[("RETRY", 1)]]
    assert desk.value(1, "last_error") == "TransactionEnded: by itself"


def test_a_row_that_went_back_and_was_claimed_again_before_its_report_goes_back_once_more(make: Any) -> None:
    """R2: it is ours under another token; what its child has settled stays counted."""
    desk = make(rows=1)
    held = desk.held(1)
    aged = "strftime('%Y-%m-%d %H:%M:%f', locked_until, '-365000 days')"
    desk.place.run(f"update q set locked_until = {aged} where id = 1")  # as its child's settlement left it
    desk.service.pacing.not_before = 0.0
    desk.ask()
    assert held.token != held.handed_token
    desk.hand.report(1, words.RETRY, *settled(Verb.RETRY, 0.0))
    desk.until(lambda: desk.service.counts.retried == 1)
    desk.until(lambda: 1 not in desk.service.book)
    assert desk.is_free(1)
    assert desk.value(1, "attempt") == 1


def bury(desk: Desk, is_blamed: bool) -> None:
    """Let the child of row 1 be dead, of that row or of another lane's."""
    blamed = [desk.held(1)] if is_blamed else []
    supervisor._bury(desk.replica, desk.hand.child, blamed, "killed", [])
    desk.until_idle()


FATES = [
    ("delete from q where id = 1", "acked", 0),
    ("insert into q_dead (id) select 1; delete from q where id = 1", "dead", 0),
    (
        "update q set locked_until = strftime('%Y-%m-%d %H:%M:%f', locked_until, '-365000 days') where id = 1",
        "retried",
        0,
    ),
    ("update q set locked_until = strftime('%Y-%m-%d %H:%M:%f', 'now', '+9 seconds') where id = 1", "lost", 0),
    ("select 1", None, 2),
]


@pytest.mark.parametrize("is_blamed", [True, False])
@pytest.mark.parametrize(("committed", "counted", "attempt"), FATES)
def test_what_a_dead_child_had_committed_is_neither_run_again_nor_lost(
    make: Any, committed: str, counted: str | None, attempt: int, is_blamed: bool
) -> None:
    """R3, R4, H2, E4: the row is looked for first; only what had not committed runs again, and only the blamed one pays.

    A retry that was committed is waited for by `--until-empty` (E1).
    """
    desk = make(rows=1, max_attempts=3, dead_letter="q_dead")
    desk.replica.until_empty = True
    desk.hand.read()
    for text in committed.split("; "):
        desk.place.run(text)
    bury(desk, is_blamed)
    attempt -= not is_blamed
    if counted:
        desk.until(lambda: desk.service.counts.total == 1)
        assert getattr(desk.service.counts, counted) == 1
        assert desk.service.awaited == ({1} if counted == "retried" else set())
        assert len(desk.service.book) == 0
        assert desk.store.asked("settle") == []
    else:
        desk.until(lambda: desk.hand.ids() == [1])
        assert desk.hand.rows[-1][3] == attempt
        assert desk.value(1, "attempt") == attempt


def test_where_one_connection_writes_one_transaction_runs_and_the_coordinator_goes_before_the_next(make: Any) -> None:
    """R3, C5: on SQLite the others wait in front of their lanes, where they are extended, and so does every claim."""
    desk = make(rows=4, many=False, lanes=(1, 1), workers=2)
    ids = [hand.ids() for hand in desk.hands]
    assert sorted(map(len, ids)) == [0, 1]
    assert one_writer.is_taken(desk.replica)
    claims, desk.claims = desk.store.asked("claim"), True
    desk.service.pacing.not_before = 0.0
    desk.step()
    assert desk.store.asked("claim") == claims
    gate = Held()
    desk.store.fail("claim", gate)
    hand = desk.hands[0] if ids[0] else desk.hands[1]
    hand.report([*ids[0], *ids[1]][0])
    desk.until(lambda: desk.service.pacing.under_way)
    assert gate.begun.wait(10)
    desk.claims = False
    desk.step()
    assert desk.service.counts.acked == 1
    assert [each.ids() for each in desk.hands] == [[], []]
    gate.go()
    desk.until(lambda: any(each.ids() for each in desk.hands))
    assert clock.now() < desk.held(2).deadline
