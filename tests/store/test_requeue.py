"""Dead letters that are listed, put back and purged."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from shardrun.db.operate import DeadLetters, Failure, Failures
from shardrun.db.store import Verb
from shardrun.errors import UsageProblem
from tests.store.place import Holder, Place, subscribe, usual


def letters_of(place: Place, subscription: Any) -> DeadLetters:
    """Open the dead letters of a subscription."""
    opened = place.database.dead_letters(place.own, subscription)
    assert opened is not None
    return opened


def opened(place: Place, queue: Any = None, **settings: Any) -> DeadLetters:
    """Open the dead letters of a new subscription; of `q_dead` where nothing else is said."""
    return letters_of(place, subscribe(queue or usual(), **(settings or {"dead_letter": "q_dead"})))


def bury(place: Place, table: str = "q_dead", **values: Any) -> None:
    """Insert a dead letter."""
    names = ", ".join(f'"{name}"' for name in values)
    place.run(f"insert into {table} ({names}) values ({', '.join('?' * len(values))})", *values.values())


def key_of(place: Place, key: str) -> Any:
    """Give a key in the spelling in which equal ones are alike."""
    if place.dialect != "mariadb":
        return key
    return place.run("select unhex(sha2(weight_string(cast(? as char) as char(255)), 256))", key)[0][0]


def test_a_row_goes_back_with_its_id_and_its_columns_due_and_free(place: Place) -> None:
    """E3: attempt 0, due at once; `last_error` tells why it had died until it ends anew."""
    place.create_usual(extra="text")
    bury(place, id=7, payload='{"a": 1}', partition_key="k", priority=3, attempt=5, last_error="no", extra="kept")
    place.run(f"update q_dead set retry_after = {place.seconds(3600)}")
    letters = opened(place)
    assert letters.choose(place.own, None, None, 10) == [7]
    assert letters.requeue(place.own, [7], None) == [(7, key_of(place, "k"))]
    assert place.run("select * from q_dead") == []
    columns = "id, partition_key, priority, retry_after, attempt, last_error, extra"
    assert place.run(f"select {columns} from q") == [(7, "k", 3, None, 0, "no", "kept")]
    (row,) = Holder(place, usual()).claim()
    assert (row.id, row.attempt, row.expired) == (7, 1, False)


def test_a_row_whose_id_is_in_the_queue_again_is_left(place: Place) -> None:
    """E3: and so is one that another unique value of the queue's table is in the way of; all others go."""
    place.create_usual(code="text unique")
    for number in range(1, 6):
        bury(place, id=number, code=f"c{number}", attempt=3)
    place.run("insert into q (id, code) values (2, 'x'), (9, 'c4')")
    letters = opened(place)
    assert letters.stuck(place.own, [1, 2, 3]) == {2}
    assert {one.id for one in letters.requeue(place.own, [1, 2, 3, 4, 5, 77], None)} == {1, 3, 5}
    assert place.run("select id, attempt from q_dead order by id") == [(2, 3), (4, 3)]
    assert place.run("select id from q order by id") == [(1,), (2,), (3,), (5,), (9,)]


def test_tokens_grow_over_a_burial_and_back(place: Place) -> None:
    """R1: who held the row before it died cannot match it afterwards, in columns of whole seconds, too."""
    whole = {"postgres": "timestamptz(0)", "sqlite": "time", "mariadb": "datetime"}
    place.create_usual(without=["locked_until"], locked_until=whole[place.dialect])
    place.fill(1)
    queue = usual()
    holder = Holder(place, queue, dead_letter="q_dead")
    letters = letters_of(place, queue.subscriptions[0])
    tokens: list[str] = []
    for _ in range(3):
        (row,) = holder.claim()
        assert tokens == [] or row.token > max(tokens)
        for old in tokens:
            assert not holder.one(Verb.ACK, row, old)
        tokens.append(row.token)
        assert holder.one(Verb.BURY, row, reason="no")
        assert [one.id for one in letters.requeue(place.own, [row.id], None)] == [row.id]


def test_columns_that_must_be_filled_are(place: Place) -> None:
    """E3: due now where the column takes no NULL, free where the lease's takes none; what is generated is left out."""
    time = {
        "postgres": "timestamptz not null default now()",
        "sqlite": "timestamp not null default '2026-01-01 00:00:00'",
        "mariadb": "datetime(6) not null default '2026-01-01 00:00:00'",
    }
    place.create_usual(
        without=["retry_after", "locked_until"],
        retry_after=time[place.dialect],
        locked_until=time[place.dialect],
        double="bigint generated always as (priority * 2) stored",
    )
    if place.dialect == "postgres":
        place.run("alter table q alter id set generated always")
    bury(place, id=7, priority=4, attempt=5)
    queue = usual()
    holder = Holder(place, queue, dead_letter="q_dead")
    assert letters_of(place, queue.subscriptions[0]).requeue(place.own, [7], None) == [(7, None)]
    assert place.run('select id, "double" from q') == [(7, 8)]
    assert holder.ids() == [7]


