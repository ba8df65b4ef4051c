"""Carry the same byte stream over a pipe, where the system has no eventfd or memfd (macOS).

The bytes travel in one pipe, whose capacity is the system's (`size` is not used); a second is the writer's doorbell;
the shared words lie in a file that has no name. A write can be read at once, so `publish` has nothing to do.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

from shardrun.ring import layout
from shardrun.ring.words import MARK

READ_MOST = 65536
"""Bytes: as much as a pipe holds. Smaller: more system calls per row."""


class PipeRing:
    """One writer, one reader; never blocks. Both processes keep all ends open, so it has no end of file either."""

    __slots__ = ("_closed", "_descriptors", "_freed_in", "_freed_out", "_memory", "_read_end", "_write_end", "words")

    def __init__(self, descriptors: Sequence[int], words: int) -> None:
        self._descriptors = tuple(descriptors)
        file, self._read_end, self._write_end, self._freed_out, self._freed_in = descriptors
        self._memory = mmap.mmap(file, layout.memory_size(1, words))
        self.words: memoryview[int] = memoryview(self._memory)[: words * layout.WORD].cast("Q")
        self._closed = False

    @classmethod
    def create(cls, size: int, words: int) -> PipeRing:
        """Make a stream with `words` shared words of 64 bits, all zero."""
        del size
        total = layout.memory_size(1, words)
        descriptors: list[int] = []
        try:
            with tempfile.TemporaryFile() as file:
                descriptors.append(os.dup(file.fileno()))
            os.ftruncate(descriptors[0], total)
            descriptors += os.pipe()
            descriptors += os.pipe()
            for descriptor in descriptors[1:]:
                os.set_blocking(descriptor, False)
            return cls(descriptors, words)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    @classmethod
    def attach(cls, descriptors: Sequence[int], size: int, words: int) -> PipeRing:
        """Take over descriptors inherited from the stream's maker, with the `words` it was made with."""
        del size
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return cls(descriptors, words)

    def descriptors(self) -> tuple[int, ...]:
        """Return what the other process must inherit, in the order that `attach` takes."""
        return self._descriptors

    @property
    def writer_doorbell(self) -> int:
        """Name the descriptor that turns readable when space was freed since the last short `write`."""
        return self._freed_out

    @property
    def reader_doorbell(self) -> int:
        """Name the descriptor that turns readable when there are bytes to read."""
        return self._read_end

    def write(self, data: bytes | memoryview) -> int:
        """Write as much of `data` as fits and return how many bytes that is."""
        count = self._push(data)
        if count < len(data):
            # Silence the bell first and then try again: space freed in between is used now or rings it anew.
            _pull(self._freed_out, READ_MOST)
            count += self._push(data[count:])
        self.words[MARK] += count
        return count

    def publish(self) -> None:
        """Do nothing: what was written can be read."""

    def read(self, most: int = READ_MOST) -> bytes:
        """Take up to `most` bytes; fewer mean that no more were there, so wait for the doorbell."""
        data = _pull(self._read_end, most)
        if data:
            self._ring()
        return data

    def read_to_mark(self) -> bytes:
        """Take all that was written; the mark may lag behind the pipe, whose last bytes are as good as the others."""
        pieces = []
        while piece := self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def _push(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._write_end, data)
        except BlockingIOError:
            return 0

    def _ring(self) -> None:
        try:
            os.write(self._freed_in, b"\0")
        except BlockingIOError:
            return  # It rings already.

    def close(self) -> None:
        """Give up the memory and the descriptors of this process; the other side keeps its own."""
        if self._closed:
            return
        self._closed = True
        self.words.release()
        self._memory.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


def _pull(end: int, most: int) -> bytes:
    try:
        return os.read(end, most)
    except BlockingIOError:
        return b""
