"""Lanes follow the database's equality, the same on every platform and run."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardrun.policy.routing import canonical, lane_of, least

KEYS = st.one_of(
    st.text(),
    st.integers(),
    st.decimals(),
    st.floats(),
    st.booleans(),
    st.binary(),
    st.uuids(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.times(),
    st.timedeltas(),
)


class Size(IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("key", "spelled", "lane"),
    [
        ("customer-118", b"scustomer-118", 4),
        ("", b"s", 7),
        ("Müller", "sMüller".encode(), 1),
        (118, b"n118", 6),
        (-1, b"n-1", 1),
        (0, b"n0", 6),
        (2**70, b"n1180591620717411303424e0", 6),
        (b"\x00\xff", b"b\x00\xff", 3),
        (True, b"t1", 4),
        (uuid.UUID(int=7), b"u" + bytes(15) + b"\x07", 5),
        (date(2026, 11, 30), b"d2026-11-30", 5),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"i1000000", 2),
    ],
)
def test_a_key_has_the_same_lane_on_every_platform(key: Any, spelled: bytes, lane: int) -> None:
    """D1: the hash is stable; these vectors were taken once and may never change."""
    assert canonical(key) == spelled
    assert lane_of(key, 8) == lane


@pytest.mark.parametrize(
    "equals",
    [
        (1, 1.0, Decimal("1"), Decimal("1.00"), Decimal("1E0"), Size(3) - 2),
        (3, Size.LARGE),
        (0, 0.0, -0.0, Decimal("-0.00"), Decimal("0E+9")),
        (1000, 1e3, Decimal("1E+3"), Decimal("1000.0")),
        (-2.5, Decimal("-2.50")),
        (10**18, 1e18, Decimal("1E+18")),
        (10**30, Decimal("1E+30"), Decimal(10**30)),
        (float("nan"), Decimal("NaN")),
        (float("-inf"), Decimal("-Infinity")),
        (
            datetime(2026, 11, 30, 12, tzinfo=UTC),
            datetime(2026, 11, 30, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        (b"ab", bytearray(b"ab"), memoryview(b"ab")),
        ((1, "a"), [Decimal("1.0"), "a"]),
        (timedelta(days=1), timedelta(hours=24)),
    ],
)
def test_equal_keys_of_the_database_share_a_lane(equals: tuple[Any, ...]) -> None:
    """R16: drivers spell one value in several types."""
    assert len({canonical(key) for key in equals}) == 1
    assert len({lane_of(key, 7) for key in equals}) == 1


@pytest.mark.parametrize(
    "unequals",
    [
        ("1", 1, b"1", True),
        ("2026-11-30", date(2026, 11, 30), datetime(2026, 11, 30)),
        (datetime(2026, 11, 30), datetime(2026, 11, 30, tzinfo=UTC)),
        (0.1, Decimal("0.1")),
        (1e300, 10**300 + 1),
        (time(12), time(12, tzinfo=UTC)),
        (("a", "b"), ("ab", "")),
        ("a", "A"),
        (None, "-"),
        (ip_address("::1"), "::1"),
    ],
)
def test_unequal_keys_are_spelled_apart(unequals: tuple[Any, ...]) -> None:
    """R16: what the database tells apart, the bytes tell apart."""
    assert len({canonical(key) for key in unequals}) == len(unequals)


@settings(max_examples=50)
@given(KEYS, st.integers(1, 64))
def test_every_key_has_a_lane(key: Any, lanes: int) -> None:
    """D1: whatever the key, its lane exists, and the quick ways for text and numbers agree with the bytes."""
    assert 0 <= lane_of(key, lanes) < lanes
    assert lane_of(key, lanes) == lane_of(bytes_under_another_type(key), lanes)


def bytes_under_another_type(key: Any) -> Any:
    """Spell a key in a type that takes the slow way."""

    class Text(str):
        pass

    class Number(int):
        pass

    return Text(key) if type(key) is str else Number(key) if type(key) is int else key


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 30))
def test_trailing_zeros_change_nothing(key: Decimal, zeros: int) -> None:
    """R16: numeric 1.5 and 1.500 are one key."""
    sign, digits, exponent = key.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert canonical(longer) == canonical(key)


def test_an_enormous_number_costs_no_more_than_its_digits() -> None:
    """R16: 1E+1000000 is seven characters, not a million digits."""
    assert canonical(Decimal("1E+1000000")) == b"n1e1000000"


@pytest.mark.parametrize(
    "keys",
    [
        range(400),
        range(0, 400_000, 1000),
        [f"customer-{n}" for n in range(400)],
        [uuid.UUID(int=n) for n in range(400)],
    ],
    ids=["numbers", "thousands", "text", "uuids"],
)
def test_keys_spread_over_the_lanes(keys: list[Any]) -> None:
    """D1: 400 keys fill each of 4 lanes to 15..35 percent, although they differ little."""
    counts = Counter(lane_of(key, 4) for key in keys)
    assert all(0.15 * 400 <= counts[lane] <= 0.35 * 400 for lane in range(4))


@pytest.mark.parametrize("seed", range(20))
def test_random_keys_spread_over_the_lanes(seed: int) -> None:
    """D1: 400 random keys fill each of 4 lanes to 15..35 percent."""
    chance = random.Random(seed)
    keys = [chance.randbytes(chance.randint(4, 20)).decode("latin-1") for _ in range(400)]
    counts = Counter(lane_of(key, 4) for key in keys)
    assert all(0.15 * 400 <= counts[lane] <= 0.35 * 400 for lane in range(4))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(-1, 11))
def test_a_row_without_a_key_takes_the_emptiest_lane(loads: list[int], last: int) -> None:
    """D1: NULL keys go where the least waits."""
    assert loads[least(loads, min(last, len(loads) - 1))] == min(loads)


def test_equally_empty_lanes_take_turns() -> None:
    """D1: NULL keys spread over all lanes."""
    chosen = []
    last = -1
    for _ in range(6):
        last = least([0, 0, 5, 0], last)
        chosen.append(last)
    assert chosen == [0, 1, 3, 0, 1, 3]
