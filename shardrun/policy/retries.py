"""Say how long a row waits for its next attempt: the back-off of failures, and the delays that users name."""

from __future__ import annotations

from datetime import timedelta

from shardrun.outcome import Backoff
from shardrun.queue import RetryRule

LONGEST_DELAY = 3650 * 86_400.0
"""Seconds (10 years). Larger: due times near the end of what databases can write. Smaller: long schedules are cut."""

_FORMS = "give seconds (0 or more) or a timedelta"


def backoff(rule: Backoff, attempt: int, spread: float) -> float:
    """Return the seconds from `attempt` (the first is 1) to the next; `spread`, -1 to 1, places it in the jitter."""
    try:
        grown = float(rule.first) * float(rule.factor) ** max(attempt - 1, 0)
    except OverflowError:
        grown = rule.longest if rule.first else 0.0
    delay = min(grown, rule.longest) * (1 + rule.jitter * spread)
    return min(max(delay, 0.0), LONGEST_DELAY)


def unasked(rule: Backoff | RetryRule, attempt: int, spread: float) -> float:
    """Return the delay where a rule of the user's own cannot be asked: the default back-off stands in for it."""
    return backoff(rule if isinstance(rule, Backoff) else Backoff(), attempt, spread)


def delay_of(value: object) -> float | str:
    """Read a delay that a user gave: seconds (at most `LONGEST_DELAY`), or the sentence that says what is wrong."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return f"a delay of {_shown(value)} ({type(value).__name__}) cannot be used: {_FORMS}"
    if seconds >= LONGEST_DELAY and seconds != float("inf"):
        return LONGEST_DELAY
    if not 0 <= seconds < LONGEST_DELAY:
        return f"a delay of {_shown(value)} cannot be used: {_FORMS}"
    return float(seconds) + 0.0


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a user's own __repr__; only the sentence is poorer for it
        text = f"an object whose repr raises {type(error).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."
