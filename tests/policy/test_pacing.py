"""When a subscription claims, how many rows, and how far ahead: decided from counts and the time, without a server."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardrun.policy.pacing import AHEAD, LARGEST_CLAIM, MOST_AHEAD, Demand, Pacing, read_ahead, smoothed

POLL = 1.0
FEW = settings(max_examples=30, deadline=None)


def pacing(together: int = 1) -> Pacing:
    """Make the pacing of a subscription that has not claimed yet."""
    return Pacing(poll=POLL, together=together)


def flowing(together: int = 2) -> Pacing:
    """Make the pacing of a subscription whose last claim took rows."""
    fresh = pacing(together)
    fresh.claiming(1)
    fresh.claimed(1, taken=1, careful=False, now=0.0, jitter=0.0)
    return fresh


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Draw what a subscription with a few or many lanes has room for."""
    lanes, ahead = draw(st.integers(1, 64)), draw(st.integers(0, MOST_AHEAD))
    capacity = lanes * (1 + ahead)
    room = draw(st.integers(0, capacity))
    return Demand(room=room, capacity=capacity, free=draw(st.integers(0, min(lanes, room))))


Answer = tuple[Demand, int, bool, int, int]
ANSWERS = st.tuples(demands(), st.integers(0, 4), st.booleans(), st.integers(0, 300), st.integers(0, 3))


@FEW
@given(st.integers(1, 4), st.lists(ANSWERS, max_size=15))
def test_claims_never_ask_for_more_than_the_room(together: int, story: list[Answer]) -> None:
    """C1, C2, C4: whatever was answered before, all claims under way ask together for no more rows than there is room for."""
    paces, sent, now = pacing(together), list[int](), 0.0
    for demand, spare, answers, taken, abandoned in story:
        now += 0.4
        limit = paces.limit(demand, spare, now)
        room = demand.free if paces.one_by_one else demand.room
        assert 0 <= limit <= LARGEST_CLAIM
        if limit:
            assert limit + sum(sent) <= room
            assert spare >= 1
            assert len(sent) < (1 if paces.drought else together)
            paces.claiming(limit)
            sent.append(limit)
        if sent and answers:
            asked = sent.pop(0)
            placed = min(asked, taken)
            paces.claimed(asked, placed, bool(min(asked - placed, abandoned)), now, 0.0)
        assert (paces.asked, paces.under_way) == (sum(sent), len(sent))


@FEW
@given(demands(), st.integers(1, 3))
def test_nothing_is_claimed_without_a_spare_connection(demand: Demand, together: int) -> None:
    """C2: the last connection serves settlements; a pool that is short claims less and waits for nothing."""
    assert flowing(together).limit(demand, spare_connections=0, now=100.0) == 0


def test_a_free_worker_has_a_claim_in_work() -> None:
    """C1: with n free lanes up to n rows are asked for; while there is no room none are."""
    assert pacing().limit(Demand(room=8, capacity=8, free=8), 1, 0.0) == 8
    assert pacing().limit(Demand(room=1, capacity=8, free=1), 1, 0.0) == 1
    assert pacing().limit(Demand(room=0, capacity=8, free=0), 1, 0.0) == 0


def test_one_statement_takes_no_more_than_the_largest_claim() -> None:
    """C1: a claim of all the room at once would keep its first row waiting."""
    assert pacing().limit(Demand(room=5000, capacity=5000, free=10), 1, 0.0) == LARGEST_CLAIM


def test_claims_run_beside_each_other_while_rows_keep_coming() -> None:
    """C2, C3: a second claim starts beside the first only when the last one took a row and a connection is to spare."""
    demand = Demand(room=1000, capacity=1000, free=4)
    for paces, spare, beside in ((flowing(), 1, True), (flowing(), 0, False), (pacing(together=2), 1, False)):
        paces.claiming(paces.limit(demand, 1, 0.0))
        assert (paces.limit(demand, spare, 0.0) > 0) is beside


def test_claims_that_must_run_in_turn_do() -> None:
    """C4: where concurrent claims would cost more or break order, one is in flight at a time."""
    paces, demand = flowing(together=1), Demand(room=1000, capacity=1000, free=4)
    paces.claiming(paces.limit(demand, 3, 0.0))
    assert paces.limit(demand, 3, 0.0) == 0
    paces.claimed(LARGEST_CLAIM, taken=LARGEST_CLAIM, careful=False, now=0.0, jitter=0.0)
    assert paces.limit(demand, 3, 0.0) == LARGEST_CLAIM


