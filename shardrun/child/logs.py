"""Forward the `logging` of handlers to the coordinator, each line with the number of the delivery it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar

from shardrun.child import guard
from shardrun.ring.wire import Frame
from shardrun.ring.words import LOG

running: ContextVar[int] = ContextVar("shardrun-running", default=0)
"""The number of the delivery whose handler runs here; 0 outside of handlers, and in threads that a handler starts."""

LONGEST_LINE = 16_000
"""Characters. Larger: one line can fill the ring and hold up reports. Smaller: tracebacks lose their end."""


class Forward(logging.Handler):
    """Hands records on as text, so that nothing of the user's own has to be understood by the coordinator."""

    def __init__(self, say: Callable[[Frame], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Forward a record; in a process that a handler forked, write it to stderr."""
        try:
            text = self.format(record)
        except Exception:  # A record that does not format: logging prints why, and the row goes on.
            self.handleError(record)
            return
        if not guard.is_fork:
            self._say((LOG, int(record.levelno), str(record.name), text[:LONGEST_LINE], running.get()))
        elif sys.stderr is not None:
            sys.stderr.write(f"{text}\n")


def forward(say: Callable[[Frame], None], level: str) -> None:
    """Have the root logger forward everything from `level` up; before user code is imported, which may log."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.addHandler(Forward(say))
