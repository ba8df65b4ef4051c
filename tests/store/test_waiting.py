"""Why a claim took nothing, as a replica asks once."""

from __future__ import annotations

import pytest

from shardrun.db.store import Waiting
from tests.store.place import Holder, Place, usual


def test_rows_that_wait_are_held_or_are_free_are_told_apart(place: Place) -> None:
    """Text 1 #20: due later with the first time, held by whomever, and what could have been taken."""
    place.create_usual()
    holder = Holder(place, usual())
    assert holder.store.waiting(holder.connection) == Waiting(0, 0, 0, 0, None, None, None)
    place.fill(2)
    assert holder.ids(1) == [1]
    place.run(f"insert into q (retry_after) values ({place.seconds(7200)}), ({place.seconds(60)})")
    *counts, first, seconds, elsewhere = holder.store.waiting(holder.connection)
    assert counts == [4, 2, 1, 1]
    text = "char" if place.dialect == "mariadb" else "text"
    (told,) = place.run(f"select cast(min(retry_after) as {text}) from q where retry_after is not null")
    assert str(first)[:19] == told[0][:19]
    assert seconds == pytest.approx(60, abs=5)
    assert elsewhere is None


def test_a_group_without_rows_hears_of_others(place: Place) -> None:
    """Text 1 #20: the row went into another group; finished rows are none."""
    place.create_usual(group="text", processed_at="time")
    queue = usual(group="group", processed_at="processed_at")
    holder = Holder(place, queue, group="live")
    place.run(f"insert into q (\"group\", processed_at) values ('old', {place.seconds(-1)})")
    assert holder.store.waiting(holder.connection).elsewhere is None
    place.fill(1, group="Later")
    assert holder.store.waiting(holder.connection) == Waiting(0, 0, 0, 0, None, None, "'Later'")
    place.fill(1, group="live")
    assert holder.store.waiting(holder.connection).elsewhere is None


def test_a_queue_without_due_times_has_held_rows_only(place: Place) -> None:
    """Text 1 #20: a delay is written where the lease is."""
    place.create_usual(without=["retry_after"])
    holder = Holder(place, usual(without=["retry_after"]))
    place.run(f"insert into q (locked_until) values ({place.seconds(60)})")
    assert holder.store.waiting(holder.connection) == Waiting(1, 0, 1, 0, None, None, None)


def test_times_without_end_are_times(place: Place) -> None:
    """C92: PostgreSQL's infinity, MariaDB's last moment, and on SQLite a time that cannot be compared, which waits for nobody."""
    place.create_usual()
    holder = Holder(place, usual())
    if place.dialect == "postgres":
        place.run("insert into q (retry_after) values ('infinity')")
        assert holder.store.waiting(holder.connection) == Waiting(1, 1, 0, 0, "infinity", float("inf"), None)
    elif place.dialect == "mariadb":
        place.run("insert into q (retry_after) values ('9999-12-31 23:59:59')")
        assert holder.store.waiting(holder.connection)[:5] == (1, 1, 0, 0, "9999-12-31 23:59:59.000000")
    else:
        place.run("insert into q (retry_after) values ('2999-01-01T10:00')")
        assert holder.store.waiting(holder.connection) == Waiting(1, 0, 0, 0, None, None, None)
