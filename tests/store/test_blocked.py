"""What `status` tells of groups and keys that a failed row keeps waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shardrun.db.operate import Blocked
from shardrun.db.store import Verb
from shardrun.queue import Subscription
from tests.store.place import Holder, Place, subscribe, usual
from tests.store.test_counts import counts, create_index, numbers


def in_order(scope: str, **more: Any) -> Subscription:
    """Declare a handler whose rows keep an order over all replicas: by FIFO group, or by key."""
    if scope == "fifo":
        return subscribe(usual(group="account", fifo=True), **more)
    return subscribe(usual(group="account"), workers_by_key=2, key_scope="cluster", **more)


def created(place: Place, subscription: Subscription) -> None:
    """Create a table whose accounts are groups and keys, with the index that claims want."""
    place.create_usual(without=["partition_key"], account="text", partition_key="text")
    create_index(place, subscription)


def fail(place: Place, *accounts: str, attempt: int = 1, delay: float = 60.0) -> None:
    """Insert a row for each of these, have them claimed, and fail."""
    holder = Holder(place, usual(group="account"))
    for account in accounts:
        place.fill(1, account=account, partition_key=account, attempt=attempt - 1)
        (row,) = holder.claim()
        assert holder.one(Verb.RETRY, row, delay=delay, reason=f"{account} refused", attempt=attempt)


def found(place: Place, subscription: Subscription) -> Blocked:
    """Look for what is blocked."""
    blocked = counts(place, subscription).blocked
    assert blocked is not None
    return blocked


@pytest.mark.parametrize("scope", ["fifo", "cluster"])
def test_a_group_that_waits_for_a_failed_row_is_told_with_its_error_and_its_next_try(place: Place, scope: str) -> None:
    """K1, D3, D4: not one whose first row is due, in work or merely scheduled; counts go over all groups."""
    subscription = in_order(scope, dead_letter="q_dead")
    created(place, subscription)
    assert found(place, subscription) == ([], 0, False)
    fail(place, "b", attempt=3)
    fail(place, "a", "a")
    soon = place.seconds(60)
    place.run(
        f"insert into q (account, partition_key, attempt, retry_after, locked_until) values ('c', 'c', 2, null, null), "
        f"('d', 'd', 2, {soon}, {soon}), ('e', 'e', 0, {soon}, null), ('a', 'a', 0, null, null), (null, null, 3, {soon}, null)"
    )
    listed, number, more = found(place, subscription)
    assert (number, more) == (2, False)
    assert [(one.strand, one.id, one.attempt, one.error) for one in listed] == [
        ("b", 1, 3, "b refused"),
        ("a", 2, 1, "a refused"),
    ]
    for one in listed:
        assert 0 < one.seconds <= 60
        assert one.tried is not None
        tried = datetime.strptime(one.tried, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - tried) < timedelta(seconds=50)
    assert numbers(counts(place, subscription)) == [2, 0, 6, 0]


def test_few_are_named_and_a_group_of_its_own_is_alone(place: Place) -> None:
    """K1: the number goes on behind those that are named; a handler of one group sees that one."""
    subscription = in_order("cluster")
    created(place, subscription)
    fail(place, *(f"k{number:02}" for number in range(12)))
    listed, number, _ = found(place, subscription)
    assert (len(listed), number) == (10, 12)
    alone = in_order("fifo", group="k03", dead_letter_group="k04")
    place.run(f"drop index q_claim_in_order{' on q' if place.dialect == 'mariadb' else ''}")
    create_index(place, alone)
    assert [one.strand for one in found(place, alone).listed] == ["k03"]
    assert numbers(counts(place, alone)) == [0, 0, 1, 1]


def test_rows_without_an_order_or_a_due_time_tell_of_nothing_blocked(place: Place) -> None:
    """K1: what the columns cannot tell is not guessed."""
    place.create_usual(account="text")
    assert counts(place, subscribe(usual(group="account"))).blocked is None
    undated = subscribe(usual(without=["retry_after"], group="account", fifo=True))
    create_index(place, undated)
    place.fill(2, account="a")
    found = counts(place, undated)
    assert (found.blocked, found.due.number, found.indexed) == (None, 2, True)
