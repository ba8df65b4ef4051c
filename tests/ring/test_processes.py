"""Rings between two real processes, of which one is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shardrun.ring import Ring, wire
from shardrun.ring.doorbell import wait
from shardrun.ring.words import MARK, running
from tests.ring.peer import WORDS, numbered, received
from tests.ring.rings import KINDS, SOON, Create
from tests.waiting import eventually

pytestmark = pytest.mark.parametrize("create", KINDS.values(), ids=KINDS.keys())

ROOT = Path(__file__).parents[2]
KILLS = 12
"""Processes started per test. More find rarer moments; each costs 0.1 s."""


@contextmanager
def peer(create: Create, mode: str, size: int) -> Iterator[tuple[subprocess.Popen[bytes], Ring, Ring]]:
    """Start the other process; give it, the ring to it and the ring from it."""
    rings = [create(size, WORDS), create(size, WORDS)]
    sides = [ring.descriptors() for ring in rings]
    arguments = [",".join(map(str, side)) for side in sides]
    command = [sys.executable, "-m", "tests.ring.peer", mode, str(size), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[fd for side in sides for fd in side])
    try:
        yield process, rings[0], rings[1]
    finally:
        process.kill()
        process.wait()
        for ring in rings:
            ring.close()


def read_until(ring: Ring, frames: wire.Frames, count: int) -> list[wire.Frame]:
    """Read until `count` frames have arrived."""
    arrived: list[wire.Frame] = []
    while len(arrived) < count:
        assert wait([ring.reader_doorbell], SOON), "nothing arrives"
        arrived += frames.feed(ring.read())
    return arrived


def read_rest(ring: Ring, frames: wire.Frames) -> list[wire.Frame]:
    """Read what a dead writer left: first what it published, then what it had no time to publish."""
    arrived: list[wire.Frame] = []
    while data := ring.read():
        arrived += frames.feed(data)
    return arrived + frames.feed(ring.read_to_mark())


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_writer_leaves_whole_frames_up_to_the_one_it_names(create: Create, seed: int) -> None:
    """C15, R7: wherever SIGKILL hits, frames are whole and in order, and the word blames the next one."""
    frames = wire.Frames()
    with peer(create, "write", 4096) as (process, _, ring):
        arrived = read_until(ring, frames, random.Random(seed).randrange(1, 3000))
        process.kill()
        process.wait()
        arrived += read_rest(ring, frames)
        assert arrived == [numbered(no) for no in range(1, len(arrived) + 1)]
        assert ring.words[running(0)] in (len(arrived), len(arrived) + 1)
        assert ring.words[MARK] >= sum(len(wire.pack(frame)) for frame in arrived[:-1])
        assert read_rest(ring, frames) == []


def test_a_writer_killed_while_it_waits_for_space_leaves_whole_frames(create: Create) -> None:
    """C15: a child that died blocked on a full ring is drained like any other."""
    frames = wire.Frames()
    with peer(create, "write", 4096) as (process, _, ring):
        arrived = read_until(ring, frames, 1)
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        process.kill()
        process.wait()
        arrived += read_rest(ring, frames)
        assert arrived == [numbered(no) for no in range(1, len(arrived) + 1)]
        assert ring.words[running(0)] == len(arrived) + 1


def test_rows_and_reports_flow_both_ways_whatever_their_size(create: Create) -> None:
    """H1: two processes that wait for each other pass every frame whole, larger than a ring or not."""
    sent = [*map(numbered, range(1, 400)), (0, 0, b"x" * 300_000)]
    left = memoryview(b"".join(map(wire.pack, sent)))
    frames = wire.Frames()
    arrived: list[wire.Frame] = []
    with peer(create, "echo", 4096) as (process, outgoing, incoming):
        while len(arrived) < len(sent):
            left = left[outgoing.write(left) :]
            outgoing.publish()
            bells = [incoming.reader_doorbell] + ([outgoing.writer_doorbell] if left else [])
            assert wait(bells, SOON), "both sides wait"
            arrived += frames.feed(incoming.read())
        assert process.wait(SOON) == 0
    assert arrived == sent


def test_a_reader_that_is_killed_leaves_the_writer_free(create: Create) -> None:
    """C15: the coordinator that writes to a dead child gets an answer at once, full or not, and never an exception."""
    with peer(create, "echo", 4096) as (process, outgoing, incoming):
        outgoing.write(wire.pack((1, "one")))
        outgoing.publish()
        assert next(received(incoming)) == (1, "one")
        process.kill()
        process.wait()
        while outgoing.write(b"x" * 1000):
            outgoing.publish()
        assert wait([outgoing.writer_doorbell], 0) == []


def test_nothing_has_a_name_that_could_be_left_behind(create: Create) -> None:
    """C16: the memory of both processes is unnamed, in /dev/shm and anywhere else, so no kill can leave any."""
    with peer(create, "echo", 4096) as (process, outgoing, incoming):
        outgoing.write(wire.pack((1, "one")))
        outgoing.publish()
        assert next(received(incoming)) == (1, "one")
        for pid in (os.getpid(), process.pid):
            shared = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " rw-s " in line]
            assert len(shared) >= 2
            assert all(line.endswith("(deleted)") for line in shared)
            assert not any("/dev/shm" in line for line in shared)
