"""Both kinds of ring, as a writer and a reader that share nothing but descriptors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import shardrun.ring
from shardrun.ring import Ring
from shardrun.ring.pipes import PipeRing
from shardrun.ring.ring import MemoryRing

Create = Callable[[int, int], Ring]

KINDS: dict[str, Create] = {"memory": MemoryRing.create, "pipe": PipeRing.create}

SOON = 10.0
"""Seconds that something may take before a test fails: far more than it needs, on a machine that does much else."""


@contextmanager
def pair(create: Create, size: int = 4096, words: int = 4) -> Iterator[tuple[Ring, Ring]]:
    """Give the writer's ring and the reader's."""
    writer = create(size, words)
    reader = shardrun.ring.attach([os.dup(descriptor) for descriptor in writer.descriptors()], size, words)
    try:
        yield writer, reader
    finally:
        writer.close()
        reader.close()


def read_all(reader: Ring, most: int = 65536) -> bytes:
    """Read until the ring says that there is no more."""
    data = piece = reader.read(most)
    while len(piece) == most:
        piece = reader.read(most)
        data += piece
    return data
