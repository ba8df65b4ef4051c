"""A statement: SQL text and the meanings of its parameters; and how its lines are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text in the driver's placeholder style, built once at start, and the names of the parameters it takes.

    `planned_anew` is for one whose best plan depends on what it is told: a plan that is kept would be far from it.
    """

    text: str
    parameters: tuple[str, ...] = ()
    planned_anew: bool = False


def conjunction(conditions: Sequence[str], indent: int = 1) -> str:
    """Write conditions that must all hold, a line each, below a WHERE that stands `indent` spaces from the margin."""
    return ("\n" + " " * indent + "  and ").join(conditions)


def listing(parts: Sequence[str], indent: int) -> str:
    """Write a list, a line for each part, `indent` spaces from the margin."""
    return (",\n" + " " * indent).join(parts)
