"""One child as the coordinator sees it: its process, its two rings, its lanes and the rows that were handed to it."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardrun.coordinator import clock
from shardrun.coordinator.service import Lane
from shardrun.coordinator.waiting import Events
from shardrun.policy.leases import Held, Hold, Stage
from shardrun.policy.timeouts import Runs
from shardrun.ring import Ring, create, words
from shardrun.ring.wire import Frames, pack

RING_SIZE = 1 << 20
"""Bytes of each ring. Larger: more memory per child. Smaller: large rows cross in more pieces."""

MAIN = Path(__file__).parents[1] / "child" / "main.py"


class State(enum.Enum):
    """A child's life."""

    STARTING = enum.auto()  # spawned; imports the handler modules
    LOADED = enum.auto()  # has imported them; the sessions of the child before it are not yet gone
    READY = enum.auto()  # takes rows
    RECALLED = enum.auto()  # starts no more rows; what runs may finish
    CLOSING = enum.auto()  # told to exit
    DEAD = enum.auto()


@dataclass(frozen=True, slots=True)
class Spec:
    """What every child of this replica is told; `dsn` may hold a password and never goes into argv or the environment."""

    modules: list[str]
    subscriptions: list[str]
    lanes: list[list[int]]  # per child: the subscription of each of its lanes
    payload_kinds: list[str | None]
    dsn: str
    pool: int
    part: str
    log_level: str
    path: list[str]
    cwd: str
    environment: dict[str, str]
    layouts: list[Any] = field(default_factory=list)  # of transactional subscriptions, None for others


