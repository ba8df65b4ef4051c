"""Turn every way in which a handler's run can end into what its report says. Never raises, whatever user objects do."""

from __future__ import annotations

import inspect
import random
import re
import traceback
from typing import Any, NamedTuple

from shardrun.outcome import Ack, Backoff, DeadLetter, Drop, Retry, Snooze
from shardrun.policy.retries import backoff, delay_of
from shardrun.queue import RetryRule
from shardrun.ring import words

LONGEST_REASON = 4_000
"""Characters of an error text. Larger: wide `last_error` columns. Smaller: messages lose their end."""

LONGEST_TRACE = 16_000
"""Characters of a traceback, its last ones. Larger: long log entries. Smaller: deep calls lose their beginning."""

UNKNOWN_DELAY = 60.0
"""Seconds until a row is due again whose delay could not be computed. Larger: later. Smaller: more failing attempts."""

_OUTCOMES = (Ack, Retry, Snooze, Drop, DeadLetter)
_WANTED = "nothing, or Ack, Retry, Snooze, Drop, DeadLetter"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Ending(NamedTuple):
    """What a report says behind its number and time; `seconds` is a delay, `trace` is for the log only."""

    code: int
    seconds: float | None = None
    reason: str | None = None
    trace: str | None = None


ACKED = Ending(words.ACK)
UNSTARTED = Ending(words.UNSTARTED)


class BadAnswer(Exception):
    """A handler returned what is no outcome; its sentence says what to return."""


def of_answer(answer: object, handler: str) -> Ending:
    """Say what a returned value means; raises `BadAnswer` for one that means nothing."""
    match answer:
        case None | Ack():
            return ACKED
        case Retry(after):
            return Ending(words.RETRY, None if after is None else _delay(after, f"{handler} returned Retry"))
        case Snooze(after):
            return Ending(words.SNOOZE, _delay(after, f"{handler} returned Snooze"))
        case Drop(reason):
            return Ending(words.DROP, None, _reason(reason))
        case DeadLetter(reason):
            return Ending(words.DEAD_LETTER, None, _reason(reason))
        case _:
            raise BadAnswer(_bad_answer(answer, handler))


def of_answers(answer: object, rows: int, handler: str) -> list[Ending]:
    """Say what a returned value means for each row of a batch: an outcome for all, or a list of one for each.

    Raises `BadAnswer` for anything else, a list of another length included.
    """
    if answer is None or isinstance(answer, _OUTCOMES):
        return [of_answer(answer, handler)] * rows
    if not isinstance(answer, list | tuple):
        raise BadAnswer(
            _bad_answer(answer, handler, f"nothing, an outcome for all, or a list of {rows}, one for each row")
        )
    if len(answer) != rows:
        raise BadAnswer(
            f"{handler} returned a list of {len(answer)} for {rows} rows: one outcome (or None) for each, in their order. "
            "Counted as a failure of all."
        )
    return [of_answer(each, handler) for each in answer]


def of_error(error: BaseException, attempt: int, rule: Backoff | RetryRule) -> Ending:
    """Say what an exception means: a failed attempt, put off by the retry rule, which may also name an outcome."""
    reason, trace = error_text(error), _trace(error)
    if isinstance(rule, Backoff):
        return Ending(words.FAILED, _backoff(rule, attempt), reason, trace)
    try:
        return _of_rule(rule(attempt, error), reason, trace)
    except BaseException as second:  # The user's own function; the row is put off as if there were no rule.
        reason = f"{reason} (and its retry rule failed: {error_text(second)})"[:LONGEST_REASON]
        return Ending(words.FAILED, _backoff(Backoff(), attempt), reason, trace)


def of_last_resort(error: BaseException, attempt: int, rule: Backoff | RetryRule) -> Ending:
    """Say what an exception means, whatever else fails over it: a child that dies here would take its row down again."""
    try:
        return of_error(error, attempt, rule)
    except BaseException as second:
        reason = f"{error_text(error)} (and its delay could not be told: {error_text(second)})"[:LONGEST_REASON]
        return Ending(words.FAILED, UNKNOWN_DELAY, reason, None)


