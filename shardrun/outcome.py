"""How a handler's run ended, as a value: returned, never raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

Seconds: TypeAlias = float | timedelta


@dataclass(frozen=True, slots=True)
class Ack:
    """The row is done: it is deleted, or its `processed_at` is set."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the row again, at once or `after` a delay (seconds or timedelta); this attempt counts."""

    after: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the row again `after` a delay (seconds or timedelta); this attempt does not count."""

    after: Seconds


@dataclass(frozen=True, slots=True)
class Drop:
    """The row is not wanted: it is settled as an ack is; `reason` goes to `last_error` where the row stays."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move the row to the dead letters; where none are declared this is a failed attempt."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between failed attempts: `first` seconds, times `factor` each, at most `longest`, spread by ±`jitter` (a share)."""

    first: float = 1
    factor: float = 2
    longest: float = 600
    jitter: float = 0.2


Outcome: TypeAlias = Ack | Retry | Snooze | Drop | DeadLetter
Answer: TypeAlias = Outcome | None
BatchAnswer: TypeAlias = Outcome | Sequence[Outcome | None] | None
