"""Whose clock counts: the database's, for due times and for leases."""

from __future__ import annotations

import time

import pytest

from shardrun.db.store import Settlement, Verb
from tests.store.place import Holder, Place, usual
from tests.waiting import eventually


@pytest.mark.parametrize("shift", [-3600, 3600])
def test_a_host_whose_clock_is_wrong_neither_claims_early_nor_loses_leases(
    place: Place, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3, R17, C101: an hour off, either way, changes nothing that is read or written."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + shift) * 1e9))
    place.create_usual()
    place.run(f"insert into q (retry_after) values ({place.seconds(-1)}), ({place.seconds(60)})")
    holder, other = Holder(place, usual()), Holder(place, usual())
    (row,) = holder.claim()
    assert (row.id, other.ids()) == (1, []), "due by the database's clock alone, and held by it"
    in_time = f"locked_until between {place.seconds(20)} and {place.seconds(31)}"
    assert place.run(f"select count(*) from q where id = 1 and {in_time}") == [(1,)]
    eventually(lambda: holder.store.lease_end(holder.connection) != row.token)  # SQLite counts milliseconds
    new = holder.store.lease_end(holder.connection)
    assert holder.store.extend(holder.connection, [1], row.token, new).extended == [1]
    assert place.run(f"select count(*) from q where id = 1 and {in_time}") == [(1,)]
    assert holder.settle(Settlement(Verb.RETRY, 1, new, delay=30.0)) == {1}
    due = f"retry_after between {place.seconds(20)} and {place.seconds(31)}"
    assert place.run(f"select count(*) from q where id = 1 and {due}") == [(1,)]
