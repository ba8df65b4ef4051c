"""Turn what a child reports into a settlement: the one exhaustive match over endings."""

from __future__ import annotations

from typing import assert_never

from shardrun.coordinator.service import Ended, Service
from shardrun.db.store import Verb
from shardrun.outcome import Ack, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.policy.leases import Held
from shardrun.queue import seconds
from shardrun.ring import words
from shardrun.ring.wire import Report


def ending(service: Service, held: Held, report: Report) -> Ended:
    """Decide what a report other than an ack or an unstarted row writes."""
    match report.code:
        case words.RETRY:
            return failed(service, held, report.seconds or 0.0, report.reason)
        case words.SNOOZE:
            return Ended(held, Verb.SNOOZE, report.seconds or 0.0)
        case words.DROP:
            return Ended(held, Verb.DROP, reason=report.reason)
        case words.DEAD_LETTER:
            return _dead_letter(service, held, report.seconds or 0.0, report.reason or "DeadLetter")
        case words.FAILED:
            return failed(service, held, report.seconds or 0.0, report.reason)
        case words.UNDECODABLE:
            return _undecodable(service, held, report.seconds or 0.0, report.reason)
        case code:
            raise AssertionError(f"a report of an unknown code {code}")


def failed(service: Service, held: Held, delay: float, reason: str | None) -> Ended:
    """Decide about a spent attempt: again after the delay, or the dead letters when it was the last."""
    most = service.subscription.max_attempts
    if most is not None and held.attempt >= most:
        return Ended(held, Verb.BURY, reason=reason or f"Retry, at attempt {held.attempt} of {most}")
    return Ended(held, Verb.RETRY, delay, reason)


def crashed(service: Service, held: Held, cause: str) -> Ended:
    """Decide about the row that a child died of: the same lease, the next attempt, or the dead letters."""
    most = service.subscription.max_attempts
    if most is not None and held.attempt >= most:
        return Ended(held, Verb.BURY, reason=cause)
    return Ended(held, Verb.RECOUNT, reason=cause)


def has_dead_letters(service: Service) -> bool:
    """Tell whether the subscription declares a place for dead letters."""
    subscription = service.subscription
    return subscription.dead_letter is not None or subscription.dead_letter_group is not None


def _dead_letter(service: Service, held: Held, delay: float, reason: str) -> Ended:
    if has_dead_letters(service):
        return Ended(held, Verb.BURY, reason=reason)
    return failed(service, held, delay, reason)


def _undecodable(service: Service, held: Held, delay: float, reason: str | None) -> Ended:
    """Apply the decode policy (A4): as declared, else the dead letters where there are any, else a failed attempt."""
    rule: Outcome | None = service.subscription.on_decode_error
    match rule:
        case None | DeadLetter():
            return _dead_letter(service, held, delay, reason or "the row does not fit its handler")
        case Drop():
            return Ended(held, Verb.DROP, reason=reason)
        case Retry(after):
            return failed(service, held, seconds(after or 0.0), reason)
        case Ack() | Snooze():
            return failed(service, held, delay, reason)
        case _:
            assert_never(rule)
