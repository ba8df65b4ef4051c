"""Rows that someone else keeps locked."""

from __future__ import annotations

import psycopg
import pytest

from shardrun.db.store import Settlement, Verb
from shardrun.errors import Conflict, StatementFailed
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


def test_a_settlement_waits_a_second_for_a_locked_row_and_no_longer(open_place: Opener) -> None:
    """E3: one row that a transaction keeps locked does not stop its subscription; the rest can be asked for again."""
    place: Place = open_place("postgres")
    place.create_usual()
    place.fill(2)
    holder = Holder(place, usual())
    first, second = holder.claim()
    with psycopg.connect(place.dsn) as other:
        other.execute("select * from q where id = 1 for update")
        holder.connection.execute("set statement_timeout = '20s'")  # where it would wait for ever
        with pytest.raises(Conflict, match="lock timeout"):
            holder.settle(Settlement(Verb.ACK, first.id, first.token), Settlement(Verb.ACK, second.id, second.token))
        assert holder.settle(Settlement(Verb.ACK, second.id, second.token)) == {second.id}


def test_what_no_repeat_gets_past_is_not_taken_for_a_conflict(open_place: Opener) -> None:
    """E3: SQLSTATE 55000 stays as it is however often it is asked."""
    place: Place = open_place("postgres")
    place.run("create sequence numbers")
    with pytest.raises(StatementFailed, match="currval"), place.database.naming_errors(place.own):
        place.run("select currval('numbers')")