def test_a_row_goes_back_to_its_group_and_a_held_one_stays(place: Place) -> None:
    """E3, R1: in a group of the same table only free rows are moved, and their lease column keeps its token."""
    place.create_usual(group="text")
    queue = usual(group="group")
    live = Holder(place, queue, group="live", dead_letter_group="gone", max_attempts=3)
    place.fill(3, group="live", partition_key="k")
    for row in live.claim():
        assert live.one(Verb.BURY, row, reason="no")
    (held,) = Holder(place, queue, group="gone").ids(1)
    letters = letters_of(place, queue.subscriptions[0])
    before = dict(place.run("select id, locked_until from q"))
    assert letters.stuck(place.own, [1, 2, 3]) == {held}
    moved = letters.requeue(place.own, [1, 2, 3], None)
    assert sorted(one.id for one in moved) == sorted({1, 2, 3} - {held})
    assert {one.key for one in moved} == {key_of(place, "k")}
    assert dict(place.run("select id, locked_until from q")) == before
    assert letters.purge(place.own, [held], None) == []
    assert sorted(live.ids()) == sorted({1, 2, 3} - {held})


def test_another_groups_dead_letters_in_the_same_table_are_not_ours(place: Place) -> None:
    """E3: they are neither listed nor touched."""
    place.create_usual(group="text")
    for number, group in enumerate(("mine", "other"), 1):
        bury(place, id=number, group=group)
    letters = opened(place, usual(group="group"), group="mine", dead_letter="q_dead")
    assert letters.choose(place.own, None, None, 10) == [1]
    assert letters.choose(place.own, None, [1, 2], 10) == [1]
    assert letters.purge(place.own, [2], None) == letters.requeue(place.own, [2], None) == []
    assert letters.failures(place.own, None).rows == 1


def test_errors_are_filtered_by_what_they_contain_letter_by_letter(place: Place) -> None:
    """E3: no wildcards, no case folding; a row without an error is no match."""
    place.create_usual()
    for number, error in enumerate(["KeyError: 100%", "keyerror: 100", "SomeKeyError: x", None], 1):
        bury(place, id=number, last_error=error)
    letters = opened(place)
    for text, found in {"KeyError": [1, 3], "100%": [1], "_": [], "error": [2]}.items():
        assert sorted(letters.choose(place.own, text, None, 10)) == found
    assert letters.purge(place.own, [1, 2, 3, 4], "100") == [1, 2]
    assert [one.id for one in letters.requeue(place.own, [3, 4], "Key")] == [3]
    assert place.run("select id from q_dead") == [(4,)]


def test_dead_letters_are_grouped_by_the_first_line_of_their_error(place: Place) -> None:
    """E3: the most frequent first, with the first and the last due time and one of the ids."""
    place.create_usual(without=["last_error"], last_error="longtext" if place.dialect == "mariadb" else "text")
    when = {1: "2026-01-02 03:04:05", 2: "2026-01-01 00:00:00", 5: "2026-03-01 00:00:00"}
    for number, error in {1: "A: x\ntrace", 2: "A: x\nother", 3: "B: " + "y" * 300, 4: None, 5: "A: x"}.items():
        bury(place, id=number, last_error=error)
        if number in when:
            place.run("update q_dead set retry_after = ? where id = ?", when[number], number)
    letters = opened(place)
    found = letters.failures(place.own, None)
    assert found.listed[0] == Failure("A: x", 3, "2026-01-01 00:00:00", "2026-03-01 00:00:00", 1)
    assert {each[:4] for each in found.listed[1:]} == {("B: " + "y" * 197, 1, None, None), (None, 1, None, None)}
    assert (found.errors, found.rows, found.more) == (3, 5, False)
    assert letters.failures(place.own, "zzz") == Failures([], 0, 0, False)


def test_any_kind_of_id_is_read_as_people_write_it(place: Place) -> None:
    """A1: numbers, uuids and text; what cannot be an id is refused."""
    columns = dict.fromkeys(("locked_until", "retry_after"), "time")
    for number, kind in enumerate(("bigint", "text", *(["uuid"] if place.dialect != "sqlite" else []))):
        for table in (f"t{number}", f"t{number}_dead"):
            place.create(table, id=f"{kind} primary key", **columns)
        queue = usual(["payload", "partition_key", "priority", "attempt", "last_error"], table=f"t{number}")
        letters = opened(place, queue, dead_letter=f"t{number}_dead")
        text = {"bigint": "118", "text": "it's \"{,}\\", "uuid": str(uuid.uuid4())}[kind]
        key = letters.id_of(text)
        bury(place, f"t{number}_dead", id=key)
        assert [str(each) for each in letters.choose(place.own, None, [key], 5)] == [text]
        assert [one.id for one in letters.requeue(place.own, [key], None)] == [key]
        if kind != "text":
            with pytest.raises(UsageProblem, match="'x y' is not the id of a row: column id"):
                letters.id_of("x y")


def test_a_queue_without_dead_letters_has_none(place: Place) -> None:
    """E3: nothing to open."""
    place.create_usual()
    assert place.database.dead_letters(place.own, subscribe(usual())) is None
