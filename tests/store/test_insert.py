"""Rows that users insert on their own connections."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest

from shardrun.db.insert import Inserts, channel
from shardrun.errors import NotInThisVersion, ShardrunError
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


@dataclass
class Invoice:
    """A payload as users declare them."""

    number: int
    total: Decimal


@pytest.fixture(autouse=True)
def _writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "writer", Inserts(), raising=False)


@pytest.fixture
def place(one_of_two: Place) -> Place:
    """Leave MariaDB to the tests that have its own types."""
    return one_of_two


@pytest.fixture
def user(place: Place) -> Iterator[Any]:
    """Give a connection as the user would open it, with a row factory and a time zone of its own."""
    connection: Any
    if place.dialect == "postgres":
        connection = psycopg.connect(place.dsn, row_factory=psycopg.rows.dict_row)
        connection.execute("set timezone = 'Asia/Tokyo'")
        connection.commit()
    else:
        connection = sqlite3.connect(place.dsn.removeprefix("sqlite:///"))
        connection.row_factory = sqlite3.Row
    yield connection
    connection.close()


def test_a_row_belongs_to_the_callers_transaction(place: Place, user: Any) -> None:
    """A1: insert never commits; the id comes back."""
    place.create_usual()
    assert usual().insert(user, payload={"a": 1}, partition_key="k") == 1
    assert place.run("select count(*) from q") == [(0,)]
    user.rollback()
    assert usual().insert(user.cursor(), payload={"a": 2}, priority=3) in (1, 2)
    user.commit()
    (row,) = Holder(place, usual()).claim()
    assert row.body in ('{"a": 2}', '{"a":2}')


@pytest.mark.parametrize("kind", ["time", "timestamp", "timestamptz"])
@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1), "moment"])
def test_a_due_time_is_right_with_and_without_zone(place: Place, user: Any, kind: str, delay: Any) -> None:
    """R17, C100: delays go by the database's clock, whatever the session's zone."""
    place.create_usual(without=["retry_after"], retry_after=kind)
    given = datetime.now(UTC) + timedelta(seconds=60) if delay == "moment" else delay
    usual().insert(user, payload=1, retry_after=given)
    user.commit()
    clock = (
        place.seconds(0) if place.dialect == "sqlite" or kind != "timestamp" else "timezone('utc', clock_timestamp())"
    )
    if place.dialect == "postgres":
        assert place.run(f"select retry_after - {clock} between '50 s' and '60 s' from q") == [(True,)]
    else:
        ahead = f"retry_after between {place.seconds(50)} and {place.seconds(61)}"
        assert place.run(f"select {ahead} from q") == [(1,)]


def test_any_payload_goes_in(place: Place, user: Any) -> None:
    """A1: str and bytes as they are, all else as JSON."""
    place.create_usual()
    whole = 2**70
    for payload in ['{"raw":  1}', b"[1]", [1, None], Invoice(7, Decimal("1.10")), {"n": whole}, {"id": UUID(int=1)}]:
        usual().insert(user, payload=payload)
    user.commit()
    bodies = [row.body.replace(" ", "") for row in Holder(place, usual()).claim()]
    assert [json.loads(body) for body in bodies] == [
        {"raw": 1},
        [1],
        [1, None],
        {"number": 7, "total": "1.10"},
        {"n": whole},
        {"id": "00000000-0000-0000-0000-000000000001"},
    ]


def test_many_rows_keep_their_order_and_may_differ_in_columns(place: Place, user: Any) -> None:
    """A1: insert_many takes any iterable of the same keywords."""
    place.create_usual(extra="text")
    rows = ({"payload": n, "partition_key": "k"} if n % 3 else {"payload": n, "extra": "x"} for n in range(2500))
    assert usual().insert_many(user, rows) == 2500
    user.commit()
    text = "payload::text" if place.dialect == "postgres" else "cast(payload as text)"
    assert [row[0] for row in place.run(f"select {text} from q order by id")] == [str(n) for n in range(2500)]


def test_what_cannot_be_written_is_said(place: Place, user: Any) -> None:
    """A1: a role that the queue does not have, a naive time, an odd connection."""
    place.create_usual()
    with pytest.raises(ShardrunError, match=r"queue q has no headers role, so insert\(headers=...\)"):
        usual().insert(user, headers={})
    with pytest.raises(ShardrunError, match="has no time zone"):
        usual().insert(user, retry_after=datetime.now())
    with pytest.raises(ShardrunError, match="is no delay"):
        usual().insert(user, retry_after=float("nan"))
    with pytest.raises(
        ShardrunError, match=r"takes a psycopg, PyMySQL or sqlite3 connection or cursor, .*, not builtins.object"
    ):
        usual().insert(object(), payload=1)
    with pytest.raises(ShardrunError, match="the payload cannot be written as JSON"):
        usual().insert(user, payload=object())


def test_a_bytea_payload_takes_text_as_its_bytes(open_place: Opener) -> None:
    """A2: backslashes in text are no escapes."""
    place = open_place("postgres")
    place.create_usual(without=["payload"], payload="bytea")
    with psycopg.connect(place.dsn) as connection:
        usual().insert(connection, payload="a\\000b")
        usual().insert(connection, payload={"a": "\\x"})
    assert [row.body for row in Holder(place, usual()).claim()] == [b"a\\000b", b'{"a":"\\\\x"}']


def test_notify_tells_the_group_to_who_listens(open_place: Opener) -> None:
    """G2: on commit, on the channel of the table as the queue writes it."""
    place = open_place("postgres")
    place.create_usual(group="text")
    with psycopg.connect(place.dsn, autocommit=True) as ear:
        ear.execute('listen "shardrun:q"')
        with psycopg.connect(place.dsn) as connection:
            usual(group="group").insert(connection, payload=1, group="g", notify=True)
            usual(group="group").insert_many(connection, [{"payload": 1, "notify": True}] * 3)
        heard = [(one.channel, one.payload) for one in ear.notifies(timeout=10, stop_after=2)]
    assert heard == [("shardrun:q", "g"), ("shardrun:q", "")]


def test_notify_is_refused_where_nothing_listens(open_place: Opener) -> None:
    """G2: PostgreSQL only."""
    place = open_place("sqlite")
    place.create_usual()
    with pytest.raises(NotInThisVersion):
        usual().insert(place.own, payload=1, notify=True)


def test_a_long_channel_keeps_its_start_and_differs() -> None:
    """G2: PostgreSQL takes 63 bytes."""
    long = "billing." + "t" * 70
    assert channel("billing.q") == "shardrun:billing.q"
    assert len(channel(long)) == 63
    assert channel(long) != channel(long + "2")
