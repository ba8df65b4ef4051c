"""Claiming over a real SQLite file: what comes into the book, in front of which lane, and what goes back."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from shardrun.coordinator import claim
from shardrun.coordinator.replica import Life, Outage
from shardrun.coordinator.service import Service
from shardrun.db.store import Verb
from shardrun.errors import Conflict, StatementFailed
from shardrun.policy.leases import Stage
from shardrun.policy.routing import lane_of
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Held, breaks_before, refuses

MILLISECOND = 0.001
"""A handler's time at which 50 rows wait in front of a lane."""


def keys(lanes: int) -> list[str]:
    """Name a key for each of so many lanes."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(lane_of(f"key {number}", lanes), f"key {number}")
    return [found[lane] for lane in range(lanes)]


def line(desk: Desk, lane: int) -> list[int]:
    """List the rows that wait in front of a lane."""
    return [held.id for held in desk.service.lanes[lane].waiting]


def test_claimed_rows_go_in_claim_order_to_the_lanes_that_their_keys_name(make_desk: MakeDesk) -> None:
    """D1, D2: priority first, then id; rows without a key go to any lane."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    first, second = keys(2)
    desk.service.average = MILLISECOND
    for key, priority in ((first, 5), (second, 5), (None, 5), (first, 1), (first, 5)):
        desk.place.fill(1, payload="{}", partition_key=key, priority=priority)
    desk.claim()
    handed = [(frame[1], frame[2]) for frame in desk.hand.read()]
    assert [id for lane, id in handed if lane == 0 and id != 3] == [4, 1, 5]
    assert [id for lane, id in handed if lane == 1 and id != 3] == [2]
    assert {id for _, id in handed} == {1, 2, 3, 4, 5}


def test_a_row_waits_in_front_of_its_lane_and_nothing_is_asked_beyond_the_room(make_desk: MakeDesk) -> None:
    """C1: as many rows as there are free lanes while the handler's time is unknown."""
    desk = make_desk(lanes=(2, 1))
    desk.place.fill(10, payload="{}")
    desk.claim()
    assert desk.store.asked("claim") == [(3, [])]
    assert sorted(desk.hands[0].ids() + desk.hands[1].ids()) == [1, 2, 3]
    assert desk.value(4, "attempt") is None


@pytest.mark.parametrize("reason", ["starting", "draining", "outage", "releasing", "in doubt", "no connection"])
def test_nothing_is_claimed_when_it_must_not_be(make_desk: MakeDesk, reason: str) -> None:
    """H5, R2, D5: not on a stop, not in an outage, not past rows on their way back or in doubt, not without a connection."""
    desk = make_desk()
    desk.place.fill(1, payload="{}")
    match reason:
        case "starting" | "draining":
            desk.replica.life = Life[reason.upper()]
        case "outage":
            desk.replica.outage = Outage(0.0, 0.0)
        case "releasing":
            desk.service.releasing = 1
        case "in doubt":
            desk.service.in_doubt = object()  # type: ignore[assignment]
        case _:
            held = Held()
            desk.replica.threads.submit(lambda connection: held(lambda: None), lambda _: None)
            held.go()
    claim.claim(desk.replica)
    assert desk.service.pacing.under_way == 0


def test_an_empty_table_is_asked_once_and_then_after_the_poll_interval(make_desk: MakeDesk) -> None:
    """C3: one claim, and the loop knows when the next one is due."""
    desk = make_desk(lanes=(8,), poll=5.0)
    desk.until(lambda: desk.service.pacing.claims == 1)
    for _ in range(3):
        desk.step()
    assert desk.store.asked("claim") == [(8, [])]
    assert claim.next_claim(desk.replica) == desk.service.pacing.not_before > 0


def test_subscriptions_on_one_pool_take_turns(make_desk: MakeDesk) -> None:
    """C2: of two that always want rows and share one spare connection, none takes it every time."""
    desk = make_desk(lanes=(1,))
    one, held = desk.service, Held()
    other = Service(
        subscription=one.subscription,
        label="q/other",
        store=one.store,
        pacing=type(one.pacing)(poll=0.0, together=1),
        book=type(one.book)(30.0),
        children=1,
        holding=one.holding,
        lanes=[type(one.lanes[0])(one, one.lanes[0].child, 0)],
    )
    one.pacing.poll = 0.0
    desk.replica.services.append(other)
    desk.store.fail("claim", held)
    held.go()
    desk.until(lambda: one.pacing.claims + other.pacing.claims >= 10)
    assert abs(one.pacing.claims - other.pacing.claims) <= 1


