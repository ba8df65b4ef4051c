"""Partition keys of any type: two rows share a lane exactly where the database calls their keys equal."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from shardrun.db.store import Verb
from shardrun.errors import Problems
from shardrun.policy.routing import lane_of
from tests.servers import Postgres
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual

LONG = "k" * 1_000_000
TEXTS = ["a", "A", "a ", " a", "", "é", "e\u0301", "É", "a|b", "1", "01", "1.0", "Straße", "STRASSE"]
UUID = "a0000000-0000-0000-0000-00000000000f"

KEYS: list[tuple[str, str, list[Any]]] = [
    ("postgres", "text", [*TEXTS, LONG, LONG + "k"]),
    ("postgres", "varchar(30)", [*TEXTS, UUID[:20].upper(), UUID[:20]]),
    ("postgres", "citext", TEXTS),
    ("postgres", "char(8)", ["a", "A", "a ", "", "é"]),
    ("postgres", 'text collate "C"', TEXTS),
    ("postgres", "uuid", [UUID, UUID.upper(), UUID[:-1] + "e"]),
    ("postgres", "smallint", [1, -1, 0, 32767]),
    ("postgres", "bigint", [1, -1, 2**63 - 1, -(2**63)]),
    ("postgres", "numeric", ["1", "1.0", "1.00", "10", "100", "0", "-0.0", "0.10", "NaN", "1e30"]),
    ("postgres", "double precision", ["0.1", "0.10000000000000002", "0", "-0", "1e300", "NaN", "infinity"]),
    ("postgres", "boolean", [True, False]),
    ("postgres", "bytea", [b"\x00\xff", b"\x00\xfe", b"", b"a"]),
    (
        "postgres",
        "timestamptz",
        ["2026-01-01 12:00+00", "2026-01-01 14:00+02", "2026-01-01 12:00:00.000001+00", "infinity"],
    ),
    ("postgres", "timestamp", ["2026-01-01 12:00", "2026-01-01 12:00:00.5"]),
    ("postgres", "date", ["2026-01-01", "0044-03-15 BC"]),
    ("postgres", "inet", ["10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "::1"]),
    ("postgres", "mood", ["glad", "sad"]),
    ("sqlite", "text", [*TEXTS, LONG, LONG + "k"]),
    ("sqlite", "text collate nocase", TEXTS),
    ("sqlite", "text collate rtrim", [*TEXTS, "a  ", "a\t"]),
    ("sqlite", "integer", [1, "1", 1.0, 2**62, 2**62 + 1, 1.5, "x"]),
    ("sqlite", "", [1, "1", 1.0, b"1", 1.5, 2**53 + 1, float(2**53), "", b"", 0, -0.0]),
    ("sqlite", "blob", [b"\x00\xff", b"\x00\xfe", "a", b"a"]),
    ("sqlite", "numeric", ["1", "1.0", 1, "abc", 10**15, 1e15]),
]


def name(case: tuple[str, str, list[Any]]) -> str:
    return f"{case[0]}-{case[1] or 'no type'}"


@pytest.mark.parametrize("case", KEYS, ids=name)
def test_rows_share_a_lane_where_the_database_calls_their_keys_equal(
    open_place: Opener, postgres: Postgres, case: tuple[str, str, list[Any]]
) -> None:
    """R16, C54: and claims that leave a lane's keys out leave out exactly those; NULL has no lane of its own."""
    dialect, kind, values = case
    place = open_place(dialect)
    if kind == "citext":
        with postgres.admin(place.dsn) as admin:
            admin.execute("create extension if not exists citext")
    if kind == "mood":
        place.run("create type mood as enum ('sad', 'glad')")
    place.create_usual(without=["partition_key"], partition_key=kind)
    for value in [*values, None]:
        place.fill(1, partition_key=value)
    equal: dict[int, set[int]] = {}
    for one, other in place.run("select a.id, b.id from q a join q b on a.partition_key = b.partition_key"):
        equal.setdefault(one, set()).add(other)
    holder = Holder(place, usual(), workers_by_key=4)
    rows = holder.claim()
    assert len(rows) == len(values) + 1
    assert rows[-1].lane_key is None
    for row in rows[:-1]:
        assert {other.id for other in rows if other.lane_key == row.lane_key} == equal[row.id], repr(row.key)[:50]
        assert 0 <= lane_of(row.lane_key, 4) < 4
        assert {lane_of(other.lane_key, 1000) for other in rows[:-1] if other.id in equal[row.id]} == {
            lane_of(row.lane_key, 1000)
        }
    for row in rows:
        assert holder.one(Verb.RELEASE, row)
    left = set(holder.ids(full_keys=[rows[0].lane_key, rows[1].lane_key]))
    assert left == {row.id for row in rows} - equal[1] - equal[2]


REFUSED = ["json", "jsonb", "text[]", "interval", "point", 'text collate "odd"', "int4range", "odd_domain"]


@pytest.mark.parametrize("kind", REFUSED)
def test_keys_whose_equality_bytes_cannot_say_are_refused(open_place: Opener, kind: str) -> None:
    """R16: nondeterministic collations among them; without order by key they are taken all the same."""
    place = open_place("postgres")
    place.run("create collation odd (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    place.run('create domain odd_domain as text collate "odd"')
    place.create_usual(without=["partition_key"], partition_key=kind)
    with pytest.raises(
        Problems, match=r"column partition_key \(role partition_key\) is .*rows of one key could take two"
    ):
        Holder(place, usual(), workers_by_key=2)
    place.fill(1)
    assert Holder(place, usual(), workers=2).ids() == [1]


def test_a_collation_of_the_users_program_is_refused(open_place: Opener) -> None:
    """R16: SQLite asks the program that made it, which is not here."""
    place = open_place("sqlite")
    with sqlite3.connect(place.dsn.removeprefix("sqlite:///")) as connection:
        connection.create_collation("odd", lambda one, other: 0)
        connection.execute("create table q (id integer primary key, partition_key text collate odd, locked_until text)")
    connection.close()
    store = subscribe(usual(without=["payload", "priority", "retry_after", "attempt", "last_error"]), workers_by_key=2)
    with pytest.raises(Problems, match="whose equal values may differ in their bytes"):
        place.database.store(place.own, store)


def test_an_equal_key_in_another_case_shares_its_lane_in_a_domain(open_place: Opener, postgres: Postgres) -> None:
    """R16: a domain over citext compares as citext does."""
    place = open_place("postgres")
    with postgres.admin(place.dsn) as admin:
        admin.execute("create extension if not exists citext")
    place.run("create domain folded as citext check (value <> '')")
    place.create_usual(without=["partition_key"], partition_key="folded")
    for key in ("Ab", "aB", "b"):
        place.fill(1, partition_key=key)
    lanes = [row.lane_key for row in Holder(place, usual(), workers_by_key=2).claim()]
    assert lanes[0] == lanes[1] != lanes[2]


def test_the_key_itself_reaches_the_handler_unfolded(place: Place) -> None:
    """R16: what chooses the lane is not what the delivery shows."""
    place.create_usual(without=["partition_key"], partition_key="text")
    place.fill(1, partition_key="Ab ")
    assert [row.key for row in Holder(place, usual(), workers_by_key=2).claim()] == ["Ab "]
