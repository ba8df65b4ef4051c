"""Tables as users have them: each works from claim to dead letter, or is refused at start with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Settlement, Verb
from shardrun.errors import Problems
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual

LEAST = ("payload", "partition_key", "priority", "retry_after", "attempt", "last_error")


def journey(place: Place, queue: Queue[Any], table: str, dead: str = "q_dead", rows: int = 5) -> Holder:
    """Take five rows: one is acked, one retried, one dead, one given back, one dropped; each changes itself alone."""
    holder = Holder(place, queue, dead_letter=dead)
    claimed = holder.claim()
    assert len(claimed) == rows == 5
    assert holder.claim() == []
    assert holder.store.extend(holder.connection, [row.id for row in claimed], claimed[0].token, "2999-01-01").extended
    holder.connection.execute(f"update {table} set {_name(queue.locked_until)} = null")
    claimed = holder.claim()
    before = {row[0]: row for row in place.run(f"select * from {table}")}
    ack, retry, bury, release, drop = claimed
    assert holder.settle(Settlement(Verb.ACK, ack.id, ack.token)) == {ack.id}
    assert holder.settle(Settlement(Verb.BURY, bury.id, bury.token, reason="no")) == {bury.id}
    after = {row[0]: row for row in place.run(f"select * from {table}")}
    assert len(before) - len(after) == 2
    assert all(before[key] == row for key, row in after.items())
    assert place.run(f"select count(*) from {dead}") == [(1,)]
    assert holder.one(Verb.RETRY, retry, reason="again")
    assert holder.one(Verb.RELEASE, release)
    assert holder.one(Verb.DROP, drop)
    again = holder.claim()
    assert {row.id for row in again} == {retry.id, release.id}
    assert holder.store.backlog(holder.connection, [retry.id]).awaited
    for row in again:
        assert holder.one(Verb.ACK, row)
    assert place.run(f"select count(*) from {table}") == [(0,)]
    return holder


def _name(column: Any) -> str:
    return '"' + str(column).replace('"', '""') + '"'


def small(place: Place, key: str, more: str = "", after: str = "", lock: str | None = None) -> Queue[Any]:
    """Create a table of an id, a lease and little else, and its dead letters."""
    time = lock or ("timestamptz" if place.dialect == "postgres" else "timestamp")
    place.run(f"create table q (id {key}, locked_until {time}{more}) {after}")
    plain = key.partition(" primary")[0].partition(" generated")[0]
    place.run(f"create table q_dead (id {plain}, locked_until {time}{more})")
    return usual(without=LEAST)


POSTGRES: dict[str, tuple[str, list[Any]]] = {
    "uuid": ("uuid primary key", [f"a0000000-0000-0000-0000-00000000000{n}" for n in range(5)]),
    "text": ("text primary key", ["", " ", "a'b", 'a"b{},', "100% \\N"]),
    "long text": ("text primary key", [f"{n}" + "x" * 2000 for n in range(5)]),
    "near the limit": ("bigint primary key", [2**63 - 1, 2**63 - 2, -(2**63), 0, -1]),
    "numeric, as unsigned": ("numeric(20) primary key", [2**64 - 1, 2**64 - 2, 2**63, 1, 0]),
    "identity always": ("bigint generated always as identity primary key", []),
    "serial": ("serial primary key", []),
    "float": ("float8 primary key", ["0.1", "0.10000000000000002", "0.3", "1e300", "-7"]),
    "time": ("timestamptz primary key", [f"2026-01-01 00:00:00.00000{n}+00" for n in range(5)]),
    "day": ("date primary key", [f"2026-01-0{n}" for n in range(1, 6)]),
}


@pytest.mark.parametrize("key", POSTGRES)
def test_any_single_id_on_postgres(open_place: Opener, key: str) -> None:
    """A1, C99."""
    place = open_place("postgres")
    kind, values = POSTGRES[key]
    queue = small(place, kind)
    for value in values or range(5):
        if values:
            place.run("insert into q (id) values (?)", value)
        else:
            place.run("insert into q default values")
    journey(place, queue, "q")


SQLITE: dict[str, tuple[str, str, list[Any]]] = {
    "rowid": ("integer primary key", "", [1, 2, 3, 2**63 - 1, -(2**63)]),
    "descending": ("integer primary key desc", "", [1, 2, 3, 4, 5]),
    "text": ("text primary key", "", ["", " ", "1", "a'b", "ü"]),
    "text without rowid": ("text primary key", "without rowid", ["a", "b", "c", "d", "e"]),
    "blob": ("blob primary key", "without rowid", [b"", b"\0", b"\xff", b"a", b"b"]),
    "strict": ("integer primary key", "strict", [1, 2, 3, 4, 5]),
    "strict any": ("any primary key not null", "strict, without rowid", [1, "1", 1.5, b"1", "x"]),
    "no type": ("primary key", "", [1, "1", 1.5, b"1", "x"]),
    "unique, not primary": ("text not null unique", "", ["a", "b", "c", "d", "e"]),
    "upper and lower": ("text collate nocase primary key", "", ["a", "B", "c", "D", "É"]),
}


@pytest.mark.parametrize("key", SQLITE)
def test_any_single_id_on_sqlite(open_place: Opener, key: str) -> None:
    """A1, C90, C99: with and without rowid, strict, of no type."""
    place = open_place("sqlite")
    kind, after, values = SQLITE[key]
    queue = small(place, kind, after=after, lock="text")
    for value in values:
        place.run("insert into q (id) values (?)", value)
    journey(place, queue, "q")


def test_columns_that_are_named_as_the_rows_number_are_columns(open_place: Opener) -> None:
    """C90: `rowid`, `oid` and `_rowid_` of the user's own."""
    place = open_place("sqlite")
    place.run("create table q (rowid text, oid int, _rowid_ text, id integer primary key, locked_until text)")
    place.run("create table q_dead (rowid text, oid int, _rowid_ text, id integer primary key, locked_until text)")
    for number in range(5):
        place.run("insert into q (id, rowid, oid) values (?, 'same', 7)", number + 1)
    place.run("update q set rowid = 'r' || id")
    holder = journey(place, usual(without=LEAST), "q")
    assert holder.claim() == []
    assert place.run('select "rowid", "oid", id from q_dead') == [("r3", 7, 3)]


