"""The pool of lent connections: waits, ages, checks, counts and drains, alike over every driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardrun.db.pool import LIFETIME, SPREAD, ConnectionPool, Held, lifetime
from tests.store.place import Place
from tests.waiting import eventually


class Full(Exception):
    """Nothing came free in time."""


class Kept:
    """A pool of two connections over a place, and what it told of its sessions."""

    def __init__(self, place: Place, longest: float = LIFETIME) -> None:
        self.place = place
        self.told: list[str] = []
        self.pool = ConnectionPool(place.dsn, 2, "test", self.told.append, self.told.remove, longest)
        place.run("create table notes (body varchar(20))")

    def take(self, timeout: float = 10) -> Held:
        return self.pool.take(timeout, Full)

    def write(self, held: Held, body: str) -> None:
        """Write as a handler does."""
        with self.pool.database.transaction(held.connection):
            held.connection.cursor().execute(f"insert into notes values ('{body}')")

    def counted(self) -> dict[str, int]:
        """Give the counts that are not 0."""
        stats = self.pool.stats()
        return {name: count for name in stats.__slots__ if (count := getattr(stats, name)) and name != "size"}

    def break_off(self, held: Held) -> None:
        """End a connection under the pool's feet."""
        if held.session is None:
            held.connection.close()
        else:
            self.place.database.end_sessions(self.place.own, [held.session], "test")


MakePool = Callable[..., Kept]


@pytest.fixture
def make(place: Place) -> Iterator[MakePool]:
    """Give a function that makes a pool, closed after the test."""
    made: list[Kept] = []

    def make_one(**settings: Any) -> Kept:
        made.append(Kept(place, **settings))
        return made[-1]

    yield make_one
    for each in made:
        each.pool.close()


def test_no_two_connections_need_have_one_lifetime() -> None:
    """F1: an hour at most, spread, so that not all of them go at once."""
    found = {lifetime(100) for _ in range(50)}
    assert len(found) > 1
    assert 100 * (1 - SPREAD) <= min(found) <= max(found) <= 100
    assert 0 < lifetime() <= 3600


def test_an_old_connection_is_closed_when_it_comes_back_or_is_asked_for(make: MakePool) -> None:
    """F1: the borrower has it for as long as it needs; afterwards, or after a rest, the next one gets another."""
    kept = make(longest=0)
    first = kept.take()
    kept.write(first, "old")
    kept.pool.give_back(first)
    assert kept.counted() == {"opened": 1, "outlived": 1}
    assert kept.told == []


def test_a_connection_that_grew_old_at_rest_is_not_lent(make: MakePool) -> None:
    """F1: nor is it kept when another comes back."""
    kept = make()
    first, second = kept.take(), kept.take()
    kept.pool.give_back(first)
    first.expires = 0.0
    third = kept.take()
    assert third is not first
    assert kept.counted() == {"open": 2, "lent": 2, "opened": 3, "outlived": 1}
    kept.pool.give_back(third)
    third.expires = 0.0
    kept.pool.give_back(second)
    assert kept.counted() == {"open": 1, "idle": 1, "opened": 3, "outlived": 2}
    assert kept.told == [each for each in [second.session] if each]


def test_who_waits_is_counted_and_gets_what_comes_back(make: MakePool) -> None:
    """F1: never more than the pool's size; a wait that is over in vain says so."""
    kept = make()
    first, second = kept.take(), kept.take()
    with pytest.raises(Full):
        kept.take(timeout=0)
    got: list[Held] = []
    thread = threading.Thread(target=lambda: got.append(kept.take()))
    thread.start()
    eventually(lambda: kept.pool.stats().waiting == 1)
    kept.pool.give_back(second)
    thread.join(10)
    assert got == [second]
    assert kept.counted() == {"open": 2, "lent": 2, "opened": 2, "waits": 2}
    for held in (first, second):
        kept.pool.give_back(held)


def test_what_a_borrower_ran_is_never_run_again(make: MakePool) -> None:
    """F1, F4: the driver's error is the borrower's; one broken connection puts the others to the test, fresh as they are."""
    kept = make()
    first, second = kept.take(), kept.take()
    for held in (first, second):
        kept.write(held, "once")
        kept.pool.give_back(held)
        kept.break_off(held)
    met = kept.take()  # fresh: lent without a look
    with pytest.raises(Exception, match=r"."):
        kept.write(met, "never")
    kept.pool.give_back(met)
    after = kept.take()
    assert after not in (first, second)
    kept.write(after, "once more")
    kept.pool.give_back(after)
    assert kept.place.run("select body from notes order by body") == [("once",), ("once",), ("once more",)]
    assert kept.counted() == {"open": 1, "idle": 1, "opened": 3, "broken": 2}


def test_a_check_closes_what_does_not_answer_and_keeps_the_rest(make: MakePool) -> None:
    """F1: at any time, whatever lies idle."""
    kept = make()
    first, second = kept.take(), kept.take()
    kept.pool.give_back(first)
    kept.pool.give_back(second)
    kept.break_off(first)
    kept.pool.check()
    assert kept.counted() == {"open": 1, "idle": 1, "opened": 2, "broken": 1}
    assert kept.take() is second
    kept.pool.give_back(second)


def test_a_drained_pool_closes_all_it_had_and_goes_on_with_fresh_ones(make: MakePool) -> None:
    """F1: idle connections at once, a lent one when its borrower is done with it."""
    kept = make()
    idle, lent = kept.take(), kept.take()
    kept.pool.give_back(idle)
    kept.pool.drain()
    assert kept.counted() == {"open": 1, "lent": 1, "opened": 2}
    fresh = kept.take()
    assert fresh not in (idle, lent)
    kept.write(lent, "still served")
    kept.pool.give_back(lent)
    assert kept.counted() == {"open": 1, "lent": 1, "opened": 3}
    kept.pool.give_back(fresh)
    assert kept.take() is fresh
    kept.pool.give_back(fresh)
    assert kept.told == [each for each in [fresh.session] if each]