@FEW
@given(st.floats(-1, 1), st.integers(1, 4), st.floats(0.001, 0.2))
def test_an_empty_table_sees_one_claim_per_poll_interval(jitter: float, together: int, step: float) -> None:
    """C3: not one per free worker, however often the subscription looks; the wait has jitter, at most a tenth."""
    paces, demand = pacing(together), Demand(room=8, capacity=8, free=8)
    claims, now = list[float](), 0.0
    while now < 5 * POLL:
        if limit := paces.limit(demand, 3, now):
            claims.append(now)
            paces.claiming(limit)
            assert paces.limit(demand, 3, now) == 0
            paces.claimed(limit, taken=0, careful=False, now=now, jitter=jitter)
        now += step
    waits = [after - before for before, after in pairwise(claims)]
    wait = POLL * (1 + jitter / 10)
    assert all(wait - 1e-9 <= each <= wait + 2 * step for each in waits)
    assert len(claims) >= 4


def test_replicas_that_start_together_do_not_wake_together() -> None:
    """C3: the jitter of each spreads their waits."""

    def next_claim(jitter: float) -> float:
        paces = pacing()
        paces.claiming(1)
        paces.claimed(1, taken=0, careful=False, now=50.0, jitter=jitter)
        return paces.not_before

    assert [next_claim(jitter) for jitter in (-1.0, 0.0, 1.0)] == pytest.approx([50.9, 51.0, 51.1])


def test_a_row_after_a_drought_lets_claims_run_at_once_again() -> None:
    """C3: one at a time until a claim takes a row; then as many as there are connections for."""
    paces, demand = pacing(together=2), Demand(room=1000, capacity=1000, free=4)
    paces.claiming(LARGEST_CLAIM)
    paces.claimed(LARGEST_CLAIM, taken=0, careful=False, now=0.0, jitter=0.0)
    assert paces.limit(demand, 3, 0.99) == 0
    paces.claiming(paces.limit(demand, 3, 1.0))
    assert paces.limit(demand, 3, 1.0) == 0
    paces.claimed(LARGEST_CLAIM, taken=1, careful=False, now=1.0, jitter=0.0)
    for _ in range(2):
        limit = paces.limit(demand, 3, 1.0)
        assert limit == LARGEST_CLAIM
        paces.claiming(limit)
    assert paces.limit(demand, 3, 1.0) == 0


def test_a_wake_ends_the_wait_and_never_makes_it_longer() -> None:
    """C3: a row that falls due before the next poll is claimed when it does."""
    paces, demand = pacing(), Demand(room=1, capacity=1, free=1)
    paces.claiming(1)
    paces.claimed(1, taken=0, careful=False, now=0.0, jitter=0.0)
    paces.wake(5.0)
    assert paces.not_before == POLL
    paces.wake(0.2)
    assert (paces.limit(demand, 1, 0.1), paces.limit(demand, 1, 0.2)) == (0, 1)


def test_a_claim_that_was_sent_before_a_commit_starts_no_wait() -> None:
    """G1: it may have looked too early; what is claimed after the commit waits as ever when it finds nothing."""
    paces = flowing()
    one = Demand(room=1, capacity=1, free=1)
    for _ in range(2):
        paces.claiming(1)
    paces.committed()
    for _ in range(2):
        paces.claimed(1, taken=0, careful=False, now=1.0, jitter=0.0)
    assert paces.limit(one, 2, 1.0) == 1
    paces.claiming(1)
    paces.claimed(1, taken=0, careful=False, now=1.0, jitter=0.0)
    assert paces.limit(one, 2, 1.0) == 0
    paces.committed()
    assert paces.limit(one, 2, 1.0) == 1
    paces.claiming(1)
    paces.committed()
    paces.broke(1)
    paces.claiming(1)
    paces.claimed(1, taken=0, careful=False, now=2.0, jitter=0.0)
    assert paces.limit(one, 2, 2.0) == 0


def test_a_claim_that_broke_holds_no_room() -> None:
    """C1: what it asked for may be asked for again."""
    paces, demand = pacing(), Demand(room=8, capacity=8, free=8)
    paces.claiming(8)
    paces.broke(8)
    assert (paces.under_way, paces.asked) == (0, 0)
    assert paces.limit(demand, 1, 0.0) == 8


