"""The other process of the ring's tests: `python -m tests.ring.peer write|echo <size> <in fds> <out fds>`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import shardrun.ring
from shardrun.ring import Ring, wire
from shardrun.ring.doorbell import wait
from shardrun.ring.words import running
from tests.ring.rings import SOON

WORDS = 2


def numbered(no: int) -> wire.Frame:
    """Make a frame that shows when it is whole: mostly small, some larger than a small ring."""
    return (no, no % 7, bytes([no % 251]) * (9000 if no % 97 == 0 else no * 37 % 600))


def send(ring: Ring, data: bytes) -> None:
    """Write all of `data`, publishing and waiting where the ring is full."""
    left = memoryview(data)
    while left:
        left = left[ring.write(left) :]
        if left:
            ring.publish()
            assert wait([ring.writer_doorbell], SOON), "nobody reads"


def received(ring: Ring) -> Iterator[wire.Frame]:
    """Give frames as they arrive."""
    frames = wire.Frames()
    while wait([ring.reader_doorbell], SOON):
        yield from frames.feed(ring.read())


def write_for_ever(ring: Ring) -> None:
    """Write numbered frames, and name each in a word before it is written, as a lane does."""
    no = 0
    while True:
        no += 1
        ring.words[running(0)] = no
        send(ring, wire.pack(numbered(no)))
        if random.random() < 0.1:
            ring.publish()


def echo(incoming: Ring, outgoing: Ring) -> None:
    """Send every frame back, until one says 0."""
    for frame in received(incoming):
        send(outgoing, wire.pack(frame))
        outgoing.publish()
        if frame[0] == 0:
            return


def main() -> None:
    mode, size, *sides = sys.argv[1:]
    rings = [shardrun.ring.attach([int(fd) for fd in side.split(",")], int(size), WORDS) for side in sides]
    if mode == "write":
        write_for_ever(rings[1])
    else:
        echo(rings[0], rings[1])


if __name__ == "__main__":
    main()
