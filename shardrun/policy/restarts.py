"""Decide how long a dead child's replacement waits: not at all at first, longer while children die without finishing a row."""

from __future__ import annotations

FIRST = 0.1
"""Seconds before the second replacement in a row that came to nothing. Smaller: more churn while a poison row is about."""

LONGEST = 10.0
"""Seconds at most. Larger: slower recovery once the cause is gone."""


def fruitless(before: int, finished: int, was_ended: bool) -> int:
    """Count the deaths in a row that came to nothing, after another one; a child that was ended is none of them."""
    return 0 if finished or was_ended else before + 1


def delay(fruitless: int) -> float:
    """Say how many seconds to wait, after `fruitless` deaths in a row of children that had finished no row."""
    if fruitless <= 1:
        return 0.0
    return float(min(FIRST * 2.0 ** min(fruitless - 2, 20), LONGEST))
