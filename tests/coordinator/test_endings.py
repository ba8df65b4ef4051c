"""What each ending writes: every code, at the first and at the last attempt, with and without dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardrun.coordinator import endings
from shardrun.coordinator.service import Service
from shardrun.db.store import Claimed, Verb
from shardrun.outcome import Ack, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.policy.leases import Held
from shardrun.ring import words
from shardrun.ring.wire import Report
from tests.coordinator.conftest import MakeDesk
from tests.store.place import usual

HOMES: dict[str, dict[str, Any]] = {
    "no home": {},
    "a table": {"dead_letter": "q_dead"},
    "a group": {"dead_letter_group": "dead", "group": "work"},
}
FAILING = (words.RETRY, words.FAILED)


def row(attempt: int) -> Held:
    """Make a claimed row at some attempt."""
    return Held(Claimed(7, "token", attempt, False, None, None, None, None, "{}"), 1, 0.0)


@pytest.fixture
def serve(make_desk: MakeDesk) -> Any:
    """Give a function that makes a subscription with some settings."""
    service = make_desk(lanes=()).service

    def make(home: str = "a table", most: int | None = 3, rule: Outcome | None = None) -> Service:
        # Endings look at declarations only; the store behind them is that of a plain subscription.
        queue = usual(group="group")
        queue.handler(max_attempts=most, on_decode_error=rule, **HOMES[home])(lambda body: None)
        return replace(service, subscription=queue.subscriptions[-1])

    return make


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("code", FAILING)
def test_a_failed_attempt_is_retried_until_the_last_one_goes_to_the_dead_letters(
    serve: Any, code: int, home: str
) -> None:
    """E1, E2, E3: `max_attempts=3` dead-letters at the third failure, with the reason; Retry counts an attempt, too."""
    service = serve(home)
    report = Report(1, code, 5, 2.5, "ValueError: no", None)
    for attempt in (1, 2):
        held = row(attempt)
        assert endings.ending(service, held, report) == (held, Verb.RETRY, 2.5, "ValueError: no")
    for attempt in (3, 4):
        held = row(attempt)
        assert endings.ending(service, held, report) == (held, Verb.BURY, None, "ValueError: no")


@pytest.mark.parametrize("code", FAILING)
def test_without_max_attempts_a_row_is_retried_for_ever(serve: Any, code: int) -> None:
    """E3, contract 1: a dead letter alone limits nothing."""
    service, held = serve(most=None), row(10_000)
    assert endings.ending(service, held, Report(1, code, 5)) == (held, Verb.RETRY, 0.0, None)


def test_a_retry_without_a_reason_is_buried_with_a_sentence(serve: Any) -> None:
    """E3: a dead letter always says why it is one."""
    assert endings.ending(serve(), row(3), Report(1, words.RETRY, 5)).reason == "Retry, at attempt 3 of 3"


@pytest.mark.parametrize("attempt", [1, 3, 4])
def test_a_snooze_is_never_buried(serve: Any, attempt: int) -> None:
    """E1: it counts no attempt, so the last one may snooze as well."""
    held = row(attempt)
    assert endings.ending(serve(), held, Report(1, words.SNOOZE, 5, 60.0)) == (held, Verb.SNOOZE, 60.0, None)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("attempt", [1, 3])
def test_a_drop_settles_the_row_with_its_reason(serve: Any, attempt: int, home: str) -> None:
    """E1: at any attempt, with or without dead letters."""
    held = row(attempt)
    report = Report(1, words.DROP, 5, None, "not wanted")
    assert endings.ending(serve(home), held, report) == (held, Verb.DROP, None, "not wanted")


@pytest.mark.parametrize("home", ["a table", "a group"])
def test_a_dead_letter_is_buried_at_any_attempt(serve: Any, home: str) -> None:
    """E1, E3: with the handler's reason, or by its name."""
    service, held = serve(home), row(1)
    asked = endings.ending(service, held, Report(1, words.DEAD_LETTER, 5, None, "hopeless"))
    assert asked == (held, Verb.BURY, None, "hopeless")
    assert endings.ending(service, held, Report(1, words.DEAD_LETTER, 5)).reason == "DeadLetter"


def test_a_dead_letter_without_a_home_is_a_failed_attempt(serve: Any) -> None:
    """Contract 1: where none is declared, the row is retried after the rule's delay."""
    service, held = serve("no home", most=None), row(1)
    report = Report(1, words.DEAD_LETTER, 5, 1.5, "hopeless")
    assert endings.ending(service, held, report) == (held, Verb.RETRY, 1.5, "hopeless")


def undecodable(service: Service, held: Held) -> tuple[Verb, float | None, str | None]:
    ended = endings.ending(service, held, Report(1, words.UNDECODABLE, 5, 2.5, "Expected int"))
    assert ended.held is held
    return ended[1:]


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
    serve: Any, rule: Outcome | None, home: str, attempt: int, written: tuple[Verb, float | None, str | None]
) -> None:
    """A4: as declared, else the dead letters where there are any, else a failed attempt; never a silent delete."""
    assert undecodable(serve(home, rule=rule), row(attempt)) == written


def test_a_row_that_its_child_died_of_keeps_its_lease_or_is_buried_at_the_last_attempt(serve: Any) -> None:
    """H4: the cause of death is what it is remembered by."""
    service, first, last = serve(), row(1), row(3)
    assert endings.crashed(service, first, "exit code 3") == (first, Verb.RECOUNT, None, "exit code 3")
    assert endings.crashed(service, last, "exit code 3") == (last, Verb.BURY, None, "exit code 3")
    endless = row(1000)
    assert endings.crashed(serve("no home", most=None), endless, "exit code 3").verb is Verb.RECOUNT


@pytest.mark.parametrize("code", [words.ACK, words.UNSTARTED, 99])
def test_a_code_that_is_no_ending_is_refused(serve: Any, code: int) -> None:
    """Architecture 11: acks and unstarted rows take their own way; anything else is a fault of ours."""
    with pytest.raises(AssertionError, match=f"unknown code {code}"):
        endings.ending(serve(), row(1), Report(1, code, 5))
