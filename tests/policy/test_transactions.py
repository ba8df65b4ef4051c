"""What transactional handlers ask of a replica, and what a row gets back that was charged for another's death."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.policy import endings, verbs
from shardrun.policy.transactions import at_once, problems, with_timeouts
from shardrun.policy.verbs import Verb
from shardrun.queue import Subscription
from tests.store.place import subscribe, usual


def handlers(*settings: dict[str, Any]) -> list[Subscription]:
    """Make subscriptions, transactional unless they say otherwise."""
    return [subscribe(usual(), **{"transactional": True, **each}) for each in settings]


@pytest.mark.parametrize(
    ("lanes", "on_a_server", "on_a_file"),
    [([0], 1, 1), ([0, 1], 1, 1), ([0, 0, 0], 3, 1), ([0, 0, 1], 3, 1), ([2, 2], 0, 0), ([0, 2], 1, 1), ([], 0, 0)],
)
def test_only_lanes_cost_one_connection_together_and_threads_one_each(
    lanes: list[int], on_a_server: int, on_a_file: int
) -> None:
    """B5, R3: lanes of the main thread take turns; on SQLite all do."""
    subscriptions = handlers({}, {}, {"transactional": False})
    assert at_once(subscriptions, lanes, one_writer=False) == on_a_server
    assert at_once(subscriptions, lanes, one_writer=True) == on_a_file


def test_a_child_pool_smaller_than_its_transactional_lanes_is_refused_with_the_way_out() -> None:
    """R3: as a problem of usage, at start."""
    subscriptions = handlers({"workers": 5})
    assert problems(subscriptions, [[0, 0, 0], [0, 0]], 3, one_writer=False) == []
    (problem,) = problems(subscriptions, [[0, 0, 0], [0, 0]], 2, one_writer=False)
    assert problem.exit_code == 2
    assert str(problem).endswith(
        ": up to 3 transactions run at once in one child, whose pool has 2 connections. Use --child-pool-size 3, or fewer "
        "workers."
    )


def test_where_one_transaction_writes_its_time_is_a_share_of_the_shortest_lease() -> None:
    """R3: 0.4 of the shortest lease on the file unless set shorter; longer is refused; plain handlers keep their own."""
    subscriptions = handlers({"lease": 30}, {"timeout": 1}, {"transactional": False, "lease": 10})
    assert [each.timeout for each in with_timeouts(subscriptions, one_writer=True)] == [4.0, 1, None]
    assert [each.timeout for each in with_timeouts(subscriptions, one_writer=False)] == [None, 1, None]
    too_long = handlers({"timeout": 4.1}, {"transactional": False, "lease": 10, "timeout": 60})
    (problem,) = problems(too_long, [[0]], 1, one_writer=True)
    assert "has timeout=4.1 and is transactional" in str(problem)
    assert "Use timeout=4 or less (0.4 of the shortest lease here, 10 s), or longer leases." in str(problem)
    assert problems(too_long, [[0]], 1, one_writer=False) == []


@pytest.mark.parametrize(
    ("code", "charged", "written"),
    [
        (verbs.RETRY, False, (Verb.RETRY, 2)),
        (verbs.RETRY, True, (Verb.SNOOZE, 2)),
        (verbs.SNOOZE, True, (Verb.SNOOZE, 1)),
        (verbs.DROP, True, (Verb.DROP, 1)),
        (verbs.FAILED, True, (Verb.RETRY, 2)),
        (verbs.UNDECODABLE, True, (Verb.BURY, 2)),
    ],
)
def test_a_row_that_was_charged_for_another_s_death_gets_that_attempt_back_unless_it_failed(
    code: int, charged: bool, written: tuple[Verb, int]
) -> None:
    """R7: what gives it back writes one attempt less than the one that has ended."""
    subscription = subscribe(usual(), max_attempts=3, dead_letter="q_dead")
    decided, attempt = endings.with_charge(subscription, 2, charged, code, 0.0, "why")
    assert (decided.verb, attempt) == written
