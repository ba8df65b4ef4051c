"""Turn frames into bytes and back: each frame is one msgpack array, so a stream of them needs no other framing.

Beyond msgpack's own types these cross in both directions: datetime, date, time, timedelta, Decimal, UUID, integers
beyond 64 bits, and strings with lone surrogates. Tuples inside a frame arrive as lists, a time zone as its offset.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import msgpack

from shardrun.errors import ShardrunError
from shardrun.ring.words import ACK

Frame: TypeAlias = tuple[Any, ...]

KEPT_BUFFER = 1 << 20
"""Bytes. Buffers that have held more are thrown away, so that one huge row does not occupy memory for ever.

Smaller: new buffers more often (some microseconds each). Larger: more memory for each child after a huge row.
"""

_TIMEDELTA = struct.Struct("<iii")


class CannotCross(ShardrunError):
    """A value that the wire has no form for; nothing was packed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a value of this row cannot be handed to a child: {why}")


class Delivered(NamedTuple):
    """A row for a lane; `no` counts this replica's deliveries from 1, `deadline` is seconds on CLOCK_BOOTTIME."""

    no: int
    lane: int
    id: Any
    attempt: int
    deadline: float
    key: Any = None
    group: str | None = None
    headers: Any = None
    body: Any = None
    token: str = ""  # of a row to be taken in a transaction; other rows cross without this and what follows
    charged: bool = False


class Report(NamedTuple):
    """An outcome on its way back, its code from `words`; an ACK crosses as its first three fields: `Report(*frame)`.

    `verb` (a `Verb`'s value) and `delay` say what a transaction has settled and committed; without them nothing is settled.
    """

    no: int
    code: int = ACK
    elapsed_us: int = 0
    seconds: float | None = None
    reason: str | None = None
    trace: str | None = None
    verb: int | None = None
    delay: float | None = None


_Encode: TypeAlias = Callable[[Any], bytes]
_Decode: TypeAlias = Callable[[bytes], Any]


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _iso(value: datetime | date | time) -> bytes:
    return value.isoformat().encode()


# A type's code is its place here: new ones go to the end, and datetime before date, whose subclass it is.
_TYPES: Final[tuple[tuple[type, _Encode, _Decode], ...]] = (
    (int, _int_bytes, lambda data: int.from_bytes(data, "little", signed=True)),
    (datetime, _iso, lambda data: datetime.fromisoformat(data.decode())),
    (date, _iso, lambda data: date.fromisoformat(data.decode())),
    (time, _iso, lambda data: time.fromisoformat(data.decode())),
    (
        timedelta,
        lambda value: _TIMEDELTA.pack(value.days, value.seconds, value.microseconds),
        lambda data: timedelta(*_TIMEDELTA.unpack(data)),
    ),
    (Decimal, lambda value: str(value).encode(), lambda data: Decimal(data.decode())),
    (UUID, lambda value: value.bytes, lambda data: UUID(bytes=data)),
)


_CODES = {kind: code for code, (kind, _, _) in enumerate(_TYPES)}


def _to_extension(value: object) -> object:
    code = _CODES.get(type(value))
    if code is None:
        code = next((code for kind, code in _CODES.items() if isinstance(value, kind)), None)
    if code is None:
        raise TypeError(f"it is a {type(value).__module__}.{type(value).__qualname__}")
    return msgpack.ExtType(code, _TYPES[code][1](value))


def _from_extension(code: int, data: bytes) -> object:
    return _TYPES[code][2](data)


class Frames:
    """Collects bytes as they come and gives out the frames that are complete; keeps the piece of one that is not."""

    __slots__ = ("_fed", "_unpacker")

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._fed = 0
        self._unpacker = msgpack.Unpacker(
            ext_hook=_from_extension, strict_map_key=False, unicode_errors="surrogatepass", max_buffer_size=0
        )

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames that they complete, in order."""
        self._unpacker.feed(data)
        self._fed += len(data)
        if self._fed <= KEPT_BUFFER:
            return list(map(tuple, self._unpacker))
        return self._feed_and_renew()

    def _feed_and_renew(self) -> list[Frame]:
        """Unpack what is there, and take a new unpacker if nothing is left over: `tell` counts a piece of a frame, too."""
        frames: list[Frame] = []
        whole = 0
        for frame in self._unpacker:
            frames.append(tuple(frame))
            whole = self._unpacker.tell()
        if whole == self._fed:
            self._renew()
        return frames


class _Packers(threading.local):
    """One packer a thread: a packer keeps its buffer between frames and must not be entered twice."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        packer = msgpack.Packer(default=_to_extension, unicode_errors="surrogatepass")
        self.pack: Callable[[Frame], bytes] = packer.pack
        self.many = msgpack.Packer(default=_to_extension, unicode_errors="surrogatepass", autoreset=False)


_packers = _Packers()


def pack(frame: Frame) -> bytes:
    """Turn a frame into bytes; raises `CannotCross` for a value of another type, or one nested too deep.

    The keys of dicts must not be tuples: they would arrive as lists.
    """
    try:
        data = _packers.pack(frame)
    except (TypeError, ValueError, OverflowError) as problem:
        raise CannotCross(str(problem)) from problem
    if len(data) > KEPT_BUFFER:
        _packers.renew()
    return data


def pack_all(frames: Iterable[Frame]) -> bytes:
    """Turn many frames into the bytes of all, for less than one at a time; raises `CannotCross` and has packed none."""
    packer = _packers.many
    try:
        for frame in frames:
            packer.pack(frame)
        data: bytes = packer.bytes()
    except (TypeError, ValueError, OverflowError) as problem:
        raise CannotCross(str(problem)) from problem
    finally:
        packer.reset()
    if len(data) > KEPT_BUFFER:
        _packers.renew()
    return data
