"""Carry a byte stream from one process to one other through memory without a name (memfd) and two kernel counters.

    writer  -> [ words | data ........ ] -> reader
            -> published (eventfd)       ->            bytes that may be read; also the reader's doorbell
            <- freed     (eventfd)       <-            bytes that may be written again; also the writer's doorbell

While both sides live they share no word: the counters say what is published and freed, and the kernel orders them after
the bytes on every CPU. No lock exists, so a process killed at any instruction leaves at most unpublished bytes behind.
A ring lives and dies with its child and has no end of file: learn of a death elsewhere, never by waiting here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from shardrun.ring import layout
from shardrun.ring.words import MARK

READ_MOST = 65536
"""Bytes. Larger: above 128 KiB each read maps fresh pages (ten times dearer). Smaller: more system calls per row."""


class MemoryRing:
    """One writer, one reader; never blocks. Each process uses one side's methods only, from one thread at a time."""

    __slots__ = (
        "_announced",
        "_closed",
        "_freed_fd",
        "_limit",
        "_memory",
        "_memory_fd",
        "_published",
        "_published_fd",
        "_size",
        "_start",
        "_taken",
        "_written",
        "words",
    )

    def __init__(self, descriptors: Sequence[int], size: int, words: int) -> None:
        self._memory_fd, self._published_fd, self._freed_fd = descriptors
        self._size = size
        self._start = layout.data_start(words)
        self._memory = mmap.mmap(self._memory_fd, layout.memory_size(size, words))
        self.words: memoryview[int] = memoryview(self._memory)[: words * layout.WORD].cast("Q")
        self._written = self._announced = 0
        self._limit = size  # The total at which the writer would pass the reader.
        self._published = self._taken = 0
        self._closed = False

    @classmethod
    def create(cls, size: int, words: int) -> MemoryRing:
        """Make a ring that holds `size` bytes, with `words` shared words of 64 bits, all zero."""
        total = layout.memory_size(size, words)
        descriptors: list[int] = []
        try:
            descriptors.append(os.memfd_create("shardrun-ring"))
            os.ftruncate(descriptors[0], total)
            descriptors += [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]
            return cls(descriptors, size, words)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    @classmethod
    def attach(cls, descriptors: Sequence[int], size: int, words: int) -> MemoryRing:
        """Take over descriptors inherited from the ring's maker, with the `size` and `words` it was made with."""
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return cls(descriptors, size, words)

    def descriptors(self) -> tuple[int, ...]:
        """Return what the other process must inherit, in the order that `attach` takes."""
        return (self._memory_fd, self._published_fd, self._freed_fd)

    @property
    def writer_doorbell(self) -> int:
        """Name the descriptor that turns readable when space was freed since the last short `write`."""
        return self._freed_fd

    @property
    def reader_doorbell(self) -> int:
        """Name the descriptor that turns readable when bytes were published since the last short `read`."""
        return self._published_fd

    def write(self, data: bytes | memoryview) -> int:
        """Copy as much of `data` as fits and return how many bytes that is: written, not yet published."""
        count = len(data)
        written = self._written
        if written + count > self._limit:
            self._limit += _take(self._freed_fd)
            count = min(count, self._limit - written)
        place, first, rest = layout.spans(written, count, self._size)
        at = self._start + place
        if first == len(data):
            self._memory[at : at + first] = data
        else:
            self._memory[at : at + first] = data[:first]
            self._memory[self._start : self._start + rest] = data[first:count]
        self._written = self.words[MARK] = written + count
        return count

    def publish(self) -> None:
        """Tell the reader of all that was written since the last time; one system call, none if there is nothing."""
        count = self._written - self._announced
        if count:
            os.eventfd_write(self._published_fd, count)
            self._announced = self._written

    def read(self, most: int = READ_MOST) -> bytes:
        """Take up to `most` published bytes; fewer mean that there were no more, so wait for the doorbell."""
        if self._published - self._taken < most:
            self._published += _take(self._published_fd)
        return self._take_bytes(min(most, self._published - self._taken))

    def read_to_mark(self) -> bytes:
        """Take all that was written, published or not: for a writer that is dead, or has been still for 20 ms.

        What is published of these bytes afterwards is not read again.
        """
        return self._take_bytes(self.words[MARK] - self._taken)

    def _take_bytes(self, count: int) -> bytes:
        if count <= 0:
            return b""
        place, first, rest = layout.spans(self._taken, count, self._size)
        at = self._start + place
        data = self._memory[at : at + first]
        if rest:
            data += self._memory[self._start : self._start + rest]
        self._taken += count
        os.eventfd_write(self._freed_fd, count)
        return data

    def close(self) -> None:
        """Give up the memory and the descriptors of this process; the other side keeps its own."""
        if self._closed:
            return
        self._closed = True
        self.words.release()
        self._memory.close()
        for descriptor in self.descriptors():
            os.close(descriptor)


def _take(counter: int) -> int:
    try:
        return os.eventfd_read(counter)
    except BlockingIOError:
        return 0
