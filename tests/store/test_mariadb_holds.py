"""What is held by a row lock on MariaDB after an error in the middle, and where the id is not the primary key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardrun.db.mysql import lists
from shardrun.db.statement import Statement
from shardrun.db.store import Settlement, Verb
from shardrun.errors import Conflict
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Place
from tests.store.test_locks import Holding, keyed, queue_of
from tests.store.test_mariadb_locks import free_rows


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


def test_an_error_between_two_pieces_leaves_nothing_that_is_taken_for_held(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10, B7: rows that are locked anew are locked together or not at all, and settled under those locks only."""
    place.create_usual()
    keyed(place, "a", "b")
    holder = Holding(place, queue_of("row lock"))
    rows = holder.store.claim(holder.connection, 2, [])
    acks = [Settlement(Verb.ACK, row.id, "", attempt=1) for row in rows]
    holder.store.let_go(holder.connection)
    store: Any = holder.store
    monkeypatch.setattr(lists, "pieces", lambda ids: [ids[:1], [*ids[1:], 3]])
    claimed = store._claimed

    def ended(row: Sequence[Any]) -> Any:
        monkeypatch.setattr(store, "_hold", Statement(deadlocked))
        return claimed(row)

    deadlocked = "signal sqlstate '40001' set mysql_errno = 1213, message_text = 'Deadlock found'"
    monkeypatch.setattr(store, "_claimed", ended)
    with pytest.raises(Conflict):
        store.settle(holder.connection, acks)
    assert (free_rows(place), holder.connection.holds_rows) == ({1, 2}, False)


def test_a_batch_locks_no_row_that_it_does_not_hold_where_ids_are_unique_beside_a_key(place: Place) -> None:
    """R10, A1: left to itself the server reads and locks the whole of a small table, then sorts it."""
    place.create("q", n="key", uid="char(36) not null unique", attempt="integer")
    place.run("insert into q (uid) select char(96 + seq) from seq_1_to_9")
    holder = Holding(place, Queue("q", id="uid", attempt="attempt"))
    rows = holder.store.claim(holder.connection, 2, [])
    free = {id for (id,) in place.own.execute("select uid from q for update skip locked").fetchall()}
    assert ([row.id for row in rows], free) == (["a", "b"], set("cdefghi"))
    acks = [Settlement(Verb.ACK, row.id, "", attempt=1) for row in rows]
    assert holder.store.settle(holder.connection, acks) == {"a", "b"}