def test_after_an_abandoned_row_went_back_claims_ask_for_free_lanes_only() -> None:
    """R8: until a claim sees no more of them."""
    paces, demand = pacing(), Demand(room=100, capacity=100, free=2)
    paces.claiming(50)
    paces.claimed(50, taken=2, careful=True, now=0.0, jitter=0.0)
    assert paces.limit(demand, 1, 0.0) == 2
    paces.claiming(2)
    paces.claimed(2, taken=2, careful=False, now=0.0, jitter=0.0)
    assert paces.limit(demand, 1, 0.0) == 100


def test_abandoned_rows_of_busy_lanes_make_no_busy_loop() -> None:
    """C3, R8: a claim whose rows all went back waits for the poll interval as an empty one does."""
    paces, demand = pacing(), Demand(room=100, capacity=100, free=2)
    paces.claiming(2)
    paces.claimed(2, taken=0, careful=True, now=0.0, jitter=0.0)
    assert (paces.limit(demand, 1, 0.9), paces.limit(demand, 1, 1.1)) == (0, 2)


def test_read_ahead_is_filled_in_halves_and_not_row_by_row() -> None:
    """C6: no statement for each row that ends; one when half the room is empty, or a lane has nothing to run."""

    def claimed(room: int, free: int = 0, capacity: int = 100) -> int:
        return flowing().limit(Demand(room=room, capacity=capacity, free=free), 1, 0.0)

    assert (claimed(room=1), claimed(room=49), claimed(room=50)) == (0, 0, 50)
    assert claimed(room=1, free=1) == 1
    assert claimed(room=LARGEST_CLAIM // 2, capacity=10_000) == LARGEST_CLAIM // 2


def test_a_lane_without_work_starts_no_second_small_claim() -> None:
    """C6: while a claim is under way, another one starts only when it is worth it."""
    paces = flowing(together=3)
    paces.claiming(20)
    assert paces.limit(Demand(room=49, capacity=100, free=4), 2, 0.0) == 0
    assert paces.limit(Demand(room=90, capacity=100, free=4), 2, 0.0) == 70


def test_nothing_is_read_ahead_before_a_handler_was_measured_or_where_it_is_slow() -> None:
    """C6: slow work is shared fairly between replicas."""
    assert read_ahead(None, 1) == 0
    assert [read_ahead(seconds, 1) for seconds in (AHEAD, 0.1, 3600.0)] == [0, 0, 0]


@FEW
@given(st.floats(0.0, AHEAD, exclude_max=True), st.integers(1, MOST_AHEAD))
def test_read_ahead_holds_about_fifty_milliseconds_of_work(seconds: float, lanes: int) -> None:
    """C6: in front of each lane at least one row and at most 50 ms of work; of a child at most 200 rows."""
    ahead = read_ahead(seconds, lanes)
    assert ahead >= 1
    assert ahead * lanes <= MOST_AHEAD
    assert ahead == 1 or ahead * seconds <= AHEAD
    assert (ahead + 1) * seconds > AHEAD / 2 or (ahead + 1) * lanes > MOST_AHEAD


@pytest.mark.parametrize(("seconds", "lanes", "rows"), [(0.0, 1, 200), (1e-5, 4, 50), (0.001, 1, 50), (0.03, 1, 1)])
def test_read_ahead_follows_the_handlers_time(seconds: float, lanes: int, rows: int) -> None:
    """C6: thousands of rows a second for tiny handlers, few for those of some milliseconds."""
    assert read_ahead(seconds, lanes) == rows


def _after(averages: list[float]) -> float:
    average: float | None = None
    for measured in averages:
        average = smoothed(average, measured)
    assert average is not None
    return average


@FEW
@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=20))
def test_a_handlers_time_is_followed_within_what_was_measured(measured: list[float]) -> None:
    """C6: the first measurement counts alone; later ones move the mean and never past themselves."""
    assert min(measured) * 0.999 <= _after(measured) <= max(measured) * 1.001


def test_a_handler_that_turns_slow_is_noticed_after_a_few_rows() -> None:
    """C6: and one slow row among many quick ones does not end the read-ahead."""
    assert read_ahead(_after([0.001] * 10 + [0.1]), 1) >= 1
    assert read_ahead(_after([0.001] * 10 + [0.1] * 3), 1) == 0
