"""Times that SQLite's comparison of text would misread: named, and neither run early nor parked in silence."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from shardrun.db.sqlite.store import LOOK_SECONDS
from shardrun.db.store import Verb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual

GOOD = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%f", "%Y-%m-%d %H:%M:%f000", "%Y-%m-%d %H:%M:%S+00:00", "%Y-%m-%d %H:%M"]
"""Spellings that sort as time does, as SQLite's strftime takes them."""

ODD = [
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%SZ",
    "%Y-%m-%d %H:%M:%S+02:00",
    "%Y-%m-%d %H:%M:%S-05:00",
    "%Y-%m-%d  %H:%M",
]


def spelt(place: Place, spelling: str, minutes: int) -> Any:
    return place.run("select strftime(?, 'now', ?)", spelling, f"{minutes:+} minutes")[0][0]


@pytest.fixture
def lite(open_place: Opener) -> Place:
    """Give a SQLite database with the usual table."""
    place = open_place("sqlite")
    place.create_usual()
    return place


@pytest.mark.parametrize("spelling", GOOD)
def test_a_time_that_sorts_is_an_instant(lite: Place, spelling: str, caplog: pytest.LogCaptureFixture) -> None:
    """C89: due when it has passed and not before, in each supported spelling; also where a lease is written by hand."""
    for minutes in (-2, 2):
        lite.fill(1, retry_after=spelt(lite, spelling, minutes))
        lite.fill(1, locked_until=spelt(lite, spelling, minutes))
    assert Holder(lite, usual()).ids() == [2, 1]
    assert not caplog.records


def test_a_day_begins_at_midnight(lite: Place) -> None:
    """C89: a date alone."""
    for day in ("now", "+1 day"):
        lite.run("insert into q (retry_after) values (date('now', ?))", day if day != "now" else "+0 days")
    assert Holder(lite, usual()).ids() == [1]


@pytest.mark.parametrize("column", ["retry_after", "locked_until"])
@pytest.mark.parametrize("minutes", [-90, 90])
def test_a_time_that_would_be_misread_is_named_and_left_alone(
    lite: Place, column: str, minutes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C89: neither run early nor parked in silence, whether it lies in the past or not; the others go on."""
    values = [spelt(lite, spelling, minutes) for spelling in ODD]
    values += [
        "" if column == "retry_after" else "x",
        "tomorrow",
        1767268800,
        1767268800.5,
        1767268800000,
        2461042.5,
        b"2026-01-01 12:00:00",
    ]
    for value in values:
        lite.fill(1, **{column: value})
    lite.fill(1)
    holder = Holder(lite, usual())
    (row,) = holder.claim()
    assert row.id == len(values) + 1
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == len(values)
    for number, (value, error) in enumerate(zip(values, errors, strict=True), 1):
        written = f"X'{value.hex().upper()}'" if isinstance(value, bytes) else str(value)
        assert error.startswith(f"q row {number}: {column} is ")
        assert written in error
        assert "UTC as CURRENT_TIMESTAMP writes it: 2026-01-31 12:00:00" in error
    assert holder.one(Verb.ACK, row)
    assert not holder.store.backlog(holder.connection, []).ready


def test_a_row_is_named_once_and_taken_when_it_is_mended(
    lite: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C89: the table may be mended, and spoilt, while a replica runs; a run until empty does not wait for such rows."""
    now = [1.0]
    monkeypatch.setattr("shardrun.db.sqlite.store.monotonic", lambda: now[0])
    lite.fill(1, retry_after="2026-01-01T12:00:00")
    holder = Holder(lite, usual())
    assert holder.ids() == []
    assert not holder.store.backlog(holder.connection, []).ready
    lite.fill(1, retry_after="soon")
    assert holder.ids() == []
    assert len(caplog.records) == 1
    now[0] += LOOK_SECONDS
    assert holder.ids() == []
    assert [record.getMessage()[:9] for record in caplog.records] == ["q row 1: ", "q row 2: "]
    lite.run("update q set retry_after = datetime(retry_after) where id = 1")
    (row,) = holder.claim()
    assert holder.one(Verb.ACK, row)


def test_what_was_given_back_in_the_past_still_sorts(lite: Place) -> None:
    """C89, R1: tokens that were moved into the past are times, too."""
    lite.fill(3)
    holder = Holder(lite, usual())
    for row in holder.claim():
        assert holder.one(Verb.RELEASE, row)
    assert holder.ids() == [1, 2, 3]
