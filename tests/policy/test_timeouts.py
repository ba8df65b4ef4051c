"""Which rows have run for longer than they may, as looks show it."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardrun.policy.timeouts import LONGEST_STEP, Runs

STEP = 0.05
STEPS = st.lists(st.floats(0.001, 100), min_size=1, max_size=60)


def test_a_row_is_late_when_it_was_seen_to_run_for_its_timeout() -> None:
    """E4: counted from the first look that saw it, each row by its own."""
    runs = Runs()
    assert runs.look({1: 0.1}, 100.0) == []
    assert runs.look({1: 0.1, 2: 0.05}, 100.0625) == []
    assert runs.look({1: 0.1, 2: 0.05}, 100.125) == [1, 2]


def test_a_lane_that_goes_on_to_another_row_starts_anew() -> None:
    """E4: the time of a row that has ended is nobody else's."""
    runs = Runs()
    looks = [runs.look({no: 0.25}, no * 0.2 + more) for no in range(1, 20) for more in (0.0, 0.1)]
    assert not any(looks)


def test_a_stop_of_the_whole_replica_makes_no_row_late() -> None:
    """E4: hours under Ctrl-Z, or on a suspended machine, are not the handler's."""
    runs = Runs()
    runs.look({1: 5.0}, 0.0)
    assert runs.look({1: 5.0}, 3600.0) == []
    assert runs.look({1: LONGEST_STEP}, 3600.0) == [1]


@given(STEPS, st.floats(0.01, 20))
def test_no_row_is_late_early_and_none_that_is_looked_at_often_is_late_for_long(
    steps: list[float], timeout: float
) -> None:
    """E4: whatever the looks, the end comes not before the timeout; and at most a look after it, where looks come often."""
    runs = Runs()
    times = list(accumulate(steps, initial=0.0))
    runs.look({1: timeout}, 0.0)
    for before, now in pairwise(times):
        late = bool(runs.look({1: timeout}, now))
        assert not (late and now < timeout - 1e-9)
        if max(steps) <= LONGEST_STEP and before >= timeout + 1e-9:
            assert late


@given(st.floats(0.01, 20))
def test_looks_at_the_usual_pace_find_a_late_row_at_the_next_look(timeout: float) -> None:
    """E4: twenty looks a second end a row less than 0.1 s after its timeout has passed."""
    runs = Runs()
    looks = 0
    while not runs.look({1: timeout}, looks * STEP):
        looks += 1
    assert timeout - 1e-9 <= looks * STEP < timeout + STEP + 1e-9