@dataclass(slots=True, eq=False)
class Child:
    """A child process and what it holds. `handed` maps delivery numbers to rows, in the order in which they were sent.

    A batch goes by the number of its first row; `batches` maps that to the numbers of all.
    """

    index: int
    process: subprocess.Popen[bytes]
    pidfd: int
    deliveries: Ring
    reports: Ring
    part: str
    events: Events
    state: State = State.STARTING
    lanes: list[Lane] = field(default_factory=list)
    handed: dict[int, Held] = field(default_factory=dict)
    batches: dict[int, list[int]] = field(default_factory=dict)
    frames: Frames = field(default_factory=Frames)
    outgoing: bytearray = field(default_factory=bytearray)
    crowded: bool = False  # frames wait for space in the ring
    sessions: list[str] = field(default_factory=list)
    alone: Held | None = None  # a row that must run by itself in this child (R7)
    finished: int = 0
    failure: str | None = None
    started_at: float = field(default_factory=clock.now)
    seen_mark: int = 0  # of the report ring, at the last look
    runs: Runs = field(default_factory=Runs)
    late: list[int] = field(default_factory=list)  # deliveries past their timeout, for which it was ended

    @property
    def pid(self) -> int:
        """Name the process."""
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        """Tell whether rows may be handed to it."""
        return self.state is State.READY

    def send(self, frames: bytes) -> None:
        """Write frames to the child without ever blocking; what does not fit follows when the child has freed space."""
        self.outgoing += frames
        self._flush()
        if self.outgoing and not self.crowded:
            self.crowded = True
            self.events.watch(self.deliveries.writer_doorbell, self._freed)

    def _freed(self) -> None:
        self._flush()
        if not self.outgoing:
            self._watch_no_more()

    def _flush(self) -> None:
        if self.outgoing:
            with memoryview(self.outgoing) as waiting:  # a huge row is not copied for each piece of it
                written = self.deliveries.write(waiting[:RING_SIZE])
            del self.outgoing[:written]
        self.deliveries.publish()

    def _watch_no_more(self) -> None:
        if self.crowded:
            self.crowded = False
            self.events.unwatch(self.deliveries.writer_doorbell)

    def receive(self) -> list[Any]:
        """Read the reports that the child has published."""
        frames: list[Any] = []
        while data := self.reports.read():
            frames += self.frames.feed(data)
        return frames

    def receive_to_mark(self) -> list[Any]:
        """Read every report that the child has written: once it is dead, or was seen quiet for a while."""
        return self.receive() + list(self.frames.feed(self.reports.read_to_mark()))

    def has_unpublished(self) -> bool:
        """Tell whether it has written reports that it has not published, and has been still since the last look (R7)."""
        mark = self.reports.words[words.MARK]
        still = bool(mark == self.seen_mark)
        self.seen_mark = mark
        return still

    def running(self) -> list[int]:
        """List the deliveries that its lanes run; exact once it is dead or recalled, else a moment old."""
        named = [no for lane in self.lanes if (no := self.reports.words[words.running(lane.local)])]
        return [each for no in named for each in self.batches.get(no, (no,))] if self.batches else named

    def recall(self) -> None:
        """Let it start no more rows."""
        self.state = State.RECALLED
        self.deliveries.words[words.STOP] = 1

    def announce_draining(self) -> None:
        """Make `delivery.draining` true."""
        if self.state is not State.DEAD:
            self.deliveries.words[words.DRAINING] = 1

    def started(self) -> list[int]:
        """List the deliveries that its lanes run, a moment old; nothing can keep those from having begun."""
        return [] if self.state is State.DEAD else self.running()

    def held_until(self, started: Collection[int]) -> None:
        """Tell the child until when every row that it was handed is surely held, after leases were extended (R14).

        A lost row counts unless it had `started` a while ago: it must not start, while others wait behind one that runs.
        """
        if self.state is State.DEAD:
            return
        extended = (
            held.deadline
            for no, held in self.handed.items()
            if held.stage is not Stage.TAKEN and (held.hold is not Hold.LOST or no not in started)
        )
        until = min(extended, default=0.0)
        self.deliveries.words[words.EXTENDED] = int(until * 1e9) if 0 < until < float("inf") else 0

    def tell_lost(self, held: Held) -> None:
        """Make `delivery.draining` true for a row whose lock is gone."""
        for no, each in self.handed.items():
            if each is held and self.state is not State.DEAD:
                batch = (first for first, rows in self.batches.items() if no in rows)
                self.deliveries.words[words.lost(held.lane.local)] = next(batch, no)

    def stop_lane(self, lane: Lane) -> None:
        """Let a lane that keeps keys in order over replicas start nothing behind the row that it runs."""
        if self.state is not State.DEAD:
            self.deliveries.words[words.lost(lane.local)] = self.reports.words[words.running(lane.local)]

    def ask_to_close(self) -> None:
        """Ask it to exit when its lanes are idle."""
        self.state = State.CLOSING
        self.send(pack((words.CLOSE,)))

    def release(self) -> None:
        """Close the rings and the process's descriptor; a ring dies with its child."""
        self._watch_no_more()
        for descriptor in (self.reports.reader_doorbell, self.pidfd):
            self.events.unwatch(descriptor)
        self.deliveries.close()
        self.reports.close()
        os.close(self.pidfd)


def spawn(index: int, spec: Spec, part: str, events: Events) -> Child:
    """Start a child from this thread (its death signal is tied to the thread that starts it, R9); it reports READY later."""
    lanes = spec.lanes[index]
    deliveries = create(RING_SIZE, words.delivery_words(len(lanes)))
    reports = create(RING_SIZE, words.report_words(len(lanes)))
    settings = {
        "path": spec.path,
        "cwd": spec.cwd,
        "parent": os.getpid(),
        "modules": spec.modules,
        "subscriptions": spec.subscriptions,
        "lanes": lanes,
        "payload_kinds": spec.payload_kinds,
        "layouts": spec.layouts,
        "dsn": spec.dsn,
        "pool": spec.pool,
        "part": part,
        "log_level": spec.log_level,
        "deliveries": deliveries.descriptors(),
        "reports": reports.descriptors(),
        "size": RING_SIZE,
        "delivery_words": words.delivery_words(len(lanes)),
        "report_words": words.report_words(len(lanes)),
        "lifeline": None,
    }
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", str(MAIN), str(reader)],
            pass_fds=(reader, *deliveries.descriptors(), *reports.descriptors()),
            cwd=spec.cwd,
            env=spec.environment,
        )
    finally:
        os.close(reader)
    try:
        with os.fdopen(writer, "wb") as stream:
            stream.write(json.dumps(settings).encode())
    except BrokenPipeError:
        pass  # it died before it had read; its pidfd says so
    return Child(index, process, os.pidfd_open(process.pid), deliveries, reports, part, events)
