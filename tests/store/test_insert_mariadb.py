"""Rows that users insert through PyMySQL, on a real MariaDB."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest

from shardrun.db.insert import Given, Inserts
from shardrun.db.mysql import insert as dialect
from shardrun.db.mysql.insert import Kind
from shardrun.errors import NotInThisVersion, ShardrunError
from shardrun.queue import Queue
from tests.mariadb import Mariadb


@pytest.fixture(autouse=True)
def _writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "writer", Inserts(), raising=False)


@pytest.fixture
def user(mariadb: Mariadb) -> Iterator[Any]:
    """Give a connection as the user would open it, with dicts for rows and a zone far from UTC."""
    connection = mariadb.connect(mariadb.new_database(), cursorclass=pymysql.cursors.DictCursor)
    with connection.cursor() as cursor:
        cursor.execute("set time_zone = '+09:00'")
    yield connection
    connection.close()


def run(connection: Any, text: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(text, values or None)
        return list(cursor.fetchall())


def create(connection: Any, table: str = "q", id: str = "bigint auto_increment primary key", **columns: str) -> None:
    columns = {"payload": "json", "key": "varchar(50)", "due": "datetime(6)"} | columns
    others = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    run(connection, f"create table {table} (id {id}, {others}) default charset utf8mb4")


def queue(table: str = "q") -> Queue[Any]:
    return Queue(table, id="id", payload="payload", partition_key="key", retry_after="due")


def test_a_row_belongs_to_the_callers_transaction(user: Any) -> None:
    """A1: insert never commits; the id comes back, from a cursor, too."""
    create(user)
    assert queue().insert(user, payload={"a": 1}, partition_key="naïve %s") == 1
    user.rollback()
    assert run(user, "select count(*) from q") == [(0,)]
    first = queue().insert(user.cursor(), payload={"a": 2}, partition_key="naïve %s")
    assert queue().insert_many(user, [{"payload": n} for n in range(5)]) == 5
    assert queue().insert(user, payload={"a": 3}, id=70) == 70
    user.commit()
    assert run(user, "select `key`, payload from q where id = %s", first) == [("naïve %s", '{"a":2}')]
    assert [row[0] for row in run(user, "select payload from q where `key` is null order by id")][:5] == list("01234")


@pytest.mark.parametrize("kind", ["datetime(6)", "datetime", "timestamp(6) null"])
@pytest.mark.parametrize("delay", [60, timedelta(minutes=1), "moment"])
def test_a_due_time_is_utc_under_any_zone(user: Any, kind: str, delay: Any) -> None:
    """R17, C100: DATETIME holds UTC, TIMESTAMP the same instant."""
    create(user, due=kind)
    queue().insert(user, retry_after=datetime.now(UTC) + timedelta(seconds=60) if delay == "moment" else delay)
    clock = "now(6)" if kind.startswith("timestamp") else "utc_timestamp(6)"
    assert run(user, f"select due between {clock} + interval 55 second and {clock} + interval 61 second from q") == [
        (1,)
    ]


@pytest.mark.parametrize("kind", ["json", "longtext", "longblob"])
def test_any_payload_goes_in(user: Any, kind: str) -> None:
    """A2: str and bytes as they are, all else as JSON, into text and binary columns alike."""
    create(user, payload=kind)
    for payload in ['{"raw":  "ü\\\\"}', b"[1]", {"n": 2**70, "s": "'; drop table q; -- %s"}]:
        queue().insert(user, payload=payload)
    if kind == "longblob":
        queue().insert(user, payload=b"\x00\xff")
    stored = [row[0] for row in run(user, "select payload from q order by id")]
    texts = [value.decode() if isinstance(value, bytes) else value for value in stored[:3]]
    assert texts[:2] == ['{"raw":  "ü\\\\"}', "[1]"]
    assert json.loads(texts[2]) == {"n": 2**70, "s": "'; drop table q; -- %s"}
    assert stored[3:] == ([b"\x00\xff"] if kind == "longblob" else [])


def test_odd_names_and_ids_that_a_default_makes(user: Any) -> None:
    """A1, C92: backticks, percent signs and dots in names; MariaDB tells a default's id."""
    run(user, "create table `or``der %` (`us%er ``id` uuid primary key default uuid(), `select` longtext)")
    odd: Queue[Any] = Queue('"or`der %"', id="us%er `id", payload="select")
    made = odd.insert(user, payload="x")
    assert run(user, "select `us%er ``id`, `select` from `or``der %`") == [(made, "x")]
    known = uuid.uuid4()
    assert odd.insert(user, payload="y", id=known) == known
    assert odd.insert_many(user, [{"payload": "a %s"}, {"payload": "b"}]) == 2
    assert run(user, "select count(*) from `or``der %`") == [(4,)]


def test_errors_are_the_drivers(user: Any) -> None:
    """A1: nothing of the caller's is wrapped."""
    create(user)
    queue().insert(user, id=1)
    with pytest.raises(pymysql.err.IntegrityError):
        queue().insert(user, id=1)
    with pytest.raises(pymysql.err.ProgrammingError):
        queue("nowhere").insert(user, payload=1)
    with pytest.raises(NotInThisVersion):
        queue().insert(user, payload=1, notify=True)


def test_the_text_is_one_that_mysql_takes_too() -> None:
    """A1: no RETURNING in the statement itself; times by the server's clock."""
    kinds = {"due": Kind("timestamp", False), "at": Kind("datetime", False)}
    row = [Given("a`b%", "plain", 1), Given("due", "delay", 1.5), Given("at", "delay", 0.1), Given("due", "moment", 0)]
    assert dialect.statement(queue("app.q"), row, kinds) == (
        "insert into `app`.`q` (`a``b%%`, `due`, `at`, `due`)\n"
        "values (%s, now(6) + interval %s microsecond, utc_timestamp(6) + interval %s microsecond, "
        "convert_tz(%s, '+00:00', @@session.time_zone))"
    )


def test_an_id_that_mysql_would_not_tell_is_asked_for(user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: MySQL has no RETURNING; the id of AUTO_INCREMENT is known, one of another default is not."""
    create(user, "q")
    create(user, "u", id="char(36) primary key default uuid()")
    monkeypatch.setattr(user, "get_server_info", lambda: "8.0.36")
    assert queue().insert(user, payload=1) == 1
    with pytest.raises(ShardrunError, match="MySQL does not tell an id that a default makes"):
        queue("u").insert(user, payload=1)
