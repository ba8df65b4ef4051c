"""Statements beside the loop: a fixed set of threads over a real SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from shardrun.coordinator import clock
from shardrun.coordinator.threads import DatabaseThreads, Pin
from shardrun.coordinator.waiting import Events
from shardrun.db.connect import database
from shardrun.db.pool import LIFETIME, SPREAD
from shardrun.db.sqlite.driver import write_ahead
from shardrun.db.store import Connection, Database
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError
from tests.coordinator.faults import FaultyDatabase, Held

PATIENCE = 10.0


class Pool:
    """Threads over one file; `until` turns the loop's place."""

    def __init__(self, folder: Path, size: int) -> None:
        self.database = FaultyDatabase(database(f"sqlite:///{folder}/pool.db", create=True))
        self.events = Events()
        self.threads = DatabaseThreads(cast(Database, self.database), size, "test", self.events.post)
        self.answers: list[Any] = []

    def submit(self, work: Callable[[Connection], Any], urgent: bool = False) -> None:
        self.threads.submit(work, self.answers.append, urgent)

    def until(self, count: int) -> list[Any]:
        """Wait for so many answers."""
        deadline = clock.now() + PATIENCE
        while len(self.answers) < count:
            assert clock.now() < deadline, self.answers
            self.events.wait(deadline)
        return self.answers

    def close(self) -> None:
        self.threads.close()
        self.events.close()


MakePool = Callable[[int], Pool]


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[MakePool]:
    pools: list[Pool] = []

    def make(size: int) -> Pool:
        pools.append(Pool(tmp_path, size))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def one(connection: Connection) -> Any:
    return connection.execute("select 1").fetchone()[0]


def loses(connection: Connection) -> Any:
    raise ConnectionLost("it broke")


def blocked(pool: Pool) -> Held:
    """Keep a connection busy until the test lets it go."""
    held = Held()
    pool.submit(lambda connection: held(lambda: one(connection)))
    assert held.begun.wait(PATIENCE)
    return held


def test_urgent_work_goes_before_claims(make_pool: MakePool) -> None:
    """C2: a settlement does not stand behind claims that were asked for before it."""
    pool = make_pool(1)
    held = blocked(pool)
    for name in ("claim 1", "claim 2"):
        pool.submit(lambda _, name=name: name)  # type: ignore[misc]
    pool.submit(lambda _: "settlement", urgent=True)
    held.go()
    assert pool.until(4) == [1, "settlement", "claim 1", "claim 2"]


def test_the_last_connection_is_kept_for_settlements(make_pool: MakePool) -> None:
    """C2: of three connections claims take two; what waits for a thread counts, too."""
    pool = make_pool(3)
    assert pool.threads.spare_for_claims == 2
    held = [blocked(pool), blocked(pool)]
    assert pool.threads.spare_for_claims == 0
    pool.submit(one, urgent=True)
    pool.until(1)
    assert pool.threads.spare_for_claims == 0
    for each in held:
        each.go()
    pool.until(3)
    assert pool.threads.spare_for_claims == 2


def test_one_writer_has_one_connection_which_claims_take_while_nothing_else_wants_it(make_pool: MakePool) -> None:
    """C2, C5: on SQLite there is one, and it is opened when it is first used."""
    pool = make_pool(1)
    assert (pool.threads.spare_for_claims, pool.database.opened) == (1, 0)
    held = blocked(pool)
    assert pool.threads.spare_for_claims == 0
    held.go()
    pool.submit(one)
    assert pool.until(2) == [1, 1]
    assert (pool.threads.spare_for_claims, pool.database.opened) == (1, 1)


def test_no_more_connections_are_opened_than_there_are_threads(make_pool: MakePool) -> None:
    """F2: however much is asked for at once."""
    pool = make_pool(2)
    for _ in range(20):
        pool.submit(one)
    pool.until(20)
    assert pool.database.opened <= 2


def test_a_broken_connection_is_closed_and_the_next_work_has_a_new_one(make_pool: MakePool) -> None:
    """F4: lost connections are replaced; the sum stays what it was."""
    pool = make_pool(1)
    for work in (one, loses, one):
        pool.submit(work)
    first, lost, last = pool.until(3)
    assert (first, last) == (1, 1)
    assert isinstance(lost, ConnectionLost)
    assert (pool.database.opened, pool.database.closed) == (2, 1)