NO_IDENTITY = [
    ("create table q (id int, locked_until {time})", r"column id \(role id\) is not unique. Make it the primary key"),
    (
        "create table q (id int, b int, locked_until {time}, primary key (id, b))",
        r"table q has a primary key of several columns \(id, b\)\. shardrun names rows by one",
    ),
    ("create table q (a int primary key, id int, locked_until {time})", r"column id \(role id\) is not unique"),
    ("create view q as select 1 as id, null as locked_until", "is a view"),
]


@pytest.mark.parametrize(("text", "says"), NO_IDENTITY)
def test_rows_that_no_single_column_names_are_refused(place: Place, text: str, says: str) -> None:
    """A5, C90: no key, a key of several columns, a view."""
    place.run(text.format(time="timestamptz" if place.dialect == "postgres" else "timestamp"))
    with pytest.raises(Problems, match=says):
        Holder(place, usual(without=LEAST))


def test_an_index_over_some_rows_does_not_make_an_id(place: Place) -> None:
    """A5, C90: partial, or over an expression."""
    place.create("q", id="integer", locked_until="time")
    place.run("create unique index part on q (id) where locked_until is null")
    place.run("create unique index expression on q (abs(id))")
    with pytest.raises(Problems, match="is not unique"):
        Holder(place, usual(without=LEAST))


