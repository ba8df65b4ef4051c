"""Locks on keys where something happens between two statements of a claim, or right after a settlement's commit."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.postgres import driver
from shardrun.db.store import Claimed, Settlement, Verb
from shardrun.errors import StatementFailed
from tests.store.conftest import Opener
from tests.store.place import Place
from tests.store.test_locks import Holding, keyed, queue_of, refuse


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty database on PostgreSQL, whose sessions hold the locks."""
    return open_place("postgres")


def test_a_row_that_is_claimed_again_right_after_its_commit_frees_its_key_when_it_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4: the connections of a replica share a store; none forgets which key another has locked, nor its own if refused."""
    place.create_usual()
    keyed(place, "a")
    refuse(place, "delete", "true")
    holder, beside = Holding(place, queue_of("advisory")), place.connect()
    row, again, together = holder.taken(), list[Claimed](), driver.run_together

    def and_claim_again(connection: Any, steps: Any) -> Any:
        done = together(connection, steps)
        again.extend(holder.store.claim(beside, 1, []))
        return done

    with pytest.raises(StatementFailed):
        holder.end(Verb.ACK, row)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "run_together", and_claim_again)
        assert holder.end(Verb.RETRY, row)
    assert [one.id for one in again] == [1]
    assert holder.store.settle(beside, [Settlement(Verb.RETRY, 1, "", attempt=2)]) == {1}
    assert place.run("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]


def test_rows_of_a_batch_that_are_counted_are_delivered_where_the_next_cannot_be_looked_for(place: Place) -> None:
    """B6, H4: someone locks the table between two rows; no attempt is spent on a row that is not delivered."""
    place.create_usual()
    keyed(place, "a", "b")
    holder, other = Holding(place, queue_of("advisory")), place.child()
    holder.connection.execute("set lock_timeout = '50ms'")
    store: Any = holder.store
    take_row = store._take_row

    def and_lock(*row: Any) -> Any:
        taken = take_row(*row)
        other.execute("lock table q")
        return taken

    store._take_row = and_lock
    assert [row.id for row in store.claim(holder.connection, 2, [])] == [1]
    other.rollback()
    assert place.run("select id, attempt from q order by id") == [(1, 1), (2, None)]
    assert holder.end(Verb.ACK, Claimed(1, "", 1, False, None, None, None, None, None))
    assert place.run("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
