"""Several rows on one connection: a batch under row locks, or under locks on keys."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Settlement, Verb
from tests.store.conftest import Opener
from tests.store.place import Place
from tests.store.test_locks import Holding, queue_of


@pytest.fixture(params=["postgres", "mariadb"])
def place(request: pytest.FixtureRequest, open_place: Opener) -> Place:
    """Give a database on each server, with three rows of three keys and one more of the first."""
    made = open_place(request.param)
    made.create_usual()
    for key in ("a", "b", "c", "a"):
        made.fill(1, payload="{}", partition_key=key)
    return made


def ids(holding: Holding, limit: int = 9, **choose: Any) -> list[int]:
    """Claim rows, and name them."""
    return [row.id for row in holding.store.claim(holding.connection, limit, (), **choose)]


def locked(place: Place) -> int:
    """Count the keys that sessions have locked."""
    if place.dialect == "mariadb":
        free = " + ".join(f"is_free_lock('accounts-{key}')" for key in "abc")
        return 3 - int(place.run(f"select {free}")[0][0])
    return int(place.run("select count(*) from pg_locks where locktype = 'advisory'")[0][0])


def test_keys_of_a_batch_are_locked_once_each_and_freed_one_by_one(place: Place) -> None:
    """B4, B6, R11: row by row; the other connection gets each key when its row is settled, and not before."""
    first, second, third, fourth = (Holding(place, queue_of("advisory")) for _ in range(4))
    assert ids(first, 2) == [1, 2]
    assert ids(second) == [3]
    assert place.run("select id, attempt from q where attempt > 0 order by id") == [(1, 1), (2, 1), (3, 1)]
    assert first.store.settle(first.connection, [Settlement(Verb.ACK, 1, "")]) == {1}
    assert ids(third) == [4]
    assert first.store.settle(first.connection, [Settlement(Verb.RELEASE, 2, "", attempt=0)]) == {2}
    assert ids(fourth) == [2]
    first.store.let_go(first.connection)
    assert locked(place) == 3


def test_rows_that_are_not_chosen_are_free_at_once(place: Place) -> None:
    """B6, D1: a batch by key keeps one lane's rows; the claim has locked and read no other when it is over."""
    first, second = (Holding(place, queue_of("row lock"), workers_by_key=2) for _ in range(2))
    assert ids(first, choose=lambda rows: [row for row in rows if row.key == "a"]) == [1, 4]
    assert ids(second) == [2, 3]
    every = [Settlement(Verb.ACK, id, "") for id in (1, 4)]
    assert first.store.settle(first.connection, every) == {1, 4}
    assert place.run("select id from q order by id") == [(2,), (3,)]


def test_a_count_is_written_to_a_row_that_is_held_and_to_no_other(place: Place) -> None:
    """B1, B6: after an error the first count opens another transaction, which holds none of the other rows of the batch."""
    holder, other, third = (Holding(place, queue_of("row lock")) for _ in range(3))
    assert ids(holder, 3) == [1, 2, 3]
    holder.store.let_go(holder.connection)  # as an error does
    counts = [[Settlement(Verb.RECOUNT, id, "", attempt=2)] for id in (1, 2, 3)]
    assert holder.store.settle(holder.connection, counts[0]) == {1}
    assert ids(other, 1) == [2]
    assert holder.store.settle(holder.connection, counts[1]) == set()
    assert holder.store.settle(holder.connection, counts[2]) == {3}
    assert ids(third) == [4]
    every = [Settlement(Verb.RETRY, id, "", attempt=2) for id in (1, 3)]
    assert holder.store.settle(holder.connection, every) == {1, 3}
    assert other.store.settle(other.connection, [Settlement(Verb.ACK, 2, "")]) == {2}