def test_rows_without_an_id_hold_up_no_other(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A1: a unique column that may be NULL names only the rows that have a value; refused where the server can forbid it."""
    if place.dialect == "postgres":
        place.create("q", id="int unique", locked_until="time")
        with pytest.raises(Problems, match=r"column id \(role id\) may be NULL. alter table .* set not null"):
            Holder(place, usual(without=LEAST))
        return
    place.create("q", id="text primary key", locked_until="time")
    for value in (None, None, None, "a", "b"):
        place.run("insert into q (id) values (?)", value)
    holder = Holder(place, usual(without=LEAST))
    assert holder.ids(limit=1) == ["a"]
    assert holder.ids(limit=2) == ["b"]
    assert [record.getMessage() for record in caplog.records] == [
        "q: a row has no id (it is NULL), and so nothing can name it. The row is left alone until it has one."
    ]


@pytest.mark.parametrize("by", ["range (id)", "hash (id)", "list (id)"])
def test_a_partitioned_table_is_a_table(open_place: Opener, by: str) -> None:
    """A1: partitioned by its id; another key of partitions makes a composite primary key, which is refused."""
    place = open_place("postgres")
    columns = "id bigint generated by default as identity primary key, locked_until timestamptz"
    place.run(f"create table q ({columns}) partition by {by}")
    parts = {
        "range (id)": ["from (0) to (3)", "from (3) to (100)"],
        "hash (id)": ["with (modulus 2, remainder 0)", "with (modulus 2, remainder 1)"],
        "list (id)": ["in (1, 2)", "in (3, 4, 5)"],
    }[by]
    for number, bounds in enumerate(parts):
        place.run(f"create table q{number} partition of q for values {bounds}")
    place.run("create table q_dead (id bigint, locked_until timestamptz)")
    place.fill(5)
    journey(place, usual(without=LEAST), "q")
    place.run(
        "create table p (id int, day date, locked_until timestamptz, primary key (id, day)) partition by list (day)"
    )
    with pytest.raises(Problems, match="primary key of several columns"):
        Holder(place, usual(table="p", without=LEAST))


def test_a_table_that_others_inherit_from_is_refused(open_place: Opener) -> None:
    """A1, A5: an id may come twice, once in each table; the heirs themselves are tables."""
    place = open_place("postgres")
    place.create_usual()
    place.run("create table heir (primary key (id)) inherits (q)")
    with pytest.raises(Problems, match=r"q is inherited from by heir, .* name each heir as a queue of its own"):
        Holder(place, usual())
    place.run("insert into heir (id) values (1)")
    assert Holder(place, usual(table="heir")).ids() == [1]


def test_columns_that_the_database_computes(place: Place) -> None:
    """A1: generated columns and defaults, in the table and in its dead letters."""
    kind = "integer generated always as (n * 2) stored"
    place.create_usual(n="integer default 4", twice=kind)
    if place.dialect == "postgres":
        place.run("drop table q_dead")
        place.run("create table q_dead (like q including all)")
    place.fill(5)
    journey(place, usual(priority="twice"), "q")
    assert place.run("select n, twice from q_dead") == [(4, 8)]
    with pytest.raises(Problems, match="generated, and shardrun must write it"):
        Holder(place, usual(attempt="twice"))


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "timestamp(0)", "timestamptz(0)", "timestamp(3)"])
def test_leases_of_whole_seconds_and_without_zone(open_place: Opener, kind: str) -> None:
    """A1, R1, R17: the journey is the same, and tokens grow."""
    place = open_place("postgres")
    queue = small(place, "int primary key", lock=kind)
    for number in range(5):
        place.run("insert into q (id) values (?)", number)
    place.run("insert into q (id) values (99)")
    holder = Holder(place, queue, lease=0.01)
    tokens = []
    for _ in range(3):
        row = next(row for row in holder.claim() if row.id == 99)
        tokens.append(row.token)
        assert holder.one(Verb.RELEASE, row)
    assert tokens == sorted(set(tokens))
    place.run("delete from q where id = 99")
    place.run("update q set locked_until = null")
    journey(place, queue, "q")
