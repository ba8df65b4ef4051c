"""What a claim takes, in what order, and what it says of each row."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Verb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


def test_rows_come_by_priority_then_due_time_then_id(place: Place) -> None:
    """D2: smaller priorities first, then no due time before earlier ones, then ids."""
    place.create_usual()
    for priority, due in [(1, None), (0, place.seconds(-5)), (0, place.seconds(-9)), (0, None), (0, None)]:
        place.run(f"insert into q (priority, retry_after) values ({priority}, {due or 'null'})")
    assert Holder(place, usual()).ids() == [4, 5, 3, 2, 1]


def test_text_ids_come_as_the_database_sorts_them(place: Place) -> None:
    """D2: the database sorts, by the column's own collation."""
    collation = {
        "postgres": 'text collate "und-x-icu" primary key',
        "sqlite": "text collate nocase primary key",
        "mariadb": "varchar(20) primary key",
    }
    place.create_usual(without=["id"], id=collation[place.dialect])
    place.run("insert into q (id) values ('b'), ('A'), ('B2'), ('a1')")
    expected = [row[0] for row in place.run("select id from q order by id")]
    assert Holder(place, usual()).ids() == expected
    assert expected == ["A", "a1", "b", "B2"]


def test_rows_that_are_not_due_or_held_stay(place: Place) -> None:
    """A1: NULL or past means due and free, the future means neither."""
    place.create_usual()
    past, future = place.seconds(-60), place.seconds(60)
    place.run(f"insert into q (retry_after) values ({future}), ({past})")
    place.run(f"insert into q (locked_until) values ({future}), ({past})")
    assert sorted(Holder(place, usual()).ids()) == [2, 4]


def test_two_holders_never_take_the_same_row(place: Place) -> None:
    """H8: what one replica holds, another passes by."""
    place.create_usual()
    place.fill(6)
    first, second = Holder(place, usual()), Holder(place, usual())
    assert first.ids(2) == [1, 2]
    assert second.ids(2) == [3, 4]
    assert first.ids() + second.ids() == [5, 6]


@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_a_row_locked_by_a_transaction_is_passed_by(open_place: Opener, dialect: str) -> None:
    """B2: a claim waits for no one's row lock."""
    place = open_place(dialect)
    place.create_usual()
    place.fill(3)
    other = place.child()
    other.execute("select id from q where id = 1 for update")
    assert Holder(place, usual()).ids() == [2, 3]


def test_attempts_are_counted_from_one(place: Place) -> None:
    """R8: the claim counts the attempt, from zero or from NULL."""
    place.create_usual()
    place.fill(1, attempt=0)
    place.fill(1, attempt=None)
    place.fill(1, attempt=4)
    assert [row.attempt for row in Holder(place, usual()).claim()] == [1, 1, 5]
    assert place.run("select attempt from q order by id") == [(1,), (1,), (5,)]


def test_only_a_lease_that_ran_out_reads_as_expired(place: Place) -> None:
    """R8: fresh rows and rows that were given back are not abandoned ones."""
    place.create_usual()
    place.fill(3)
    holder = Holder(place, usual())
    fresh, retried, abandoned = holder.claim()
    assert not any(row.expired for row in (fresh, retried, abandoned))
    assert holder.one(Verb.RELEASE, fresh)
    assert holder.one(Verb.RETRY, retried)
    place.run(f"update q set locked_until = {place.seconds(-1)} where id = 3")
    assert [(row.id, row.attempt, row.expired) for row in holder.claim()] == [
        (1, 1, False),
        (2, 2, False),
        (3, 2, True),
    ]


@pytest.mark.parametrize("kind", ["time", "timestamptz(0)", "timestamp(0)", "timestamp(3)", "timestamp"])
def test_tokens_of_a_row_only_grow(place: Place, kind: str) -> None:
    """R1: through give-back, retry and repeated claims within one second, also where only whole seconds are kept."""
    place.create_usual(without=["locked_until"], locked_until=kind)
    place.fill(1)
    holder, tokens = Holder(place, usual()), list[str]()
    for verb in [Verb.RELEASE, Verb.RETRY, Verb.RELEASE, Verb.SNOOZE, Verb.RETRY]:
        (row,) = holder.claim()
        tokens.append(row.token)
        assert holder.one(verb, row)
        assert not holder.one(Verb.ACK, row)
    assert tokens == sorted(set(tokens))


def test_finished_rows_and_other_groups_stay(place: Place) -> None:
    """A1: `processed_at` NULL means unfinished; a subscription of a group reads no other."""
    place.create_usual(processed_at="time", group="text")
    place.fill(2, group="a")
    place.fill(2, group="b")
    place.run(f"update q set processed_at = {place.seconds(-1)} where id in (1, 3)")
    queue = usual(processed_at="processed_at", group="group")
    assert Holder(place, queue, group="b").ids() == [4]
    rows = Holder(place, queue, group="a").claim()
    assert [(row.id, row.group) for row in rows] == [(2, "a")]


