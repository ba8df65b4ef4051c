"""Write what the coordinator must know into the report ring, from any thread; blocks only while the ring is full."""

from __future__ import annotations

import threading
from collections import deque

from shardrun.db.inserted import Written, listed
from shardrun.ring import Ring
from shardrun.ring.doorbell import wait
from shardrun.ring.wire import Frame, pack
from shardrun.ring.words import WAKE

MOST_UNPUBLISHED = 32
"""Reports. Larger: fewer system calls for tiny rows. Smaller: the coordinator settles sooner."""

SHORT_ROW = 10_000
"""Microseconds. After a longer row its report is published at once, at less than a thousandth of what the row took."""

LONGEST_UNPUBLISHED = 10_000
"""Microseconds of handlers' time since the oldest unpublished report. Larger: the coordinator wakes less often, and hears
later that there is room for more rows."""


class Reports:
    """The one writer of the report ring.

    A report is in the ring before the next row starts, so that a death can be blamed exactly; the doorbell, which costs
    a system call, may come later when `patient` (rows run one after another on one thread). Log lines never wait for the
    lock: they may come from a finalizer that runs while this very thread holds it, so whoever holds it writes them too.
    """

    def __init__(self, ring: Ring) -> None:
        self.words = ring.words
        self.patient = False
        self._ring = ring
        self._lock = threading.Lock()
        self._lines: deque[Frame] = deque()
        self._unpublished = 0
        self._age = 0

    def add(self, report: Frame) -> None:
        """Write a row's report, behind the log lines of that row."""
        elapsed: int = report[2]
        with self._lock:
            if self._lines:
                self._write_lines()
            data = pack(report)
            done = self._ring.write(data)
            if done < len(data):
                self._write(data[done:])
            self._unpublished += 1
            self._age += elapsed
            if (
                not self.patient
                or elapsed > SHORT_ROW
                or self._age > LONGEST_UNPUBLISHED
                or self._unpublished >= MOST_UNPUBLISHED
            ):
                self._publish()
        if self._lines:
            self._flush_lines()

    def send(self, frame: Frame) -> None:
        """Write a frame and tell the coordinator at once."""
        with self._lock:
            self._write(pack(frame))
            self._publish()
        self._flush_lines()

    def wake(self, written: Written) -> None:
        """Tell the coordinator what was inserted and is committed by now: who reads it claims at once (G1)."""
        if written:
            self.send((WAKE, listed(written)))

    def say(self, line: Frame) -> None:
        """Write a log line, or leave it to the thread that is writing; in the order of the calls."""
        self._lines.append(line)
        self._flush_lines()

    def publish(self) -> None:
        """Tell the coordinator of all that was written; before every wait for rows."""
        with self._lock:
            self._publish()
        self._flush_lines()

    def _flush_lines(self) -> None:
        while self._lines and self._lock.acquire(blocking=False):
            try:
                self._write_lines()
                self._publish()
            finally:
                self._lock.release()

    def _write_lines(self) -> None:
        while self._lines:
            self._write(pack(self._lines.popleft()))

    def _publish(self) -> None:
        self._ring.publish()
        self._unpublished = self._age = 0

    def _write(self, data: bytes) -> None:
        done = self._ring.write(data)
        while done < len(data):
            self._publish()
            wait([self._ring.writer_doorbell], None)
            done += self._ring.write(memoryview(data)[done:])
