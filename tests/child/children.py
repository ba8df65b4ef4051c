"""A real child process, and the test in the coordinator's place: rows in, reports out."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardrun import ring
from shardrun.child import main
from shardrun.ring import words
from shardrun.ring.wire import Frame, Frames, Report, pack

SIZE = 1 << 16
"""Bytes of each ring: small, so that tests meet its end."""

PATIENCE = 20.0
"""Seconds that a test waits for what must come."""

HEADER = """
import os, sys, time, threading
from shardrun import Ack, Backoff, DeadLetter, Delivery, Drop, Queue, Retry, Snooze
queue = Queue("t", id="id", payload="payload", locked_until="locked_until")
"""


class Child:
    """One child, its rings, and what it has said so far."""

    def __init__(self, folder: Path, source: str, **settings: Any) -> None:
        (folder / "handlers.py").write_text(HEADER + textwrap.dedent(source))
        lanes: Sequence[int] = settings.pop("lanes", [0])
        environment: dict[str, str] | None = settings.pop("environment", None)
        streams = {name: settings.pop(name) for name in ("stdin", "stdout", "stderr") if name in settings}
        inherit: tuple[int, ...] = settings.pop("inherit", ())
        before: Callable[[], None] | None = settings.pop("before", None)
        self.deliveries = ring.create(SIZE, words.delivery_words(8))
        self.outcomes = ring.create(SIZE, words.report_words(len(lanes)))
        self.frames = Frames()
        self.reports: dict[int, Report] = {}
        self.notices: list[Frame] = []
        self.spec = self._spec(folder, list(lanes), settings)
        descriptor = os.memfd_create("spec")
        os.write(descriptor, json.dumps(self.spec).encode())
        inherited = (descriptor, *inherit, *self.deliveries.descriptors(), *self.outcomes.descriptors())
        self.process = subprocess.Popen(
            [sys.executable, "-P", main.__file__, str(descriptor)],
            pass_fds=inherited,
            env=environment,
            start_new_session=True,
            preexec_fn=before,
            **streams,
        )
        os.close(descriptor)
        self.pidfd = os.pidfd_open(self.process.pid)

    def _spec(self, folder: Path, lanes: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        labels = settings.pop("subscriptions", ["queue/work"])
        return {
            "path": sys.path,
            "cwd": str(folder),
            "parent": os.getpid(),
            "modules": [str(folder / "handlers.py")],
            "subscriptions": labels,
            "payload_kinds": ["json"] * len(labels),
            "lanes": lanes,
            "dsn": f"sqlite:///{folder}/test.db",
            "pool": 1,
            "part": "shardrun test child 1",
            "log_level": "INFO",
            "deliveries": self.deliveries.descriptors(),
            "reports": self.outcomes.descriptors(),
            "size": SIZE,
            "delivery_words": words.delivery_words(8),
            "report_words": words.report_words(len(lanes)),
            **settings,
        }

    def ready(self) -> Child:
        """Wait until the handlers are loaded."""
        self.until(lambda: any(notice[0] == words.READY for notice in self.notices))
        return self

    def give(self, no: int, body: Any = None, *, lane: int = 0, attempt: int = 1, deadline: float = 3600.0) -> None:
        """Hand over a row; its id is 100 more than its number, `deadline` is seconds from now."""
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + deadline
        self.send((no, lane, 100 + no, attempt, until, f"key {no}", "group", {"h": no}, json.dumps(body)))

    def send(self, frame: Frame) -> None:
        """Write a frame, in pieces where it is larger than the ring."""
        data = memoryview(pack(frame))
        while data:
            data = data[self.deliveries.write(data) :]
            self.deliveries.publish()
            if data:
                self._wait(self.deliveries.writer_doorbell)

    def run(self, body: Any = None, no: int = 1, **settings: Any) -> Report:
        """Hand over a row and return its report."""
        self.give(no, body, **settings)
        return self.report(no)

    def report(self, no: int) -> Report:
        """Wait for the report of a row."""
        self.until(lambda: no in self.reports)
        return self.reports[no]

    def until(self, seen: Callable[[], bool]) -> None:
        """Read what the child says until something is seen; fails where it dies before."""
        while not seen():
            alive = self.process.poll() is None
            self._take(self.outcomes.read())
            if not seen():
                assert alive, f"the child ended with {self.process.returncode}; it said {self.notices}"
                self._wait(self.outcomes.reader_doorbell, self.pidfd)

    def logged(self, text: str) -> Frame:
        """Wait for a log line that holds a text."""

        def lines() -> list[Frame]:
            return [notice for notice in self.notices if notice[0] == words.LOG and text in notice[3]]

        self.until(lambda: bool(lines()))
        return lines()[0]

    def running(self, lane: int = 0) -> int:
        """Read which row a lane runs."""
        return self.outcomes.words[words.running(lane)]

    def close(self) -> int:
        """Say that no more rows come, and return the exit code."""
        self.send((words.CLOSE,))
        return self.ended()

    def ended(self) -> int:
        """Wait for the child's end and read all that it had written."""
        code = self.process.wait(PATIENCE)
        self._take(self.outcomes.read())
        self._take(self.outcomes.read_to_mark())
        return code

    def release(self) -> None:
        """End the child and give everything back."""
        self.process.kill()
        self.process.wait()
        os.close(self.pidfd)
        self.deliveries.close()
        self.outcomes.close()

    def _take(self, data: bytes) -> None:
        for frame in self.frames.feed(data):
            if frame[0] > 0:
                assert frame[0] not in self.reports, f"two reports of row {frame[0]}"
                self.reports[frame[0]] = Report(*frame)
            else:
                self.notices.append(frame)

    def _wait(self, *descriptors: int) -> None:
        ready, _, _ = select.select(descriptors, [], [], PATIENCE)
        assert ready, f"nothing within {PATIENCE:g} s; so far {self.reports} {self.notices}"
