"""Choose the lane of a row: rows of equal keys share a lane, rows without a key take the emptiest one.

The choice must be the same on every platform and in every run, and keys that the database holds for equal must give
equal bytes although drivers hand them over as different Python types (1, 1.0 and Decimal("1.00") are one number).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SHORT = 10**18
"""Whole numbers below this are spelled in full; larger ones as digits and exponent, so that 1E+1000000 stays small."""

_MIX = 0x9E3779B1
"""2**32 over the golden ratio, made odd: spreads a CRC, which is linear, so that 1, 2, 3, .. do not share few lanes."""

_MASK = 0xFFFFFFFF
_STR_SEED = zlib.crc32(b"s")
_INT_SEED = zlib.crc32(b"n")


def lane_of(lane_key: Any, lanes: int) -> int:
    """Name the lane (0 to lanes - 1) of a key that is not NULL."""
    kind = type(lane_key)
    if kind is str:
        crc = zlib.crc32(lane_key.encode("utf-8", "surrogatepass"), _STR_SEED)
    elif kind is int and -_SHORT < lane_key < _SHORT:
        crc = zlib.crc32(b"%d" % lane_key, _INT_SEED)
    else:
        crc = zlib.crc32(canonical(lane_key))
    return ((crc * _MIX & _MASK) * lanes) >> 32


def least(loads: Sequence[int], last: int = -1) -> int:
    """Name the emptiest lane; among equals the next one after `last`, the lane that was chosen before."""
    emptiest = min(loads)
    for lane in range(last + 1, len(loads)):
        if loads[lane] == emptiest:
            return lane
    return loads.index(emptiest)


def canonical(lane_key: Any) -> bytes:
    """Spell a key as bytes, a tag for its type first: equal keys of the database give equal bytes."""
    spell = _SPELLINGS.get(type(lane_key))
    if spell is None:
        spell = next((_SPELLINGS[base] for base in type(lane_key).__mro__ if base in _SPELLINGS), _other)
    return spell(lane_key)


def _whole(value: int) -> bytes:
    return b"n%d" % value if -_SHORT < value < _SHORT else _decimal(Decimal(value))


def _float(value: float) -> bytes:
    return _whole(int(value)) if value.is_integer() else _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return b"nNaN" if value.is_nan() else b"n-Infinity" if sign else b"nInfinity"
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    exponent += len(text) - len(short)
    if not short:
        return b"n0"
    if exponent >= 0 and len(short) + exponent <= 18:
        return b"n%d" % (int(short) * 10**exponent * (-1 if sign else 1))
    return f"n{'-' if sign else ''}{short}e{exponent}".encode()


def _datetime(value: datetime) -> bytes:
    if value.utcoffset() is None:
        return b"l" + value.isoformat().encode()
    return b"i%d" % ((value - _EPOCH) // _MICROSECOND)


def _sequence(value: Sequence[Any]) -> bytes:
    parts = [canonical(part) for part in value]
    return b"q" + b"".join(b"%d:" % len(part) + part for part in parts)


def _other(value: Any) -> bytes:
    return f"o{type(value).__name__}:{value}".encode("utf-8", "surrogatepass")


def _none(_value: None) -> bytes:
    return b"-"


_SPELLINGS: dict[type, Callable[[Any], bytes]] = {
    str: lambda value: b"s" + value.encode("utf-8", "surrogatepass"),
    int: _whole,
    float: _float,
    Decimal: _decimal,
    bool: lambda value: b"t1" if value else b"t0",
    bytes: lambda value: b"b" + value,
    bytearray: lambda value: b"b" + bytes(value),
    memoryview: lambda value: b"b" + bytes(value),
    UUID: lambda value: b"u" + value.bytes,
    datetime: _datetime,
    date: lambda value: b"d" + value.isoformat().encode(),
    time: lambda value: b"c" + value.isoformat().encode(),
    timedelta: lambda value: b"v%d" % (value // _MICROSECOND),
    tuple: _sequence,
    list: _sequence,
    type(None): _none,
}
