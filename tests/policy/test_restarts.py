"""How long the replacement of a dead child waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardrun.policy.restarts import FIRST, LONGEST, delay, fruitless


def test_a_child_that_dies_once_is_replaced_at_once() -> None:
    """H2: rows go on within a second; also after the first death without a finished row."""
    assert (delay(0), delay(1)) == (0.0, 0.0)


def test_deaths_that_come_to_nothing_make_the_next_one_wait_longer() -> None:
    """H4: respawns back off, from a tenth of a second to ten."""
    assert [delay(deaths) for deaths in range(2, 6)] == [0.1, 0.2, 0.4, 0.8]
    assert delay(2) == FIRST


@given(st.integers(0, 10**9))
def test_the_wait_grows_and_has_an_end(deaths: int) -> None:
    """H4: a cause that is gone is found out within ten seconds."""
    assert 0 <= delay(deaths) <= delay(deaths + 1) <= LONGEST


def test_a_child_that_was_ended_is_not_taken_for_one_that_came_to_nothing() -> None:
    """E4, H4: handlers past their timeout make no replacement wait, however many."""
    assert fruitless(4, finished=0, was_ended=False) == 5
    assert fruitless(4, finished=1, was_ended=False) == 0
    assert fruitless(4, finished=0, was_ended=True) == 0
