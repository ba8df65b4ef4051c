"""What a run did, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows by outcome, and seconds from the first claim to the end. `later` rows were not due yet; `interrupted` tells that
    handlers were ended before they had finished."""

    acked: int
    retried: int
    dropped: int
    dead: int
    lost: int
    later: int
    seconds: float
    interrupted: bool = False

    def __str__(self) -> str:
        return self._written(f", {self.later:,} later")

    @property
    def stopped(self) -> str:
        """Write what a run did that a signal ended: what is due later was never looked at."""
        ended = "; handlers were ended, and their rows went back" if self.interrupted else ""
        return f"{self._written('')}{ended}"

    def _written(self, later: str) -> str:
        rows = self.acked + self.dropped + self.dead
        rate = rows / self.seconds if self.seconds else 0.0
        return (
            f"{self.acked:,} acked, {self.retried:,} retried, {self.dropped:,} dropped, {self.dead:,} dead, "
            f"{self.lost:,} lost{later} in {duration(self.seconds)} ({rate:,.0f} rows/s)"
        )


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a count with its noun: `1 row`, `2,500 rows`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Write a time span as a person would: `2.1 s`, `4 min 2 s`, `1 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