def test_a_row_that_is_in_the_book_is_adopted_and_not_delivered_a_second_time(make_desk: MakeDesk) -> None:
    """R2: after a long pause a replica may claim its own row; it keeps its place, its attempt is written back."""
    desk = make_desk(lanes=(2,), max_attempts=2, dead_letter="q_dead")
    desk.place.fill(1, payload="{}")
    desk.claim()
    desk.expire(1)
    desk.claim()
    held = desk.held(1)
    assert desk.hand.ids() == [1]
    assert (held.attempt, held.stage, len(desk.service.book)) == (1, Stage.RUNNING, 1)
    assert held.token == desk.value(1, "locked_until")
    assert desk.value(1, "attempt") == 1
    desk.hand.report(1)
    desk.until(lambda: not len(desk.service.book))
    assert (desk.rows(), desk.service.counts.acked, desk.service.counts.lost) == ([], 1, 0)


def test_a_row_that_ended_and_was_adopted_before_it_was_settled_is_settled_under_its_new_token(
    make_desk: MakeDesk,
) -> None:
    """R2: the settlement that presented the old token is not the end of it."""
    desk = make_desk(lanes=(2,), threads=3)
    desk.place.fill(1, payload="{}")
    desk.claim()
    held = Held()
    desk.store.fail("settle", held)
    desk.acknowledge(1)
    desk.send()
    assert held.begun.wait(10)
    desk.expire(1)
    desk.ask()
    held.go()
    desk.until(lambda: not len(desk.service.book))
    assert (desk.rows(), desk.service.counts.acked, desk.service.counts.lost) == ([], 1, 0)


@pytest.mark.parametrize(("verb", "attempt"), [(Verb.RETRY, 2), (Verb.SNOOZE, 1), (Verb.RELEASE, 1)])
def test_a_row_that_is_claimed_again_before_its_settlements_answer_has_come_is_not_forgotten(
    make_desk: MakeDesk, verb: Verb, attempt: int
) -> None:
    """R2, R8: with several connections a claim may see the committed retry first; the row runs at once, rightly counted."""
    desk = make_desk(lanes=(2,), threads=3)
    desk.place.fill(1, payload="{}")
    desk.claim()
    answer = Held(after=True)
    desk.store.fail("settle", answer)
    if verb is Verb.RELEASE:
        # Its claim was under way when the row was released.
        desk.release(1)
        desk.service.releasing = 0
    else:
        desk.end(1, verb)
    desk.send()
    assert answer.begun.wait(10)
    desk.ask()
    desk.claims = True
    if verb is Verb.RELEASE:
        desk.service.releasing = 1
    answer.go()
    desk.service.pacing.poll = 0.01
    desk.hand.read()
    desk.until(lambda: len(desk.hand.rows + desk.hand.read()) == 2)
    desk.until_idle()
    assert [frame[3] for frame in desk.hand.rows] == [1, attempt]
    assert desk.value(1, "attempt") == attempt
    assert desk.held(1).token == desk.value(1, "locked_until")
    assert desk.service.releasing == 0


def abandoned(desk: Desk, count: int, **values: Any) -> None:
    """Insert rows whose holder died: their lease has run out, one attempt is counted."""
    desk.place.fill(count, payload="{}", attempt=1, **values)
    desk.place.run(f"update q set locked_until = {desk.place.seconds(-1)} where attempt = 1")


