"""A statement: SQL text and the meanings of its parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text in the driver's placeholder style, built once at start, and the names of the parameters it takes."""

    text: str
    parameters: tuple[str, ...] = ()
