"""Delays are finite, whatever the attempt and whatever the user gave."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardrun.outcome import Backoff
from shardrun.policy.retries import LONGEST_DELAY, backoff, delay_of, unasked


@given(
    st.builds(
        Backoff,
        first=st.floats(0, 1e300),
        factor=st.floats(1, 1e300),
        longest=st.floats(0, 1e300),
        jitter=st.floats(0, 1),
    ),
    st.integers(-5, 10**12),
    st.floats(-1, 1),
)
def test_a_delay_between_attempts_is_always_finite(rule: Backoff, attempt: int, spread: float) -> None:
    """C42: no attempt count overflows the arithmetic or the largest date."""
    delay = backoff(rule, attempt, spread)
    assert 0 <= delay <= LONGEST_DELAY
    assert delay <= rule.longest * (1 + rule.jitter)


def test_the_default_rule_stands_in_for_a_function_that_cannot_be_asked() -> None:
    """E2, E4: outside children no code of the user's runs."""
    rule = Backoff(first=3, factor=3)
    assert [unasked(rule, attempt, 0) for attempt in (1, 2)] == [3, 9]
    assert [unasked(lambda attempt, error: 1000 // 0, attempt, 0) for attempt in (1, 2)] == [1, 2]


def test_the_default_rule_doubles_up_to_ten_minutes() -> None:
    """E2: exponential from one second, at most 600."""
    assert [backoff(Backoff(), attempt, 0) for attempt in (1, 2, 3, 9, 10, 11, 12)] == [1, 2, 4, 256, 512, 600, 600]


def test_whole_numbers_do_not_grow_without_end() -> None:
    """C42: attempt 5000 of base 5 is the longest delay, not a number of 3,500 digits."""
    assert backoff(Backoff(first=1, factor=5, jitter=0), 5000, 1) == 600
    assert backoff(Backoff(first=0, factor=5), 5000, 1) == 0


def test_jitter_spreads_to_both_sides() -> None:
    """E2: a fifth more or less, so that rows that failed together do not come back together."""
    rule = Backoff(first=10)
    assert (backoff(rule, 1, -1), backoff(rule, 1, 0), backoff(rule, 1, 1)) == (8, 10, 12)


@pytest.mark.parametrize(
    ("given_delay", "seconds"),
    [
        (0, 0.0),
        (0.0001, 0.0001),
        (30, 30.0),
        (timedelta(minutes=1), 60.0),
        (10**12, LONGEST_DELAY),
        (10**400, LONGEST_DELAY),
        (timedelta.max, LONGEST_DELAY),
        (1e300, LONGEST_DELAY),
    ],
)
def test_seconds_and_timedeltas_are_delays(given_delay: Any, seconds: float) -> None:
    """C42: a delay of ages is cut to ten years."""
    assert delay_of(given_delay) == seconds


def test_no_delay_is_below_zero_not_even_minus_zero() -> None:
    """C42: -0.0 is 0."""
    assert math.copysign(1, float(delay_of(-0.0))) == 1


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "given_delay",
    [
        float("inf"),
        float("nan"),
        -5,
        -(10**400),
        timedelta(seconds=-1),
        "5",
        None,
        True,
        Decimal("1.5"),
        datetime(2026, 11, 30, tzinfo=UTC),
        Mute(),
        "x" * 5000,
    ],
)
def test_anything_else_is_a_sentence(given_delay: Any) -> None:
    """C42: bad values are named, in one line, and never raise."""
    sentence = delay_of(given_delay)
    assert isinstance(sentence, str)
    assert sentence.startswith("a delay of ")
    assert sentence.endswith(" cannot be used: give seconds (0 or more) or a timedelta")
    assert len(sentence) < 200
