"""Show how far a run has come: a bar on a terminal, else a line now and then; and the log, without tearing the bar."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from shardrun.coordinator.replica import Life, Replica
from shardrun.logs import TextFormatter

BAR_EVERY = 0.2
"""Seconds between drawings of the bar. Smaller looks smoother and takes time from the coordinator."""

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""

BESIDE_BAR = 56
"""Columns that stand beside the bar; it takes the rest of the terminal, up to `WIDEST`."""

WIDEST = 44


class View(Protocol):
    """Where progress is shown."""

    every: float

    def show(self, done: int, total: int, rate: float, left: str) -> None: ...

    def say(self, text: str) -> None:
        """Print a line of the log."""


class Bar:
    """A bar with percentage, rate and time left, drawn by whoever calls `show`: no thread draws it."""

    every = BAR_EVERY

    def __init__(self, console: Console, name: str) -> None:
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self._name = name
        self._width = max(8, min(WIDEST, console.width - BESIDE_BAR))

    def show(self, done: int, total: int, rate: float, left: str) -> None:
        """Draw the bar."""
        beside = f"{done / total:4.0%}   {done:,} of {total:,}".replace("%", " %")
        if done:
            beside += f"   {rate:,.0f} rows/s   {left} left"
        line = Table.grid(padding=(0, 1))
        line.add_row(f"  {self._name}", ProgressBar(total, done, self._width), beside)
        self.live.update(line, refresh=True)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self.live.console.print(text, markup=False, highlight=False)


class Lines:
    """A line now and then, for files and CI."""

    every = LINE_EVERY

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name

    def show(self, done: int, total: int, rate: float, left: str) -> None:
        """Print a line."""
        text = f"  {self._name}  {done / total:4.0%}   {done:,} of {total:,}   {rate:,.0f} rows/s   {left} left"
        self.say(text.replace("%", " %"))

    def say(self, text: str) -> None:
        """Print."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Watch:
    """What `boot.start` calls after each turn of the coordinator's loop; tells the view when its time has come."""

    def __init__(self, view: View, total: int) -> None:
        self._view = view
        self._total = total
        self._began: float | None = None
        self._next = 0.0

    def tick(self, replica: Replica) -> None:
        """Count what has ended, and show it when it is time."""
        now = monotonic()
        if replica.life is Life.STARTING or now < self._next:
            return
        first = self._began is None
        self._began = self._began or now
        self._next = now + self._view.every
        done = sum(each.counts.acked + each.counts.dropped + each.counts.dead for each in replica.services)
        if not first and (done or self._view.every < LINE_EVERY):
            rate = done / (now - self._began)
            left = (self._total - done) / rate if rate else 0.0
            self._view.show(done, self._total, rate, str(timedelta(seconds=round(left))))


@contextmanager
def watching(console: Console, name: str, total: int) -> Iterator[Watch]:
    """Show the progress of one run; a bar is wiped away at the end."""
    if not console.is_terminal or console.is_dumb_terminal:
        lines = Lines(console, name)
        with _log_to(lines):
            yield Watch(lines, total)
        return
    bar = Bar(console, name)
    with _log_to(bar), bar.live:
        bar.show(0, total, 0.0, "")
        yield Watch(bar, total)


@contextmanager
def _log_to(view: View) -> Iterator[None]:
    """Send shardrun's warnings to the view for a while."""
    logger = logging.getLogger("shardrun")
    handler = _ToView(view)
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


class _ToView(logging.Handler):
    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._view.say(self.format(record))
