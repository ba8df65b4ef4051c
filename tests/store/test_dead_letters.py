"""Where rows go when their attempts are spent."""

from __future__ import annotations

from shardrun.db.store import Verb
from tests.store.place import Holder, Place, usual


def test_a_row_moves_to_the_other_table_with_all_its_columns(place: Place) -> None:
    """E3: payload, key and attempt as they were, free, its last token kept in the past (R1), the reason in `last_error`."""
    place.create_usual(extra="text")
    place.fill(1, payload='{"a": 1}', partition_key="k", priority=7, attempt=2, extra="kept")
    holder = Holder(place, usual(), dead_letter="q_dead", max_attempts=3)
    (row,) = holder.claim()
    assert holder.one(Verb.BURY, row, reason="ValueError: no")
    assert place.run("select * from q") == []
    columns = "id, partition_key, priority, attempt, last_error, extra"
    assert place.run(f"select {columns} from q_dead") == [(1, "k", 7, 3, "ValueError: no", "kept")]
    assert place.run("select 1 from q_dead where locked_until < '1900-01-01'") == [(1,)]
    text = "payload::text" if place.dialect == "postgres" else "payload"
    assert place.run(f"select {text} from q_dead") == [('{"a": 1}',)]


def test_a_row_moves_to_the_dead_group_and_is_free_there(place: Place) -> None:
    """E3: a group of the same table; the subscription's own group no longer sees the row."""
    place.create_usual(group="text")
    place.fill(1, group="live")
    queue = usual(group="group")
    holder = Holder(place, queue, group="live", dead_letter_group="dead", max_attempts=3)
    (row,) = holder.claim()
    assert holder.one(Verb.BURY, row, reason="no")
    assert place.run('select "group", attempt, last_error from q') == [("dead", 1, "no")]
    assert holder.ids() == []
    assert not holder.store.backlog(holder.connection, [1]).awaited
    assert Holder(place, queue, group="dead").ids() == [1]


def test_generated_columns_and_identities_are_no_obstacle(place: Place) -> None:
    """E3: what the database makes itself is left out; ids are kept also where the dead table would make its own."""
    place.create_usual(double="bigint generated always as (priority * 2) stored")
    if place.dialect == "postgres":
        place.run("alter table q_dead alter id add generated always as identity")
    place.fill(1, priority=4)
    holder = Holder(place, usual(), dead_letter="q_dead")
    assert holder.one(Verb.BURY, holder.claim()[0])
    assert place.run('select id, priority, "double" from q_dead') == [(1, 4, 8)]


def test_a_lease_column_that_must_be_filled_gets_the_aged_token(place: Place) -> None:
    """E3: a NOT NULL lease column in the dead table is no obstacle either."""
    kind = {
        "postgres": "timestamptz not null default '-infinity'",
        "sqlite": "timestamp not null default ''",
        "mariadb": "datetime(6) not null default '1000-01-01'",
    }
    place.create_usual(without=["locked_until"], locked_until=kind[place.dialect])
    place.fill(1)
    holder = Holder(place, usual(), dead_letter="q_dead")
    assert holder.one(Verb.BURY, holder.claim()[0])
    assert place.run("select id from q_dead") == [(1,)]
