"""Decide what transactional handlers ask of a replica: connections for their children, and time where one transaction writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shardrun.errors import ShardrunError, UsageProblem
from shardrun.queue import Subscription
from shardrun.signature import subject

SHARE_OF_LEASE = 0.4
"""How much of the shortest lease a transaction may take where it is the only one to write. Larger: leases cannot be extended
in time while it runs. Smaller: handlers are ended sooner."""


def at_once(subscriptions: Sequence[Subscription], lanes: Sequence[int], one_writer: bool) -> int:
    """Count the transactions that a child may have open at once; `lanes` are its lanes' subscriptions, by number.

    A subscription's only lane shares the child's main thread with the others of that kind.
    """
    counts = Counter(number for number in lanes if subscriptions[number].transactional)
    beside = sum(count for count in counts.values() if count > 1)
    total = beside + (1 in counts.values())
    return min(total, 1) if one_writer else total


def problems(
    subscriptions: Sequence[Subscription], lanes: Sequence[Sequence[int]], child_pool: int, one_writer: bool
) -> list[ShardrunError]:
    """List what keeps transactional handlers from working; `lanes` are those of each child."""
    found: list[ShardrunError] = []
    most = max((at_once(subscriptions, each, one_writer) for each in lanes), default=0)
    if most > child_pool:
        noun = "connection" if child_pool == 1 else "connections"
        names = ", ".join(subject(each) for each in subscriptions if each.transactional)
        found.append(
            UsageProblem(
                f"{names}: up to {most} transactions run at once in one child, whose pool has {child_pool} {noun}. Use "
                f"--child-pool-size {most}, or fewer workers."
            )
        )
    if one_writer:
        found += _too_long(subscriptions)
    return found


def _too_long(subscriptions: Sequence[Subscription]) -> list[ShardrunError]:
    lease, longest = _longest(subscriptions)
    return [
        UsageProblem(
            f"{subject(each)} has timeout={each.timeout:g} and is transactional: where one connection writes at a time it keeps "
            f"all others waiting, the extension of leases too. Use timeout={longest:g} or less ({SHARE_OF_LEASE:g} of the "
            f"shortest lease here, {lease:g} s), or longer leases."
        )
        for each in subscriptions
        if each.transactional and each.timeout is not None and each.timeout > longest
    ]


def with_timeouts(subscriptions: Sequence[Subscription], one_writer: bool) -> list[Subscription]:
    """Limit the time of transactional handlers that have no timeout, where a transaction keeps all other writers waiting."""
    if not one_writer:
        return list(subscriptions)
    _, longest = _longest(subscriptions)
    return [
        replace(each, timeout=longest) if each.transactional and each.timeout is None else each
        for each in subscriptions
    ]


def _longest(subscriptions: Sequence[Subscription]) -> tuple[float, float]:
    lease = min((each.lease for each in subscriptions), default=0.0)
    return lease, round(SHARE_OF_LEASE * lease, 6)
