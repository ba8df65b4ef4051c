"""Write the log to stderr, for people or as JSON lines; it stops no rows because nobody reads it, or nobody can."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time

from shardrun.terminal import DIM, RED, YELLOW, is_colourful, paint

PATIENCE = 1.0
"""Seconds that a line waits for a reader that has stopped reading (Ctrl-S, a pager). Larger: leases wait meanwhile. Smaller:
a slow reader misses lines."""

PIECE = 4096
"""Bytes that a pipe with room takes without blocking (POSIX's PIPE_BUF on Linux)."""


class TextFormatter(logging.Formatter):
    """`12:00:01 ready`, with the level where it is a warning or worse."""

    def __init__(self, colourful: bool = False) -> None:
        super().__init__()
        self._colourful = colourful

    def format(self, record: logging.LogRecord) -> str:
        """Build one line, and the handler's traceback below it where there is one."""
        clock = paint(time.strftime("%H:%M:%S", time.localtime(record.created)), DIM, self._colourful)
        style = RED if record.levelno >= logging.ERROR else YELLOW
        level = f"{paint(record.levelname, style, self._colourful)} " if record.levelno >= logging.WARNING else ""
        lines = [f"{clock} {level}{record.getMessage()}"]
        if trace := getattr(record, "trace", None):
            lines.append(trace.rstrip())
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, message, and the record's own fields: queue, row, attempt and others."""

    def __init__(self, ascii_only: bool = False) -> None:
        super().__init__()
        self._ascii_only = ascii_only

    def format(self, record: logging.LogRecord) -> str:
        """Build one object."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if trace := getattr(record, "trace", None):
            fields["trace"] = trace
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=self._ascii_only)


class StderrHandler(logging.Handler):
    """Writes to whatever stderr is now, never for long: lines that a full pipe cannot take are dropped, and counted."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or drop it."""
        try:
            if self._dropped:
                lost = logging.LogRecord(
                    record.name,
                    logging.WARNING,
                    "",
                    0,
                    "lines missing here, since nobody read the log: %d",
                    (self._dropped,),
                    None,
                )
                if not self._write(self.format(lost) + "\n", 0.0):
                    self._dropped += 1
                    return
                self._dropped = 0
            if not self._write(self.format(record) + "\n", PATIENCE):
                self._dropped = 1
        except (OSError, ValueError):
            return  # stderr is closed, or its reader has gone: there is nowhere left to say so

    def _write(self, text: str, patience: float) -> bool:
        stream = sys.stderr
        if stream is None:
            return True
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError):  # no file, such as a test's
            stream.write(text)
            stream.flush()
            return True
        stream.flush()
        return _write_all(descriptor, text.encode(stream.encoding, "backslashreplace"), patience)


def _write_all(descriptor: int, data: bytes, patience: float) -> bool:
    """Write piece by piece, each when there is room; False when there was none for as long as the patience."""
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    deadline = time.monotonic() + patience
    while data:
        if not room.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
        try:
            data = data[os.write(descriptor, data[:PIECE]) :]
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
    return True


def configure(level: str, form: str) -> None:
    """Send shardrun's log to stderr."""
    logger = logging.getLogger("shardrun")
    logger.setLevel(level.upper())
    logger.propagate = False
    handler = StderrHandler()
    plain = (getattr(sys.stderr, "encoding", None) or "").lower().replace("-", "") != "utf8"
    handler.setFormatter(JsonFormatter(plain) if form == "json" else TextFormatter(is_colourful(sys.stderr)))
    logger.handlers = [handler]
