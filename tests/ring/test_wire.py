"""Frames as bytes and back."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardrun.ring import wire, words
from shardrun.ring.wire import Frame, Frames, pack, pack_all

Clock = TypeVar("Clock", datetime, time)


def unfolded(moment: Clock) -> Clock:
    """Drop `fold`, which means nothing without a region's time zone and does not cross."""
    return moment.replace(fold=0)


OFFSETS = st.integers(-86399, 86399).map(lambda offset: timezone(timedelta(seconds=offset)))
TEXT = st.text(st.characters(exclude_categories=[]))
KEYS = st.one_of(TEXT, st.integers(), st.uuids(), st.dates())
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=300),
    st.datetimes(timezones=st.none() | OFFSETS).map(unfolded),
    st.dates(),
    st.times(timezones=st.none() | OFFSETS).map(unfolded),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=4)
FRAMES = st.lists(VALUES, min_size=1, max_size=4).map(tuple)


def crossed(frame: wire.Frame) -> wire.Frame:
    """Send a frame over and check that it comes alone."""
    (arrived,) = wire.Frames().feed(wire.pack(frame))
    return arrived


def typed(value: object) -> object:
    """Write a value so that two are equal only where their types are: not 1, True and Decimal(1), nor 0.0 and -0.0."""
    if isinstance(value, list | tuple):
        return (type(value), [typed(item) for item in value])
    if isinstance(value, dict):
        return {(type(key), key): typed(item) for key, item in value.items()}
    return (type(value), repr(value))


@settings(deadline=None)
@given(FRAMES)
def test_every_type_comes_back_as_it_went(frame: wire.Frame) -> None:
    """H1: ids, keys, headers and bodies of all types reach the handler with their value and their type."""
    assert typed(crossed(frame)) == typed(frame)


@settings(deadline=None)
@given(frames=st.lists(FRAMES, max_size=3), pieces=st.integers(1, 40))
def test_frames_come_out_of_pieces_of_any_size(frames: list[wire.Frame], pieces: int) -> None:
    """H1: a stream may be cut anywhere; each frame comes out once, when its last byte is there."""
    stream = b"".join(map(wire.pack, frames))
    collector = wire.Frames()
    arrived = [f for at in range(0, len(stream), pieces) for f in collector.feed(stream[at : at + pieces])]
    assert typed(arrived) == typed(frames)


@settings(deadline=None)
@given(st.datetimes(timezones=st.timezones()))
def test_a_datetime_of_a_region_stays_the_same_instant(moment: datetime) -> None:
    """H1: a time zone crosses as its offset at that time."""
    assert crossed((moment,))[0].isoformat() == moment.isoformat()


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1
    ENORMOUS = 2**80


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        (Pair(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (Colour.RED, "red"),
        ([Size.SMALL, Size.ENORMOUS], [1, 2**80]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ({1: "a", None: "b"}, {1: "a", None: "b"}),
        ([2**64 - 1, 2**64, -(2**63), -(2**63) - 1], [2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
        (["\ud800", "a\udfffb", "\ud83d\ude00", "\0", "😀"], ["\ud800", "a\udfffb", "\ud83d\ude00", "\0", "😀"]),
        (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        ([time.max, date.max, timedelta.min, timedelta.max], [time.max, date.max, timedelta.min, timedelta.max]),
        (UUID(int=0), UUID(int=0)),
    ],
)
def test_edges_and_relatives_arrive_as_plain_values(value: Any, arrives: Any) -> None:
    """H1: what drivers and users may hand over beside the plain types arrives as the plain type next to it."""
    assert typed(crossed((1, value))) == typed((1, arrives))


@pytest.mark.parametrize("value", [float("nan"), Decimal("nan"), Decimal("sNaN"), Decimal("-Infinity")])
def test_values_that_equal_nothing_arrive_too(value: object) -> None:
    """H1: not-a-number of each type crosses."""
    assert repr(crossed((value,))) == repr((value,))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"), [(object(), "builtins.object"), ({1}, "builtins.set"), (nested(3000), "recursion limit")]
)
def test_a_value_without_a_form_is_refused_and_leaves_nothing_behind(value: object, reason: str) -> None:
    """H1: one row that cannot cross is named, and the next frame is whole."""
    with pytest.raises(wire.CannotCross, match=reason):
        wire.pack((1, b"x" * 100, value))
    assert crossed((2, "next")) == (2, "next")


def test_deep_nesting_crosses() -> None:
    """H1: bodies may be nested 400 deep."""
    assert crossed((nested(400),)) == (nested(400),)


def test_a_huge_frame_crosses_and_the_next_one_too() -> None:
    """H1: buffers are renewed between frames only, wherever the stream is cut."""
    sent = [(1, b"x" * (3 * wire.KEPT_BUFFER)), (2, "two"), (3, b"y" * wire.KEPT_BUFFER), (4,)]
    stream = b"".join(map(wire.pack, sent))
    frames = wire.Frames()
    arrived = [frame for at in range(0, len(stream), 9973) for frame in frames.feed(stream[at : at + 9973])]
    assert arrived == sent
    assert frames.feed(wire.pack((5,))) == [(5,)]


def test_lanes_pack_side_by_side() -> None:
    """H1: threads that pack at once, with hooks that let others run, do not mix their frames."""
    failures: list[object] = []

    def lane(no: int) -> None:
        frame = (no, [UUID(int=no)] * 50, [datetime(2024, 1, no)] * 50)
        failures.extend(frame for _ in range(50) if crossed(frame) != frame)

    lanes = [threading.Thread(target=lane, args=[no]) for no in range(1, 9)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    assert failures == []


def test_reports_are_short_when_all_went_well() -> None:
    """R7: an ack crosses as three numbers, anything else with its delay, reason and trace."""
    ack = wire.Report(*crossed((7, words.ACK, 120)))
    assert ack == wire.Report(no=7, code=words.ACK, elapsed_us=120, seconds=None, reason=None, trace=None)
    failed = wire.Report(8, words.FAILED, 5, 1.5, "ValueError: no", "Traceback ...")
    assert wire.Report(*crossed(failed)) == failed


def test_a_delivery_crosses_with_its_fields_in_order() -> None:
    """H1: a row reaches its lane with all that a handler may ask for."""
    delivered = wire.Delivered(1, 0, UUID(int=5), 2, 1234.5, "key", "group", {"a": [1]}, b"body")
    assert wire.Delivered(*crossed(delivered)) == delivered


def test_a_stream_of_many_megabytes_is_the_same_however_it_is_cut() -> None:
    """H1: no frame is lost or torn where the unpacker is renewed, with a piece of the next one in hand."""
    frames = [(no, 0, no, 1, 12.5, "key", None, None, b"x" * (no % 300)) for no in range(1, 20_000)]
    data = pack_all(frames)
    assert data == b"".join(map(pack, frames))
    reader = Frames()
    came: list[Frame] = []
    for start in range(0, len(data), 65_521):
        came += reader.feed(data[start : start + 65_521])
    assert came == frames
