"""What is left in a table, as `--until-empty` asks."""

from __future__ import annotations

from shardrun.db.store import Backlog
from tests.store.place import Holder, Place, usual


def test_due_held_and_later_rows_are_told_apart(place: Place) -> None:
    """K1: held rows are waited for, later ones are counted, awaited ones are named by id."""
    place.create_usual()
    holder = Holder(place, usual())
    assert holder.store.backlog(holder.connection, []) == Backlog(ready=False, later=0, awaited=False)
    place.run(f"insert into q (retry_after) values ({place.seconds(60)}), ({place.seconds(70)})")
    assert holder.store.backlog(holder.connection, [2, 9]) == Backlog(ready=False, later=2, awaited=True)
    place.fill(1)
    Holder(place, usual()).claim()
    assert holder.store.backlog(holder.connection, [9]) == Backlog(ready=True, later=2, awaited=False)


def test_other_groups_and_finished_rows_do_not_count(place: Place) -> None:
    """K1: a subscription's backlog is its own."""
    place.create_usual(group="text", processed_at="time")
    place.fill(1, group="other")
    place.run(f"insert into q (\"group\", processed_at) values ('mine', {place.seconds(-1)})")
    holder = Holder(place, usual(group="group", processed_at="processed_at"), group="mine")
    assert holder.store.backlog(holder.connection, [1, 2]) == Backlog(ready=False, later=0, awaited=False)


def test_without_a_due_column_any_unfinished_row_is_ready(place: Place) -> None:
    """K1: a queue without `retry_after` has nothing later."""
    place.create_usual(without=["retry_after"])
    holder = Holder(place, usual(without=["retry_after"]))
    place.run(f"insert into q (locked_until) values ({place.seconds(60)})")
    assert holder.store.backlog(holder.connection, []) == Backlog(ready=True, later=0, awaited=False)
