"""The CREATE statements, and that what they create is what a start wants."""

from __future__ import annotations

from typing import Any

from shardrun.db.store import Verb
from shardrun.queue import Queue
from tests.store.place import Holder, Place, subscribe, usual


def apply(place: Place, queue: Queue[Any]) -> list[str]:
    """Run what is missing."""
    statements = place.database.ddl(queue, queue.subscriptions, place.own)
    for statement in statements:
        place.own.execute(statement)
    return statements


def test_a_standard_queue_starts_on_what_ddl_creates(place: Place) -> None:
    """A6: table, index and dead letters; applied twice it does nothing."""
    queue: Queue[Any] = Queue.standard('"my queue %s"')
    subscription = subscribe(queue, max_attempts=2)
    assert len(apply(place, queue)) == 3
    assert apply(place, queue) == []
    assert place.database.warnings(place.own, subscription) == []
    place.run('insert into "my queue %s" (payload, name) values (?, ?)', '{"a": 1}', "g")
    holder = Holder(place, queue, max_attempts=2)
    (row,) = holder.claim()
    assert (row.group, row.attempt, holder.store.payload_kind) == ("g", 1, "json")
    assert holder.one(Verb.BURY, row)
    assert place.run('select attempt from "my queue %s_dead"') == [(1,)]


def test_the_statements_are_safe_to_run_where_all_exists(place: Place) -> None:
    """A6: what is printed without looking never alters what is there."""
    queue: Queue[Any] = Queue.standard("q")
    subscribe(queue)
    for _ in range(2):
        for statement in place.database.ddl(queue, queue.subscriptions):
            place.own.execute(statement)


def test_dead_letters_of_the_users_own_table_have_its_columns(place: Place) -> None:
    """A6: also those that no role names."""
    place.create("q", id="key", locked_until="time", mine="varchar(9)", attempt="integer", last_error="text")
    roles = ["payload", "partition_key", "priority", "retry_after"]
    queue = usual(without=roles)
    subscribe(queue, dead_letter="q_dead", max_attempts=2)
    apply(place, queue)
    place.run("insert into q (mine) values ('kept')")
    holder = Holder(place, usual(without=roles), dead_letter="q_dead")
    assert holder.one(Verb.BURY, holder.claim()[0])
    assert place.run("select mine from q_dead") == [("kept",)]


def test_a_group_and_finished_rows_shape_the_index(place: Place) -> None:
    """A6: the group comes first, and finished rows are left out."""
    queue = usual(group="group", processed_at="processed_at")
    subscription = subscribe(queue, group="a")
    (table, index) = (text.replace("`", '"') for text in place.database.ddl(queue, [subscription]))
    assert table.startswith('create table if not exists "q"')
    assert '"group", "priority", "retry_after"' in index
    assert (
        '("processed_at", "group",' in index if place.dialect == "mariadb" else 'where "processed_at" is null' in index
    )
    apply(place, queue)
    assert place.database.warnings(place.own, subscription) == []


def test_statements_of_ddl_wait_for_whoever_uses_the_table(place: Place) -> None:
    """A6: an index made concurrently waits for old transactions; given up, it would stay behind invalid."""
    place.database.ddl(usual(), [], place.own)
    waits = place.dialect != "postgres" or place.run("show lock_timeout") == [("0",)]
    assert waits
