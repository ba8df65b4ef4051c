"""The connections of a replica are summed up, and a limit that they could pass is refused with the way out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardrun.policy.budget import Needs, budget, replicas_problem


def test_the_message_shows_the_sum_and_what_to_change() -> None:
    """F2: text 14."""
    problem = budget(processes=8, pool=5, child_pool=1, listener=True).check(12)
    assert str(problem) == (
        "these settings could open 14 connections: coordinator 5 + 8 children x 1 + listener 1; the limit is 12 "
        "(--connection-limit). Use --processes 6, or --pool-size 3, or raise the limit."
    )
    assert problem is not None
    assert problem.exit_code == 2


def test_a_sum_within_the_limit_is_no_problem() -> None:
    """F2: the limit itself may be reached."""
    parts = budget(processes=8, pool=3, child_pool=1, listener=True)
    assert parts.total == 12
    assert parts.check(12) is None
    assert parts.check(None) is None


def test_only_changes_that_help_are_suggested() -> None:
    """F2: a pool of 3 cannot shrink by 4, and half a child does not exist."""
    sentence = str(budget(processes=2, pool=3, child_pool=4, listener=False).check(7))
    assert sentence.endswith("Use --processes 1, or --child-pool-size 2, or raise the limit.")


def test_where_no_single_change_helps_the_smallest_settings_are_named() -> None:
    """F2: the way out is copyable there, too."""
    sentence = str(budget(processes=8, pool=9, child_pool=9, listener=True).check(4))
    assert "Use all of --processes 1 --pool-size 2 --child-pool-size 1 (4 connections)" in sentence
    assert "Raise the limit to 3 or more" in str(budget(processes=2, pool=2, child_pool=1, listener=False).check(2))


@given(st.integers(1, 64), st.integers(2, 20), st.integers(1, 8), st.booleans(), st.integers(1, 200))
def test_each_suggestion_fits_and_is_the_largest_that_does(
    processes: int, pool: int, child_pool: int, listener: bool, limit: int
) -> None:
    """F2: what the message says to use is enough, and one more would be too much."""
    problem = budget(processes, pool, child_pool, listener).check(limit)
    assert (problem is not None) == (pool + processes * child_pool + listener > limit)
    for flag, number in re.findall(r"(?:Use|or) (--[a-z-]+) (\d+)", str(problem)):
        fits, too_many = (
            budget(
                amount if flag == "--processes" else processes,
                amount if flag == "--pool-size" else pool,
                amount if flag == "--child-pool-size" else child_pool,
                listener,
            )
            for amount in (int(number), int(number) + 1)
        )
        assert fits.check(limit) is None
        assert too_many.check(limit) is not None


def test_a_pool_without_a_spare_connection_is_refused() -> None:
    """C2: one connection stays free to extend leases; where one connection writes at a time, one is enough."""
    assert str(Needs().problem(1)).endswith("Use --pool-size 2 or more.")
    assert Needs().problem(2) is None


@pytest.mark.parametrize(
    ("held", "leases", "default", "least"),
    [
        ([], True, 3, 2),
        ([1], False, 2, 2),
        ([4], True, 5, 3),
        ([8, 1], False, 10, 3),
        ([16], True, 10, 3),
        ([1, 1], True, 4, 4),
    ],
)
def test_rows_that_keep_connections_make_the_pool_larger(
    held: list[int], leases: bool, default: int, least: int
) -> None:
    """Contract 2, C2: lanes + 1, at most 10, unless given; each subscription finds a connection, and one is to spare."""
    needs = Needs(held, leases)
    assert needs.pool(None) == default
    assert needs.pool(7) == 7
    assert needs.problem(least) is None
    assert f"Use --pool-size {least} or more." in str(needs.problem(least - 1))


def test_replicas_that_fit_beside_the_others_are_no_problem() -> None:
    """F3: what others use on the server is taken off first."""
    one = budget(processes=8, pool=3, child_pool=1, listener=True)
    assert replicas_problem(one, 3, limit=77, others=41) is None
    problem = replicas_problem(one, 3, limit=76, others=41)
    assert str(problem) == (
        "3 replicas could open 36 connections; the server takes 76 and others use 41 now, so that 35 are left. "
        "Use --replicas 2, fewer connections for each (--processes, --pool-size), or raise its limit."
    )
    none = replicas_problem(one, 1, limit=40, others=41)
    assert "so that 0 are left. No replica fits: give each fewer connections" in str(none)