def test_rows_of_an_expired_lease_go_to_free_lanes_and_the_surplus_goes_back_uncounted(make_desk: MakeDesk) -> None:
    """R8: never read ahead, so that a coordinator that dies again and again dead-letters no row that never ran."""
    desk = make_desk(lanes=(2,), max_attempts=3, dead_letter="q_dead")
    desk.service.average = MILLISECOND
    abandoned(desk, 6)
    desk.claim()
    assert desk.hand.ids() == [1, 2]
    assert desk.rows("id, attempt") == [(1, 2), (2, 2), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert all(desk.is_free(id) for id in (3, 4, 5, 6))
    assert (desk.service.releasing, len(desk.service.book)) == (0, 2)
    desk.hand.report(1)
    desk.until(lambda: 1 not in desk.service.book)
    desk.claim()
    assert desk.hand.ids() == [3]
    assert desk.store.asked("claim")[1] == (1, []), "asks for free lanes only"


def test_a_row_at_its_last_attempt_never_waits_in_front_of_a_lane(make_desk: MakeDesk) -> None:
    """R8: else replicas that die again and again would spend all attempts of a row that never ran."""
    desk = make_desk(lanes=(2,), max_attempts=2, dead_letter="q_dead")
    desk.service.average = MILLISECOND
    desk.place.fill(6, payload="{}", attempt=1)  # read ahead by a replica that died, then given back by another
    desk.claim()
    assert desk.hand.ids() == [1, 2]
    assert desk.rows("id, attempt") == [(1, 2), (2, 2), (3, 1), (4, 1), (5, 1), (6, 1)]


def test_a_careful_row_of_a_busy_lane_holds_up_no_other_lane(make_desk: MakeDesk) -> None:
    """R8, R16: its key is left out until its lane is free, and then it comes at once."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    first, second = keys(2)
    abandoned(desk, 2, partition_key=first)
    desk.claim()
    desk.place.fill(1, payload="{}", partition_key=second)
    desk.claims = True
    desk.until(lambda: 3 in all_ids(desk))
    assert all_ids(desk) == [1, 3]
    desk.hand.report(1)
    desk.until(lambda: 2 in all_ids(desk))


def all_ids(desk: Desk) -> list[Any]:
    """Name the rows that were handed over since the beginning."""
    desk.hand.read()
    return [frame[2] for frame in desk.hand.rows]


def test_what_follows_an_abandoned_row_in_its_lane_goes_back_with_it(make_desk: MakeDesk) -> None:
    """R8, D1: the order within a key holds, and other lanes go on."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    first, second = keys(2)
    desk.service.average = MILLISECOND
    abandoned(desk, 2, partition_key=first)
    desk.place.fill(1, payload="{}", partition_key=first)
    desk.place.fill(2, payload="{}", partition_key=second)
    desk.claim()
    assert sorted(desk.hand.ids()) == [1, 4, 5]
    assert [desk.is_free(id) for id in (2, 3)] == [True, True]
    assert desk.rows("id, attempt") == [(1, 2), (2, 1), (3, 0), (4, 1), (5, 1)]


def test_a_row_whose_attempts_were_all_spent_by_deaths_is_buried_unrun(make_desk: MakeDesk) -> None:
    """H4: the replica that ran its last attempt died; it is not run once more."""
    desk = make_desk(max_attempts=1, dead_letter="q_dead")
    abandoned(desk, 1)
    desk.claim()
    assert (desk.hand.ids(), desk.rows(), desk.service.counts.dead) == ([], [], 1)
    assert "all 1 attempts are spent" in desk.value(1, "last_error", "q_dead")


def test_a_claim_that_comes_back_on_a_stop_gives_its_rows_back_uncounted(make_desk: MakeDesk) -> None:
    """H5: unstarted rows go back at once."""
    desk = make_desk(lanes=(3,))
    desk.place.fill(3, payload="{}")
    held = Held()
    desk.store.fail("claim", held)
    desk.step()
    desk.replica.life = Life.DRAINING
    held.go()
    desk.until(lambda: desk.service.pacing.claims == 1)
    desk.until_idle()
    assert desk.rows("id, attempt") == [(1, 0), (2, 0), (3, 0)]
    assert all(desk.is_free(id) for id in (1, 2, 3))
    assert desk.hand.ids() == []


def test_a_hot_key_does_not_fill_the_read_ahead_of_all_lanes(make_desk: MakeDesk) -> None:
    """R16: claims leave out the keys of lanes that are full, so the other lane finds work behind 500 rows of one key."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    desk.service.average = MILLISECOND * 10
    hot, cold = keys(2)
    desk.place.run("begin")
    desk.place.fill(500, payload="{}", partition_key=hot)
    desk.place.fill(3, payload="{}", partition_key=cold)
    desk.place.run("commit")
    desk.claims = True
    desk.until(lambda: any(id > 500 for id in desk.hand.ids()))
    assert [full for _, full in desk.store.asked("claim")] == [[], [hot]]
    assert sum(held.row.key == hot for held in desk.service.book) == 12


def test_many_keys_of_one_slow_lane_do_not_pile_up_in_a_replica(make_desk: MakeDesk) -> None:
    """R16, H8: their rows go back for others to take, uncounted, and the other lane goes on."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    desk.service.average = MILLISECOND * 10
    for number in range(400):
        desk.place.fill(1, payload="{}", partition_key=f"key {number}")
    desk.claims = True

    def only_the_second_lane_works() -> bool:
        for frame in desk.hand.read():
            if frame[1] == 1:
                desk.hand.report(frame[2], elapsed_us=10_000)
        assert desk.service.lanes[0].load <= 2 * (1 + desk.service.ahead)
        return desk.service.counts.acked > 100

    desk.until(only_the_second_lane_works)


def test_a_lane_that_was_full_is_claimed_for_when_half_of_it_is_done(make_desk: MakeDesk) -> None:
    """R16, C3: a claim that found nothing for the other lanes does not make the hot one wait for the poll."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    desk.service.average = MILLISECOND * 10
    hot, _ = keys(2)
    desk.place.fill(40, payload="{}", partition_key=hot)
    desk.claims = True
    desk.until(lambda: desk.service.pacing.claims == 2)
    desk.hand.read()
    assert desk.store.asked("claim")[1] == (6, [hot])
    done = 0

    def work_on() -> bool:
        nonlocal done
        desk.hand.read()
        if done < len(desk.hand.rows):
            done += 1
            desk.hand.report(done, elapsed_us=10_000)
        return done == 40

    desk.until(work_on)
    assert [frame[2] for frame in desk.hand.rows] == list(range(1, 41))


def test_a_claim_that_met_a_conflict_is_repeated_soon(make_desk: MakeDesk) -> None:
    """B7: without a word, and without holding the room."""
    desk = make_desk()
    desk.place.fill(1, payload="{}")
    desk.store.fail("claim", refuses(Conflict("deadlock")))
    desk.until(lambda: len(desk.service.book))
    assert len(desk.store.asked("claim")) == 2


def test_a_claim_that_fails_is_logged_and_repeated_after_the_poll_interval(
    make_desk: MakeDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """Architecture 11: the table was dropped under it; the replica neither dies nor spins."""
    desk = make_desk(poll=0.05)
    desk.place.fill(1, payload="{}")
    desk.store.fail("claim", *[refuses(StatementFailed("no such table: q"))] * 3)
    with caplog.at_level(logging.ERROR, "shardrun"):
        desk.until(lambda: len(desk.service.book))
    assert caplog.text.count("q: the claim failed: no such table: q") == 3


def test_a_claim_whose_connection_broke_begins_an_outage_and_holds_no_room(make_desk: MakeDesk) -> None:
    """R2: the database may have leased rows to us that we do not know of; claiming again adopts nothing and loses nothing."""
    desk = make_desk(lanes=(4,))
    desk.place.fill(4, payload="{}")
    desk.store.fail("claim", breaks_before)
    desk.until(lambda: desk.replica.outage is not None)
    assert (desk.service.pacing.under_way, desk.service.pacing.asked) == (0, 0)
    desk.until(lambda: len(desk.service.book) == 4)
    assert desk.hand.ids() == [1, 2, 3, 4]
    assert words.STOP not in [frame[0] for frame in desk.hand.orders]


def test_a_lane_that_is_emptied_while_a_claim_leaves_it_out_is_claimed_for_at_once(make_desk: MakeDesk) -> None:
    """R16, C3: the claim's answer comes last and finds nothing; no report follows that could end the wait."""
    desk = make_desk(lanes=(2,), workers_by_key=2)
    hot, _ = keys(2)
    desk.place.fill(1, payload="{}", partition_key=hot)
    desk.ask()
    held = Held(after=True)
    desk.store.fail("claim", held)
    desk.claims = True
    desk.step()
    assert held.begun.wait(10)
    desk.hand.report(1)
    desk.until(lambda: desk.service.lanes[0].handed == 0)
    desk.place.fill(1, payload="{}", partition_key=hot)
    held.go()
    desk.until(lambda: desk.hand.ids() == [2])
    assert desk.store.asked("claim")[1] == (1, [hot])
