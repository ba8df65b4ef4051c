"""The connections that a child lends to its handlers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shardrun.child.pools import Pool
from shardrun.db import pool as connections
from shardrun.errors import DatabaseUnreachable, PoolTimeout
from shardrun.ring import words
from tests.child.conftest import Spawn
from tests.servers import Postgres
from tests.waiting import eventually

NESTED = (
    "work (queue queue, row 101) waited 0.2 s for a second connection; this child has 1 and the same handler holds it. "
    "Use one block, or --child-pool-size 2."
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Make a SQLite file with a table."""
    path = tmp_path / "test.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table notes (text not null)")
    return path


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    """Make an empty PostgreSQL database."""
    return postgres.new_database()


@pytest.fixture
def pool(file: Path) -> Iterator[Pool]:
    """Give a pool of one connection whose patience is short."""
    pool = Pool(f"sqlite:///{file}", 1, "part", lambda session: None, patience=0.2)
    yield pool
    pool.close()


def test_a_block_commits_and_a_block_that_raises_rolls_back(pool: Pool, file: Path) -> None:
    """Contract 1: `with delivery.connection()` is one transaction."""
    with pool.lend("work", "queue", 1) as db:
        db.execute("insert into notes values (?)", ("kept",))
    with pytest.raises(sqlite3.IntegrityError), pool.lend("work", "queue", 1) as db:
        db.executemany("insert into notes values (?)", [("gone",), (None,)])
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select text from notes").fetchall() == [("kept",)]


def test_the_same_connection_is_lent_again_as_it_was(pool: Pool) -> None:
    """F1: one connection, whose settings a handler's changes do not outlive."""
    with pool.lend("work", "queue", 1) as first:
        first.row_factory = sqlite3.Row
    with pool.lend("work", "queue", 2) as second:
        assert second is first
        assert second.row_factory is None


def test_a_nested_block_waits_and_then_says_what_to_do(pool: Pool) -> None:
    """Contract 1, text 18: PoolTimeout names handler, queue, row, the wait and the way out; the pool works on."""
    with pool.lend("work", "queue", 101), pytest.raises(PoolTimeout) as caught, pool.lend("work", "queue", 101):
        pass
    assert str(caught.value) == NESTED
    with pool.lend("work", "queue", 102) as db:
        assert db.execute("select 1").fetchone() == (1,)


