"""Turn what a report says into what a settlement writes: the one exhaustive match over endings."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from shardrun.outcome import Ack, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.policy import verbs
from shardrun.policy.verbs import Verb
from shardrun.queue import Form, Subscription, seconds


class Settled(NamedTuple):
    """What is written for one delivery; `delay` is in seconds, `reason` goes where there is a column for it."""

    verb: Verb
    delay: float | None = None
    reason: str | None = None


def settled(
    subscription: Subscription, attempt: int, code: int, delay: float | None = None, reason: str | None = None
) -> Settled:
    """Decide what a report other than an ack or an unstarted row writes; `attempt` is the one that ended."""
    match code:
        case verbs.RETRY:
            return failed(subscription, attempt, delay or 0.0, reason)
        case verbs.SNOOZE:
            if delay and not _can_wait(subscription):
                return failed(
                    subscription, attempt, 0.0, f"Snooze({delay:g}), and the queue has no column for due times"
                )
            return Settled(Verb.SNOOZE, delay or 0.0)
        case verbs.DROP:
            return Settled(Verb.DROP, reason=reason)
        case verbs.DEAD_LETTER:
            return _dead_letter(subscription, attempt, delay or 0.0, reason or "DeadLetter")
        case verbs.FAILED:
            return failed(subscription, attempt, delay or 0.0, reason)
        case verbs.UNDECODABLE:
            return _undecodable(subscription, attempt, delay or 0.0, reason)
        case code:
            raise AssertionError(f"a report of an unknown code {code}")


def with_charge(
    subscription: Subscription, attempt: int, charged: bool, code: int, delay: float | None, reason: str | None
) -> tuple[Settled, int]:
    """Decide the same for a row that may have been charged an attempt for a death that was not its own (R7).

    It gets that attempt back unless this one failed. Returns the attempt that has ended, too; what gives the attempt back
    writes one less.
    """
    if not charged or code in (verbs.FAILED, verbs.UNDECODABLE):
        return settled(subscription, attempt, code, delay, reason), attempt
    decided = settled(subscription, attempt - 1, code, delay, reason)
    if decided.verb is Verb.RETRY:  # which writes no count; a snooze writes one less than the row's
        return decided._replace(verb=Verb.SNOOZE), attempt
    return decided, attempt - 1


def failed(subscription: Subscription, attempt: int, delay: float, reason: str | None) -> Settled:
    """Decide about a spent attempt: again after the delay, or the dead letters when it was the last."""
    most = subscription.max_attempts
    if most is not None and attempt >= most:
        return Settled(Verb.BURY, reason=reason or f"Retry, at attempt {attempt} of {most}")
    return Settled(Verb.RETRY, delay if _can_wait(subscription) else 0.0, reason)


def _can_wait(subscription: Subscription) -> bool:
    """Tell whether a row can be put off: there is a column for its due time, or for a lease in place of that."""
    return subscription.queue.retry_after is not None or subscription.queue.form is Form.LEASE


def crashed(subscription: Subscription, attempt: int, cause: str) -> Settled:
    """Decide about the row that a child died of: the same lease, the next attempt, or the dead letters."""
    most = subscription.max_attempts
    if most is not None and attempt >= most:
        return Settled(Verb.BURY, reason=cause)
    return Settled(Verb.RECOUNT, reason=cause)


def has_dead_letters(subscription: Subscription) -> bool:
    """Tell whether the subscription declares a place for dead letters."""
    return subscription.dead_letter is not None or subscription.dead_letter_group is not None


def _dead_letter(subscription: Subscription, attempt: int, delay: float, reason: str) -> Settled:
    if has_dead_letters(subscription):
        return Settled(Verb.BURY, reason=reason)
    return failed(subscription, attempt, delay, reason)


def _undecodable(subscription: Subscription, attempt: int, delay: float, reason: str | None) -> Settled:
    """Apply the decode policy (A4): as declared, else the dead letters where there are any, else a failed attempt."""
    rule: Outcome | None = subscription.on_decode_error
    match rule:
        case None | DeadLetter():
            return _dead_letter(subscription, attempt, delay, reason or "the row does not fit its handler")
        case Drop():
            return Settled(Verb.DROP, reason=reason)
        case Retry(after):
            return failed(subscription, attempt, seconds(after or 0.0), reason)
        case Ack() | Snooze():
            return failed(subscription, attempt, delay, reason)
        case _:
            assert_never(rule)
