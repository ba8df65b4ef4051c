"""Carry deliveries and reports between two processes through memory that they share. Decides nothing.

`create` and `attach` choose the implementation that this system has; both keep the contract of `Ring`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from shardrun.ring.pipes import PipeRing
from shardrun.ring.ring import READ_MOST, MemoryRing


class Ring(Protocol):
    """A byte stream from one process to one other that never blocks, and the words that they share.

    Each process uses one side's methods, from one thread at a time. Before it waits for its doorbell, a reader reads
    until it gets fewer than `most` bytes, and a writer writes until fewer went in than it gave.
    """

    words: memoryview[int]

    def descriptors(self) -> tuple[int, ...]: ...

    @property
    def writer_doorbell(self) -> int: ...

    @property
    def reader_doorbell(self) -> int: ...

    def write(self, data: bytes | memoryview) -> int: ...

    def publish(self) -> None: ...

    def read(self, most: int = READ_MOST) -> bytes: ...

    def read_to_mark(self) -> bytes: ...

    def close(self) -> None: ...


def create(size: int, words: int) -> Ring:
    """Make a ring of `size` bytes and `words` shared words; where it is a pipe, its size is the system's."""
    if hasattr(os, "eventfd") and hasattr(os, "memfd_create"):
        return MemoryRing.create(size, words)
    return PipeRing.create(size, words)


def attach(descriptors: Sequence[int], size: int, words: int) -> Ring:
    """Take over a ring by its inherited descriptors; their count says which kind it is."""
    if len(descriptors) == 3:
        return MemoryRing.attach(descriptors, size, words)
    return PipeRing.attach(descriptors, size, words)
