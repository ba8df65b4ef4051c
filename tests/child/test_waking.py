"""What a child says of the rows that its handlers insert: once they are committed, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from shardrun import Queue
from shardrun.child.pools import Pool
from shardrun.db.inserted import MOST_GROUPS, Written, listed
from shardrun.ring import words
from tests.child.conftest import Spawn
from tests.store.place import Place

QUEUE: Queue[Any] = Queue.standard("q")


class Undo(Exception):
    """Ends a block, so that it rolls back."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give a database of each kind with the table of a standard queue."""
    sqlite = request.param == "sqlite"
    dsn = f"sqlite:///{tmp_path}/test.db" if sqlite else request.getfixturevalue("postgres").new_database()
    made = Place(request.param, dsn)
    for statement in made.database.ddl(QUEUE, []):
        made.own.execute(statement)
    yield made
    made.close()


@pytest.fixture
def told() -> list[Written]:
    """Collect what a pool tells."""
    return []


@pytest.fixture
def pool(place: Place, told: list[Written]) -> Iterator[Pool]:
    """Give a pool of two connections, which says what was inserted and committed."""
    pool = Pool(place.dsn, 2, "part", lambda session: None, told.append, patience=1)
    yield pool
    pool.close()


def lent(pool: Pool) -> Any:
    return pool.lend("work", "queue", 1)


def test_what_a_block_inserted_is_told_when_it_has_committed(pool: Pool, told: list[Written], place: Place) -> None:
    """G1: through the connection or a cursor of it, one row or many, by role or by column; each group once."""
    with lent(pool) as db:
        QUEUE.insert(db, payload=1, group="a")
        QUEUE.insert(db.cursor(), payload=2, name="b")
        QUEUE.insert_many(db.cursor(), [{"payload": 3, "group": group} for group in ("a", "c", None)])
        assert told == []
    assert told == [{"q": {"a", "b", "c", None}}]
    assert place.run("select count(*) from q") == [(5,)]


def test_what_was_rolled_back_and_what_others_insert_is_not_told(pool: Pool, told: list[Written], place: Place) -> None:
    """G1: a block that raises wakes nobody, nor does a connection of the user's own; the next block starts afresh."""
    with suppress(Undo), lent(pool) as db:
        QUEUE.insert(db, payload=1)
        raise Undo
    own = place.database.connect_child("own")
    QUEUE.insert(own, payload=2)
    own.commit()
    with lent(pool) as db, lent(pool) as other:
        QUEUE.insert(own, payload=3)
        other.execute("select 1")
        own.commit()
    place.database.close(own)
    assert [each for each in told if each] == []
    assert place.run("select count(*) from q") == [(2,)]


def test_a_session_on_a_lent_connection_inserts_as_the_connection_does(
    pool: Pool, told: list[Written], place: Place
) -> None:
    """G1: SQLAlchemy on top of what was lent."""
    url = "sqlite://" if place.dialect == "sqlite" else "postgresql+psycopg://"
    with lent(pool) as db:
        engine = sqlalchemy.create_engine(url, creator=lambda: db, poolclass=StaticPool)
        with Session(engine) as session:
            QUEUE.insert(session, payload=1, group="a")
            session.commit()
    assert told == [{"q": {"a"}}]


def test_a_commit_that_fails_is_not_told(postgres: Any, told: list[Written]) -> None:
    """G1: a deferred constraint refuses the block's rows at its end."""
    dsn = postgres.new_database()
    pool = Pool(dsn, 1, "part", lambda session: None, told.append)
    with psycopg.connect(dsn) as own:
        own.execute("create table q (id int, payload int, unique (payload) deferrable initially deferred)")
    with pytest.raises(psycopg.errors.UniqueViolation), lent(pool) as db:
        QUEUE.insert_many(db, [{"payload": "1", "id": 1}, {"payload": "1", "id": 2}])
    assert told == []
    pool.close()


def test_many_groups_are_told_as_all() -> None:
    """G1: a frame stays short, whatever a handler inserts."""
    few, many = {str(number) for number in range(MOST_GROUPS)}, {str(number) for number in range(MOST_GROUPS + 1)}
    assert {table: len(groups) for table, groups in listed({"few": set(few), "many": set(many)})} == {
        "few": MOST_GROUPS,
        "many": 0,
    }


def test_a_child_sends_one_frame_before_the_rows_report(spawn: Spawn, place: Place) -> None:
    """G1, R7: at once, while the handler goes on; a row that inserts nothing sends none."""
    child = spawn(
        """
        other = Queue("q", id="id", payload="payload", group="name")
        @queue.handler(workers=1)
        def work(body, delivery: Delivery):
            with delivery.connection() as db:
                for group in body:
                    other.insert(db, payload=1, group=group)
            while body:
                time.sleep(0.01)
        """,
        dsn=place.dsn,
    )
    assert child.run([]).code == words.ACK
    assert [notice for notice in child.notices if notice[0] == words.WAKE] == []
    child.give(2, ["a", "a"])
    child.until(lambda: any(notice[0] == words.WAKE for notice in child.notices))
    assert [notice for notice in child.notices if notice[0] == words.WAKE] == [(words.WAKE, [["q", ["a"]]])]
    assert child.running() == 2