def test_keys_of_full_lanes_are_left_out(place: Place) -> None:
    """R16: one hot key does not fill the read-ahead of all; rows without key are never left out."""
    place.create_usual()
    for key in ["a", "a", "b", None, "c"]:
        place.fill(1, partition_key=key)
    holder = Holder(place, usual(), workers_by_key=2)
    lanes = {row.key: row.lane_key for row in holder.claim()}
    place.run("update q set locked_until = null")
    assert holder.ids(full_keys=[lanes["a"], lanes["c"]]) == [3, 4]
    assert holder.ids(full_keys=[lanes["c"]]) == [1, 2]
    assert holder.ids() == [5]


@pytest.mark.parametrize(
    ("dialect", "kind", "equal", "other"),
    [
        ("postgres", "text", ["a"], "A"),
        ("postgres", "char(5)", ["a", "a  "], "A"),
        ("postgres", "numeric", ["1", "1.0", "1.000"], "10"),
        ("postgres", "double precision", ["0", "-0"], "0.1"),
        ("postgres", "uuid", ["a0000000-0000-0000-0000-000000000000"], "b0000000-0000-0000-0000-000000000000"),
        ("postgres", "timestamptz", ["2026-01-01 00:00+00", "2026-01-01 05:30+05:30"], "2026-01-01 00:00-01"),
        ("postgres", "bytea", ["\\x00ff"], "\\x00fe"),
        ("postgres", "boolean", ["true"], "false"),
        ("postgres", "inet", ["10.0.0.1", "10.0.0.1/32"], "10.0.0.2"),
        ("postgres", "smallint", ["7"], "8"),
        ("sqlite", "text", ["a"], "A"),
        ("sqlite", "text collate nocase", ["a", "A"], "b"),
        ("sqlite", "text collate rtrim", ["a", "a  "], "A"),
        ("sqlite", "", [1, 1.0], "1"),
        ("mariadb", "varchar(20)", ["a", "A", "\u00e1", "a  "], "b"),
        ("mariadb", "varchar(20) collate utf8mb4_nopad_bin", ["a"], "a "),
        ("mariadb", "varchar(20) collate utf8mb4_bin", ["a", "a "], "A"),
        ("mariadb", "varchar(20) character set latin1", ["a", "A "], "\u00e9"),
        ("mariadb", "longtext", ["Ab", "aB "], "a b"),
        ("mariadb", "varbinary(20)", [b"\x00\xff"], b"\x00"),
        ("mariadb", "decimal(10,2)", ["1", "1.00"], "10"),
        ("mariadb", "double", ["0", "-0e0"], "0.1"),
        ("mariadb", "float", ["0.1"], "0.2"),
        ("mariadb", "bigint unsigned", [2**64 - 1], 2**63),
        ("mariadb", "uuid", ["a0000000-0000-0000-0000-000000000000"], "b0000000-0000-0000-0000-000000000000"),
        ("mariadb", "datetime(6)", ["2026-01-01", "2026-01-01 00:00:00"], "2026-01-01 00:00:00.000001"),
        ("mariadb", "enum('a', 'B')", ["a", "A"], "b"),
        ("mariadb", "inet6", ["::1", "0::1"], "::2"),
    ],
)
def test_lane_keys_are_equal_where_the_database_says_so(
    open_place: Opener, dialect: str, kind: str, equal: list[Any], other: Any
) -> None:
    """R16: equal keys share a lane, and leaving one out leaves out all that are equal to it."""
    place = open_place(dialect)
    place.create_usual(without=["partition_key"], partition_key=kind)
    for key in [*equal, other]:
        place.fill(1, partition_key=key)
    holder = Holder(place, usual(), workers_by_key=2)
    lanes = [row.lane_key for row in holder.claim()]
    assert len(set(lanes[:-1])) == 1
    assert lanes[-1] != lanes[0]
    assert isinstance(lanes[0], (str, int, float, bytes))
    place.run("update q set locked_until = null")
    assert holder.ids(full_keys=[lanes[0]]) == [len(lanes)]


def test_a_claim_of_an_empty_table_takes_nothing(place: Place) -> None:
    """C3: an empty claim is an empty list."""
    place.create_usual()
    assert Holder(place, usual()).claim() == []


def test_in_row_mode_the_body_is_the_row_after_the_claim(place: Place) -> None:
    """A2: without a payload role the handler takes the row, its JSON columns decoded."""
    place.create_usual()
    place.fill(1, payload='{"a": [1, 2.5, null]}', partition_key="k")
    (row,) = Holder(place, usual(without=["payload"])).claim()
    assert row.body["payload"] == {"a": [1, 2.5, None]}
    assert (row.body["id"], row.body["partition_key"], row.body["attempt"]) == (1, "k", 1)
    assert row.body["last_error"] is None
    assert list(row.body) == [
        "id",
        "payload",
        "partition_key",
        "priority",
        "retry_after",
        "attempt",
        "locked_until",
        "last_error",
    ]


def test_json_arrives_as_its_own_text(place: Place) -> None:
    """A2: payload and headers are handed on undecoded, so that the annotation decides."""
    place.create_usual(headers="json")
    place.fill(1, payload='{"n": 123456789012345678901234567890}', headers='{"h": 1}')
    holder = Holder(place, usual(headers="headers"))
    (row,) = holder.claim()
    assert (row.body, row.headers) == ('{"n": 123456789012345678901234567890}', '{"h": 1}')
    assert holder.store.payload_kind == "json"