def of_misfit(error: Exception, attempt: int, rule: Backoff | RetryRule) -> Ending:
    """Say that a body does not fit its handler; the delay counts only where the decode policy is to retry."""
    ending = of_error(error, attempt, rule)
    return Ending(words.UNDECODABLE, ending.seconds or 0.0, storable(str(error), LONGEST_REASON))


def error_text(error: BaseException) -> str:
    """Write `TypeName: message`, whatever the exception's own methods do."""
    if isinstance(error, BadAnswer):
        return storable(str(error), LONGEST_REASON)
    try:
        message = str.__str__(str(error))  # A plain one: __str__ may return a subclass with methods of its own.
    except BaseException as second:
        message = f"(its message could not be read: {type(second).__name__})"
    if type(error) is TypeError and message == "exceptions must derive from BaseException":
        message += " (outcomes are returned, not raised: return Retry(after=30))"
    return storable(f"{type(error).__name__}: {message}" if message else type(error).__name__, LONGEST_REASON)


def storable(text: str, longest: int) -> str:
    """Cut a text and replace what no database's text column takes: NUL and halves of surrogate pairs."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", str.__str__(text)[:longest])


def _of_rule(ruled: Any, reason: str, trace: str | None) -> Ending:
    if not isinstance(ruled, _OUTCOMES):
        return Ending(words.FAILED, _delay(ruled, "it answered"), reason, trace)
    ending = of_answer(ruled, "it")
    if isinstance(ruled, Ack):  # Settled the same, and the report has room for the error.
        return Ending(words.DROP, None, reason, trace)
    if isinstance(ruled, Retry):
        return Ending(words.FAILED, ending.seconds or 0.0, reason, trace)
    return ending._replace(reason=ending.reason or reason, trace=trace)


def _backoff(rule: Backoff, attempt: int) -> float:
    return backoff(rule, attempt, random.uniform(-1, 1))


def _delay(after: Any, what: str) -> float:
    delay = delay_of(after)
    if isinstance(delay, str):
        raise BadAnswer(f"{what} with {delay}.")
    return delay


def _reason(reason: Any) -> str | None:
    return None if reason is None else storable(reason if isinstance(reason, str) else _show(reason), LONGEST_REASON)


def _bad_answer(answer: object, handler: str, wanted: str = _WANTED) -> str:
    if isinstance(answer, type) and issubclass(answer, _OUTCOMES):
        return f"{handler} returned the class {answer.__name__}: write {answer.__name__}()."
    if inspect.iscoroutine(answer):
        answer.close()
        return f"{handler} returned a coroutine, which nobody awaited: declare {handler} with async def."
    if wanted is _WANTED and (inspect.isgenerator(answer) or inspect.isasyncgen(answer)):
        return f"{handler} returned a generator, whose body never ran: a handler has no yield."
    return f"{handler} returned {_show(answer)}; a handler returns {wanted}. Counted as a failure."


def _show(value: object) -> str:
    try:
        shown = repr(value)
    except BaseException:
        shown = "a value"
    return f"{shown if len(shown) <= 100 else f'{shown[:97]}...'} ({type(value).__name__})"


def _trace(error: BaseException) -> str | None:
    """Write the traceback from the handler's own frame on."""
    if isinstance(error, BadAnswer):
        return None
    try:
        frames = error.__traceback__
        lines = traceback.format_exception(type(error), error, frames.tb_next if frames else None)
        return storable("".join(lines)[-LONGEST_TRACE:], LONGEST_TRACE)
    except BaseException as second:  # Exceptions nested too deep to print, or whose methods fail: their text must do.
        return f"(its traceback could not be written: {type(second).__name__})"