def test_an_old_connection_is_replaced_between_two_pieces_of_work(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1, F4: when the next one comes, not before its time; the sum stays what it was."""
    pool = make_pool(1)
    start = clock.now()
    pool.submit(one)
    pool.until(1)
    monkeypatch.setattr(clock, "now", lambda: start + LIFETIME * (1 - SPREAD) - 1)
    pool.submit(one)
    pool.until(2)
    assert (pool.database.opened, pool.database.closed) == (1, 0)
    monkeypatch.setattr(clock, "now", lambda: start + LIFETIME + 1)
    pool.submit(one)
    pool.until(3)
    assert (pool.database.opened, pool.database.closed) == (2, 1)


def test_a_refusal_keeps_the_connection(make_pool: MakePool) -> None:
    """F4: a conflict breaks nothing."""

    def refused(_: Connection) -> None:
        raise Conflict("busy")

    pool = make_pool(1)
    for work in (one, refused, one):
        pool.submit(work)
    assert isinstance(pool.until(3)[1], Conflict)
    assert (pool.database.opened, pool.database.closed) == (1, 0)


def test_after_one_connection_broke_the_others_are_looked_at_before_they_are_used(make_pool: MakePool) -> None:
    """F4: a server that restarted has closed them all; no settlement meets that."""
    pool = make_pool(1)
    connections: list[sqlite3.Connection] = []
    pool.submit(lambda connection: connections.append(connection))
    pool.until(1)
    connections[0].close()
    pool.threads.suspect()
    pool.submit(one)
    assert pool.until(2)[1] == 1
    assert pool.database.opened == 2


def test_a_database_that_is_away_is_an_answer_and_the_thread_goes_on(make_pool: MakePool) -> None:
    """F4: the loop paces the tries."""
    pool = make_pool(1)
    pool.database.away = True
    pool.submit(one)
    assert isinstance(pool.until(1)[0], DatabaseUnreachable)
    pool.database.away = False
    pool.submit(one)
    assert pool.until(2)[1] == 1


def test_an_unexpected_exception_reaches_the_loop(make_pool: MakePool) -> None:
    """Architecture 11: a fault of our own is not swallowed by a thread."""
    pool = make_pool(1)
    pool.submit(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pool.until(1)
    assert pool.threads.spare_for_claims == 1


def test_close_lets_what_was_submitted_end_and_closes_every_connection(make_pool: MakePool) -> None:
    """H5: the last settlements are written; no connection is left open."""
    pool = make_pool(2)
    held = blocked(pool)
    for _ in range(5):
        pool.submit(one, urgent=True)
    closing = threading.Thread(target=pool.threads.close)
    closing.start()
    held.go()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert pool.until(6) == [1] * 6
    assert pool.database.opened == pool.database.closed


def test_an_error_of_the_work_is_told_to_done_and_done_runs_in_the_loops_thread(make_pool: MakePool) -> None:
    """Architecture 4: threads run one statement and post an event back."""
    pool = make_pool(1)
    seen: list[tuple[int, type]] = []

    def done(result: ShardrunError | None) -> None:
        seen.append((threading.get_ident(), type(result)))

    pool.threads.submit(loses, done)
    pool.submit(one)
    pool.until(1)
    assert seen == [(threading.get_ident(), ConnectionLost)]


def test_what_is_asked_of_a_connection_that_was_let_go_of_is_answered(make_pool: MakePool) -> None:
    """F4: its thread serves others by then, and whoever asks must not wait for ever."""
    pool = make_pool(1)
    pins: list[Pin] = []
    pool.threads.submit_pinning(one, lambda _, pin: pins.append(cast(Pin, pin)))
    pool.submit(one)
    deadline = clock.now() + PATIENCE
    while not pins:
        assert clock.now() < deadline
        pool.events.wait(deadline)
    pins[0].submit(one, pool.answers.append)
    pins[0].release()
    pins[0].submit(one, pool.answers.append)
    answers = pool.until(3)
    assert sorted(type(answer).__name__ for answer in answers) == ["ConnectionLost", "int", "int"]
    assert pool.threads.spare_for_claims == 1


def test_a_new_file_that_another_is_just_using_is_waited_for(tmp_path: Path) -> None:
    """C87, C5: its journal is changed when the other's transaction is over; SQLite alone would refuse that at once."""
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    mine = sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        mine.execute("pragma journal_mode = wal")
    waiting = threading.Thread(target=write_ahead, args=[mine])
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    other.execute("rollback")
    waiting.join(PATIENCE)
    assert mine.execute("pragma journal_mode").fetchone() == ("wal",)
    for connection in (mine, other):
        connection.close()
