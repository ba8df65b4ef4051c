"""What each ending writes: every code, at the first and at the last attempt, with and without dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.outcome import Ack, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.policy import endings, verbs
from shardrun.policy.verbs import Verb
from shardrun.queue import Subscription
from shardrun.ring import words
from tests.store.place import usual

HOMES: dict[str, dict[str, Any]] = {
    "no home": {},
    "a table": {"dead_letter": "q_dead"},
    "a group": {"dead_letter_group": "dead", "group": "work"},
}
FAILING = (verbs.RETRY, verbs.FAILED)


def serve(home: str = "a table", most: int | None = 3, rule: Outcome | None = None) -> Subscription:
    """Make a subscription with some settings."""
    queue = usual(group="group")
    queue.handler(max_attempts=most, on_decode_error=rule, **HOMES[home])(lambda body: None)
    return queue.subscriptions[-1]


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("code", FAILING)
def test_a_failed_attempt_is_retried_until_the_last_one_goes_to_the_dead_letters(code: int, home: str) -> None:
    """E1, E2, E3: `max_attempts=3` dead-letters at the third failure, with the reason; Retry counts an attempt, too."""
    subscription = serve(home)
    for attempt in (1, 2):
        assert endings.settled(subscription, attempt, code, 2.5, "ValueError: no") == (
            Verb.RETRY,
            2.5,
            "ValueError: no",
        )
    for attempt in (3, 4):
        assert endings.settled(subscription, attempt, code, 2.5, "ValueError: no") == (
            Verb.BURY,
            None,
            "ValueError: no",
        )


@pytest.mark.parametrize("code", FAILING)
def test_without_max_attempts_a_row_is_retried_for_ever(code: int) -> None:
    """E3, contract 1: a dead letter alone limits nothing."""
    assert endings.settled(serve(most=None), 10_000, code) == (Verb.RETRY, 0.0, None)


def test_a_retry_without_a_reason_is_buried_with_a_sentence() -> None:
    """E3: a dead letter always says why it is one."""
    assert endings.settled(serve(), 3, verbs.RETRY).reason == "Retry, at attempt 3 of 3"


@pytest.mark.parametrize("attempt", [1, 3, 4])
def test_a_snooze_is_never_buried(attempt: int) -> None:
    """E1: it counts no attempt, so the last one may snooze as well."""
    assert endings.settled(serve(), attempt, verbs.SNOOZE, 60.0) == (Verb.SNOOZE, 60.0, None)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("attempt", [1, 3])
def test_a_drop_settles_the_row_with_its_reason(attempt: int, home: str) -> None:
    """E1: at any attempt, with or without dead letters."""
    assert endings.settled(serve(home), attempt, verbs.DROP, None, "not wanted") == (Verb.DROP, None, "not wanted")


@pytest.mark.parametrize("home", ["a table", "a group"])
def test_a_dead_letter_is_buried_at_any_attempt(home: str) -> None:
    """E1, E3: with the handler's reason, or by its name."""
    asked = endings.settled(serve(home), 1, verbs.DEAD_LETTER, None, "hopeless")
    assert asked == (Verb.BURY, None, "hopeless")
    assert endings.settled(serve(home), 1, verbs.DEAD_LETTER).reason == "DeadLetter"


def test_a_dead_letter_without_a_home_is_a_failed_attempt() -> None:
    """Contract 1: where none is declared, the row is retried after the rule's delay."""
    subscription = serve("no home", most=None)
    assert endings.settled(subscription, 1, verbs.DEAD_LETTER, 1.5, "hopeless") == (Verb.RETRY, 1.5, "hopeless")


@pytest.mark.parametrize(
    ("rule", "home", "attempt", "written"),
    [
        (None, "a table", 1, (Verb.BURY, None, "Expected int")),
        (None, "no home", 1, (Verb.RETRY, 2.5, "Expected int")),
        (DeadLetter(), "a group", 1, (Verb.BURY, None, "Expected int")),
        (DeadLetter(), "no home", 2, (Verb.RETRY, 2.5, "Expected int")),
        (Drop(), "a table", 1, (Verb.DROP, None, "Expected int")),
        (Retry(30), "a table", 1, (Verb.RETRY, 30.0, "Expected int")),
        (Retry(), "a table", 2, (Verb.RETRY, 0.0, "Expected int")),
        (Retry(30), "a table", 3, (Verb.BURY, None, "Expected int")),
        (Snooze(5), "a table", 1, (Verb.RETRY, 2.5, "Expected int")),
        (Ack(), "a table", 1, (Verb.RETRY, 2.5, "Expected int")),
    ],
)
def test_a_row_that_does_not_fit_follows_the_decode_policy(
    rule: Outcome | None, home: str, attempt: int, written: tuple[Verb, float | None, str | None]
) -> None:
    """A4: as declared, else the dead letters where there are any, else a failed attempt; never a silent delete."""
    assert endings.settled(serve(home, rule=rule), attempt, verbs.UNDECODABLE, 2.5, "Expected int") == written


def test_a_row_that_its_child_died_of_keeps_its_lease_or_is_buried_at_the_last_attempt() -> None:
    """H4: the cause of death is what it is remembered by."""
    assert endings.crashed(serve(), 1, "exit code 3") == (Verb.RECOUNT, None, "exit code 3")
    assert endings.crashed(serve(), 3, "exit code 3") == (Verb.BURY, None, "exit code 3")
    assert endings.crashed(serve("no home", most=None), 1000, "exit code 3").verb is Verb.RECOUNT


@pytest.mark.parametrize("code", [verbs.ACK, words.UNSTARTED, 99])
def test_a_code_that_is_no_ending_is_refused(code: int) -> None:
    """Architecture 11: acks and unstarted rows take their own way; anything else is a fault of ours."""
    with pytest.raises(AssertionError, match=f"unknown code {code}"):
        endings.settled(serve(), 1, code)


@pytest.mark.parametrize("queue", [{}, {"advisory_lock": "{id}"}])
def test_without_a_column_for_due_times_a_delay_is_a_failed_attempt_and_a_retry_at_once(queue: dict[str, Any]) -> None:
    """Contract 1: where no lease's column takes the delay, either."""
    without = usual(without=["locked_until", "retry_after"], **queue)
    without.handler(max_attempts=3, dead_letter="q_dead")(lambda body: None)
    (subscription,) = without.subscriptions
    reason = "Snooze(30), and the queue has no column for due times"
    assert endings.settled(subscription, 1, verbs.SNOOZE, 30.0) == (Verb.RETRY, 0.0, reason)
    assert endings.settled(subscription, 3, verbs.SNOOZE, 30.0) == (Verb.BURY, None, reason)
    assert endings.settled(subscription, 1, verbs.SNOOZE, 0.0) == (Verb.SNOOZE, 0.0, None)
    assert endings.settled(subscription, 1, verbs.RETRY, 30.0) == (Verb.RETRY, 0.0, None)
    assert endings.settled(serve(), 1, verbs.SNOOZE, 30.0) == (Verb.SNOOZE, 30.0, None)
