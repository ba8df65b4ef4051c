"""The log: lines for people, JSON with fields, and a stderr that nobody reads."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from shardrun import logs


@contextmanager
def small_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make stderr a pipe that holds two pages; gives its reader. Not a fixture: pytest changes stderr before each test."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    with open(writer, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        yield reader
    os.close(reader)


def record(message: str, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    """Make a record as the logger would."""
    made = logging.LogRecord("shardrun", level, "", 0, message, (), None)
    made.__dict__.update(more)
    return made


def handler(form: logging.Formatter | None = None) -> logs.StderrHandler:
    """Make the handler, with bare messages."""
    made = logs.StderrHandler()
    made.setFormatter(form or logging.Formatter("%(message)s"))
    return made


def test_what_a_full_pipe_cannot_take_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: the second line that finds it full waits for nobody; when there is room again, it is said how many are missing."""
    monkeypatch.setattr(logs, "PATIENCE", 0.01)
    ours = handler()
    with small_pipe(monkeypatch) as reader:
        for _ in range(2):
            ours.emit(record("x" * 4000))
        for _ in range(3):
            ours.emit(record("lost"))
        assert os.read(reader, 9000) == (b"x" * 4000 + b"\n") * 2
        ours.emit(record("here"))
        assert os.read(reader, 5000) == b"lines missing here, since nobody read the log: 3\nhere\n"


def test_a_line_of_several_pieces_arrives_while_someone_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: long traces are written piece by piece, each when there is room."""
    with small_pipe(monkeypatch) as reader, ThreadPoolExecutor(1) as threads:
        text = "ü" * 10_000 + "\n"
        read = threads.submit(read_all, reader, len(text.encode()))
        handler().emit(record(text[:-1]))
        assert read.result(10).decode() == text


def read_all(descriptor: int, size: int) -> bytes:
    """Read this many bytes."""
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(size)


def test_a_stderr_that_is_gone_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 2: closed, without a reader, or none at all."""
    ours = handler()
    monkeypatch.setattr(sys, "stderr", None)
    ours.emit(record("nowhere"))
    closed = open(os.devnull, "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    ours.emit(record("nowhere"))


def test_json_lines_carry_the_records_fields() -> None:
    """K2: beside time, level and message; escaped where the stream cannot spell it."""
    made = record("ü", logging.ERROR, fields={"queue": "mails", "row": "7"}, trace="Traceback")
    read = json.loads(logs.JsonFormatter().format(made))
    assert {name: read[name] for name in ("level", "message", "queue", "row", "trace")} == {
        "level": "error",
        "message": "ü",
        "queue": "mails",
        "row": "7",
        "trace": "Traceback",
    }
    assert logs.JsonFormatter(ascii_only=True).format(made).isascii()


def test_people_see_the_level_of_what_is_wrong_and_the_trace_below() -> None:
    """K2: colour where it is wanted."""
    made = record("failed", logging.WARNING, trace="Traceback\n")
    assert logs.TextFormatter().format(made)[8:] == " WARNING failed\nTraceback"
    assert "\x1b[33mWARNING\x1b[0m failed" in logs.TextFormatter(colourful=True).format(made)
    assert logs.TextFormatter().format(record("ready"))[8:] == " ready"
