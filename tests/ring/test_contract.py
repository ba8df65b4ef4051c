"""The contract that both kinds of ring keep."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardrun.ring
from shardrun.ring import wire
from shardrun.ring.doorbell import wait
from shardrun.ring.pipes import PipeRing
from shardrun.ring.ring import MemoryRing
from shardrun.ring.words import MARK
from tests.ring.rings import KINDS, SOON, Create, pair, read_all

pytestmark = pytest.mark.parametrize("create", KINDS.values(), ids=KINDS.keys())

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 400)),
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 400)),
        st.tuples(st.just("read to mark"), st.just(0)),
    ),
    max_size=60,
)


def counted(start: int, count: int) -> bytes:
    """Make bytes that show their place, with a period that no ring size here has."""
    return bytes(place % 251 for place in range(start, start + count))


@settings(deadline=None)
@given(steps=STEPS, size=st.integers(1, 300))
def test_bytes_come_out_as_they_went_in(create: Create, steps: list[tuple[str, int]], size: int) -> None:
    """H1: any order of writes, publishes and reads of any size loses, repeats and changes no byte."""
    written = got = 0
    with pair(create, size) as (writer, reader):
        for step, count in steps:
            data = b""
            if step == "write":
                written += writer.write(counted(written, count))
            elif step == "publish":
                writer.publish()
            else:
                data = reader.read(count) if step == "read" else reader.read_to_mark()
            assert data == counted(got, len(data))
            got += len(data)
            assert got <= written == writer.words[MARK] == reader.words[MARK]
            assert step != "read to mark" or got == written
        writer.publish()
        assert read_all(reader) == counted(got, written - got)
        assert writer.write(bytes(size)) == size


def test_a_write_never_passes_the_reader(create: Create) -> None:
    """H1: a full ring takes nothing more, and takes again what is freed."""
    with pair(create, 4096) as (writer, reader):
        written = 0
        while taken := writer.write(counted(written, 1000)):
            written += taken
        assert reader.words[MARK] == written
        writer.publish()
        assert reader.read(700) == counted(0, 700)
        while taken := writer.write(counted(written, 1000)):
            written += taken
        writer.publish()
        assert read_all(reader) == counted(700, written - 700)


def test_many_frames_travel_in_one_publish(create: Create) -> None:
    """H1: a batch of rows costs one publish, and arrives in order."""
    frames = [(no, 0, no * 3) for no in range(1, 200)]
    with pair(create) as (writer, reader):
        for frame in frames:
            data = wire.pack(frame)
            assert writer.write(data) == len(data)
        writer.publish()
        assert wire.Frames().feed(reader.read()) == frames


def test_a_frame_larger_than_the_ring_travels_in_pieces(create: Create) -> None:
    """H1: the size of a ring limits no row: both sides turn until all of it has passed."""
    frame = (1, os.urandom(500_000))
    left = memoryview(wire.pack(frame))
    frames = wire.Frames()
    arrived: list[wire.Frame] = []
    with pair(create) as (writer, reader):
        while left:
            left = left[writer.write(left) :]
            writer.publish()
            arrived += frames.feed(reader.read(1000))
        arrived += frames.feed(read_all(reader))
    assert arrived == [frame]


def test_what_was_read_to_the_mark_is_not_read_again(create: Create) -> None:
    """R7: reports taken from a child that was only still, not dead, count once when it publishes them."""
    with pair(create) as (writer, reader):
        writer.write(b"one")
        assert reader.read_to_mark() == b"one"
        writer.write(b"two")
        writer.publish()
        assert reader.read() == b"two"
        writer.write(b"three")
        writer.publish()
        writer.write(b"four")
        assert reader.read_to_mark() == b"threefour"
        writer.publish()
        assert reader.read() == b""


def test_the_readers_doorbell_rings_when_bytes_are_published(create: Create) -> None:
    """H1: a reader that waits for its doorbell wakes for every publish, and sleeps when all is read."""
    with pair(create) as (writer, reader):
        assert wait([reader.reader_doorbell], 0) == []
        for _ in range(3):
            writer.write(b"frame")
            writer.publish()
            assert wait([reader.reader_doorbell], SOON) == [reader.reader_doorbell]
            assert reader.read() == b"frame"
            assert wait([reader.reader_doorbell], 0) == []


def test_the_writers_doorbell_rings_when_space_is_freed(create: Create) -> None:
    """H1: a writer that was cut short sleeps until the reader has read, and can then write."""
    with pair(create, 4096) as (writer, reader):
        for _ in range(3):
            while writer.write(b"x" * 4096):
                writer.publish()
            assert wait([writer.writer_doorbell], 0) == []
            read_all(reader)
            assert wait([writer.writer_doorbell], SOON) == [writer.writer_doorbell]
            assert writer.write(b"y") == 1


def test_shared_words_cross_whole(create: Create) -> None:
    """R7: a word holds 64 bits, starts at zero, and is seen by the other side without a publish."""
    with pair(create, words=5) as (writer, reader):
        assert list(reader.words) == [0] * 5
        writer.words[4] = 2**64 - 1
        writer.words[1] = 7
        assert list(reader.words) == [0, 7, 0, 0, 2**64 - 1]


def test_closing_gives_every_descriptor_back(create: Create) -> None:
    """C16: a child that was replaced leaves no descriptor behind, and closing twice is harmless."""
    before = os.listdir("/proc/self/fd")
    with pair(create) as (writer, reader):
        assert len(os.listdir("/proc/self/fd")) > len(before)
        reader.close()
        writer.close()
        assert os.listdir("/proc/self/fd") == before


def test_descriptors_are_not_inherited_further(create: Create) -> None:
    """R9: programs that a handler starts do not hold the ring open."""
    with pair(create) as (writer, _):
        copies = [os.dup(descriptor) for descriptor in writer.descriptors()]
        for copy in copies:
            os.set_inheritable(copy, True)
        ring = shardrun.ring.attach(copies, 4096, 4)
        assert not any(os.get_inheritable(descriptor) for descriptor in ring.descriptors())
        ring.close()


def test_the_system_decides_which_kind_is_made(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: where the kernel has no eventfd or memfd the same interface runs over pipes, on both sides."""
    if create == PipeRing.create:
        monkeypatch.delattr(os, "eventfd")
    kind = PipeRing if create == PipeRing.create else MemoryRing
    with pair(shardrun.ring.create) as (writer, reader):
        assert type(writer) is type(reader) is kind