def test_a_block_waits_for_a_connection_that_another_thread_gives_back(file: Path) -> None:
    """F1: lanes share the pool; who waits gets the connection as soon as it is free."""
    pool = Pool(f"sqlite:///{file}", 1, "part", lambda session: None)
    entered, leave = threading.Event(), threading.Event()
    lent: list[Any] = []

    def hold() -> None:
        with pool.lend("work", "queue", 1) as db:
            lent.append(db)
            entered.set()
            leave.wait(10)

    def borrow() -> None:
        with pool.lend("work", "queue", 2) as db:
            lent.append(db)

    threads = [threading.Thread(target=hold), threading.Thread(target=borrow)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert len(lent) == 2
    assert lent[0] is lent[1]
    pool.close()


def test_a_database_that_stays_away_is_said_after_the_wait(tmp_path: Path) -> None:
    """F4: attempts to connect are repeated with back-off, and the place in the pool is not lost."""
    pool = Pool(f"sqlite:///{tmp_path}/later.db", 1, "part", lambda session: None, patience=0.4)
    with pytest.raises(DatabaseUnreachable), pool.lend("work", "queue", 1):
        pass
    sqlite3.connect(tmp_path / "later.db").close()
    with pool.lend("work", "queue", 1) as db:
        assert db.execute("select 1").fetchone() == (1,)
    pool.close()


def test_a_session_is_reported_before_it_is_used(dsn: str) -> None:
    """R4: the coordinator can end what a dead child left running."""
    sessions: list[str] = []
    pool = Pool(dsn, 1, "part", sessions.append)
    with pool.lend("work", "queue", 1) as db:
        assert [session.split(":")[0] for session in sessions] == [str(db.info.backend_pid)]
    pool.close()


def test_a_connection_that_was_lost_is_replaced(dsn: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """F4: an idle connection that the server ended is found before it is lent, and its new session is reported."""
    monkeypatch.setattr(connections, "FRESH", 0.0)
    sessions: list[str] = []
    pool = Pool(dsn, 1, "part", sessions.append)
    with pool.lend("work", "queue", 1) as db:
        db.execute("select 1")
    postgres.restart()
    with pool.lend("work", "queue", 2) as db:
        assert db.execute("select 1").fetchone() == (1,)
    assert len(set(sessions)) == 2
    pool.close()


def test_a_connection_that_breaks_in_a_block_is_not_lent_again(dsn: str) -> None:
    """F4: the handler sees the driver's own error; the next block gets a connection that works."""
    pool = Pool(dsn, 1, "part", lambda session: None)
    with pytest.raises(Exception, match="terminating connection"), pool.lend("work", "queue", 1) as db:
        db.execute("select pg_terminate_backend(pg_backend_pid())")
    with pool.lend("work", "queue", 2) as db:
        assert db.execute("select 1").fetchone() == (1,)
    pool.close()


LENDS = """
@queue.handler(workers=1)
def work(body, delivery: Delivery):
    with delivery.connection() as db:
        db.execute("insert into notes values (?)", (body,))
        if body == "nested":
            with delivery.connection():
                pass
"""


def test_a_handler_borrows_its_childs_connection(spawn: Spawn, file: Path) -> None:
    """Contract 1, F1, text 18: what a block wrote is there when the row is reported; a nested one fails the attempt."""
    child = spawn(LENDS, pool_patience=0.2)
    assert child.run("nested").reason == f"PoolTimeout: {NESTED}"
    assert child.run("kept", no=2).code == words.ACK
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select text from notes").fetchall() == [("kept",)]
    assert child.close() == 0


def test_a_childs_session_is_known_before_the_handler_uses_it(spawn: Spawn, dsn: str, postgres: Postgres) -> None:
    """R4: the SESSION notice is published while the row still runs, and names the server's session."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body, delivery: Delivery):
            with delivery.connection() as db:
                db.execute("select pg_sleep(3600)")
        """,
        dsn=dsn,
    )
    child.give(1)
    child.until(lambda: any(notice[0] == words.SESSION for notice in child.notices))
    session = int(next(notice[1] for notice in child.notices if notice[0] == words.SESSION).partition(":")[0])
    pool = Pool(dsn, 1, "test", lambda session: None)
    with pool.lend("test", "queue", 0) as db:
        eventually(lambda: _sleeps(db, session))
        db.execute("select pg_terminate_backend(%s)", (session,))
    assert "terminating connection" in (child.report(1).reason or "")
    pool.close()


def _sleeps(db: Any, session: int) -> bool:
    row = db.execute("select query from pg_stat_activity where pid = %s", (session,)).fetchone()
    db.rollback()
    return row is not None and "pg_sleep" in row[0]


def test_an_async_row_never_blocks_the_loop_for_a_connection(spawn: Spawn, file: Path) -> None:
    """F1: rows of one loop that hold every connection across an await make the others fail at once, not hang."""
    child = spawn(
        """
        import asyncio
        holding = asyncio.Event()
        done = asyncio.Event()
        @queue.handler(workers=2)
        async def work(body, delivery: Delivery):
            if body == "hold":
                with delivery.connection():
                    holding.set()
                    await done.wait()
            else:
                await holding.wait()
                try:
                    with delivery.connection():
                        pass
                finally:
                    done.set()
        """,
        lanes=[0, 0],
    )
    child.give(1, "hold", lane=0)
    child.give(2, "want", lane=1)
    assert (child.report(2).reason or "").startswith("PoolTimeout: work (queue queue, row 102) waited 0 s")
    assert child.report(1).code == words.ACK
