"""Write the log to stderr, for people or as JSON lines; it never fails because nobody reads it."""

from __future__ import annotations

import json
import logging
import sys
import time


class TextFormatter(logging.Formatter):
    """`12:00:01 ready`, with the level where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        """Build one line, and the handler's traceback below it where there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        lines = [f"{clock} {level}{record.getMessage()}"]
        if trace := getattr(record, "trace", None):
            lines.append(trace.rstrip())
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, message, and queue, row and attempt where the record has them."""

    def format(self, record: logging.LogRecord) -> str:
        """Build one object."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "where", {}),
        }
        if trace := getattr(record, "trace", None):
            fields["trace"] = trace
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever stderr is now, and drops what cannot be written: a closed stderr stops no rows."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: there is nowhere left to say so."""


def configure(level: str, form: str) -> None:
    """Send shardrun's log to stderr."""
    logger = logging.getLogger("shardrun")
    logger.setLevel(level.upper())
    logger.propagate = False
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger.handlers = [handler]
