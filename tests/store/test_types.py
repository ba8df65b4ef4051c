"""Any id, any name, any time zone."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Settlement, Verb
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual

IDS = [
    ("postgres", "uuid", ["a0000000-0000-0000-0000-00000000000" + str(n) for n in range(5)]),
    ("postgres", "text", ["plain", 'quo"te', "back\\slash", "com,ma {brace}", "NULL"]),
    ("postgres", "citext", ["Ab", "B", "c", "D", "e"]),
    ("postgres", "char(10)", ["a", "b c", "x", "y", "z"]),
    ("postgres", "numeric", ["1.0", "1.5", "2", "3", "10000000000000000000000"]),
    ("postgres", "double precision", ["0.1", "0.10000000000000002", "0.3", "1e300", "-7"]),
    ("postgres", "timestamptz", [f"2026-01-01 00:00:00.00000{n}+00" for n in range(5)]),
    ("postgres", "inet", ["10.0.0.1", "10.0.0.1/8", "10.0.0.3", "::1", "fe80::1"]),
    ("postgres", "smallint", ["1", "2", "3", "4", "5"]),
    ("postgres", "bytea", ["\\x00", "\\x0001", "\\x22", "\\x5c", "\\xff"]),
    ("sqlite", "text", ["plain", 'quo"te', "back\\slash", "com,ma", "1"]),
    ("sqlite", "", [1, "1", "a", b"a", 2.5]),
    ("sqlite", "integer", [1, 2, 3, 4, 2**62]),
]


@pytest.mark.parametrize(("dialect", "kind", "values"), IDS)
def test_a_row_is_named_by_exactly_its_own_id(
    open_place: Opener, postgres: Any, dialect: str, kind: str, values: list[Any]
) -> None:
    """C99: acking the second of five rows changes exactly that row."""
    place = open_place(dialect)
    if kind == "citext":
        with postgres.admin(place.dsn) as admin:
            admin.execute("create extension if not exists citext")
    place.create_usual(without=["id"], id=f"{kind} primary key")
    for value in values:
        place.fill(1, id=value)
    holder = Holder(place, usual(), dead_letter="q_dead")
    rows = holder.claim()
    new = Holder(place, usual(), lease=90).store.lease_end(holder.connection)
    extension = holder.store.extend(holder.connection, [row.id for row in rows], rows[0].token, new)
    assert sorted(map(str, extension.extended)) == sorted(str(row.id) for row in rows)
    before = place.run("select * from q order by id")
    assert holder.settle(Settlement(Verb.ACK, rows[1].id, new)) == {rows[1].id}
    assert place.run("select * from q order by id") == before[:1] + before[2:]
    assert holder.settle(Settlement(Verb.RETRY, rows[2].id, new), Settlement(Verb.BURY, rows[3].id, new)) == {
        rows[2].id,
        rows[3].id,
    }
    assert holder.ids() == [rows[2].id]


NAMES = {
    "id": "User Id",
    "payload": "pay%load",
    "headers": "select",
    "group": "group",
    "partition_key": 'a"b',
    "priority": "naïve %s",
    "retry_after": "Status",
    "attempt": "%(id)s",
    "processed_at": "n" * 63,
    "locked_until": "locked until",
    "last_error": "'; drop table x; --",
}
KINDS = {
    "id": "key",
    "payload": "json",
    "headers": "json",
    "priority": "integer",
    "retry_after": "time",
    "attempt": "integer",
    "processed_at": "time",
    "locked_until": "time",
}


def test_odd_names_are_quoted_in_every_statement(place: Place) -> None:
    """C92: reserved words, spaces, quotes, percent signs, unicode, a schema that is not on the search path."""
    table, dead = '"order %d"', '"de""ad"'
    if place.dialect == "postgres":
        place.run('create schema "My Schema"')
        table, dead = f'"My Schema".{table}', f'"My Schema".{dead}'
    columns = ", ".join(
        f'"{name.replace(chr(34), chr(34) * 2)}" {_kind(place, KINDS.get(role, "text"))}'
        for role, name in NAMES.items()
    )
    place.run(f"create table {table} ({columns})")
    place.run(f"create table {dead} ({columns})")
    queue: Queue[Any] = Queue(table, **dict[str, Any](NAMES))
    place.run(f'insert into {table} ("group") values (?), (?), (?), (?)', *["a %s"] * 4)
    holder = Holder(place, queue, group="a %s", dead_letter=dead)
    rows = holder.claim(full_keys=["x %s"])
    assert len(rows) == 4
    verbs = [Verb.ACK, Verb.RETRY, Verb.BURY, Verb.DROP]
    settlements = [Settlement(verb, row.id, row.token, reason="100% %s") for verb, row in zip(verbs, rows, strict=True)]
    assert len(holder.settle(*settlements)) == 4
    assert holder.store.backlog(holder.connection, [rows[1].id]).awaited
    assert place.run(f"select count(*) from {dead}") == [(1,)]


def _kind(place: Place, kind: str) -> str:
    from tests.store.place import TYPES

    return TYPES[place.dialect].get(kind, kind)


def test_a_temporary_table_of_the_same_name_stays_untouched(open_place: Opener) -> None:
    """C92: statements name the table that was found at start, with its schema."""
    place = open_place("postgres")
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual())
    holder.connection.execute("create temp table q (like public.q)")
    holder.connection.execute("insert into pg_temp.q (id) values (7)")
    assert holder.ids() == [1]
    assert holder.connection.execute("select attempt from pg_temp.q").fetchall() == [(None,)]


@pytest.mark.parametrize("due", ["timestamp", "timestamptz", "timestamp(0)"])
@pytest.mark.parametrize("lock", ["timestamp", "timestamptz"])
def test_times_are_utc_under_any_zone(postgres: Any, due: str, lock: str) -> None:
    """C100: server, role and session zones all differ; columns with and without zone are judged by one clock."""
    dsn = postgres.new_database()
    with postgres.admin(dsn) as admin:
        admin.execute("alter role app set timezone = 'America/New_York'")
    place = Place("postgres", dsn)
    place.create_usual(without=["retry_after", "locked_until"], retry_after=due, locked_until=lock)
    moments = {"timestamp": "timezone('utc', now())", "timestamptz": "now()"}
    now = moments[due.partition("(")[0]]
    place.run(f"insert into q (retry_after) values ({now} - interval '1 second'), ({now} + interval '1 hour')")
    holder = Holder(place, usual())
    (row,) = holder.claim()
    held = moments[lock]
    assert place.run(f"select locked_until - {held} between '25 s' and '31 s' from q where id = 1") == [(True,)]
    assert holder.one(Verb.RETRY, row, delay=2.0)
    gap = place.run(f"select retry_after - {now} between '1.5 s' and '3.5 s' from q where id = 1")
    assert gap == [(True,)]
    with postgres.admin(dsn) as admin:
        admin.execute("alter role app reset timezone")
    place.close()


def test_a_row_with_times_that_python_cannot_hold_still_arrives(open_place: Opener) -> None:
    """A2: in row mode infinity and years before Christ are text, and odd types too."""
    place = open_place("postgres")
    place.create_usual(seen="timestamptz", born="date", net="inet", span="int4range", tags="text[]")
    place.run(
        "insert into q (seen, born, net, span, tags) values ('infinity', '0044-03-15 BC', '::1', '[1,3)', '{a,b}')"
    )
    (row,) = Holder(place, usual(without=["payload"])).claim()
    assert [row.body[name] for name in ("seen", "born", "net", "span", "tags")] == [
        "infinity",
        "0044-03-15 BC",
        "::1/128",
        "[1,3)",
        ["a", "b"],
    ]


@pytest.mark.parametrize(
    ("dialect", "kind", "stored", "payload_kind", "body"),
    [
        ("postgres", "pg_catalog.json", '{"a":  1}', "json", '{"a":  1}'),
        ("postgres", "jsonb", '{"a":  1}', "json", '{"a": 1}'),
        ("postgres", "text", "plain", "text", "plain"),
        ("postgres", "bytea", b"\x00\xff", "binary", b"\x00\xff"),
        ("postgres", "integer", 5, "json", "5"),
        ("postgres", "text[]", ["a"], "json", '["a"]'),
        ("sqlite", "json", '{"a":  1}', "json", '{"a":  1}'),
        ("sqlite", "json", 5, "json", "5"),
        ("sqlite", "text", "plain", "text", "plain"),
        ("sqlite", "blob", b"\x00\xff", "binary", b"\x00\xff"),
    ],
)
def test_a_payload_arrives_as_it_is_stored(
    open_place: Opener, dialect: str, kind: str, stored: Any, payload_kind: str, body: Any
) -> None:
    """A2: BYTEA, BLOB, TEXT, JSON and JSONB all serve; what has no text of its own comes as JSON."""
    place = open_place(dialect)
    place.create_usual(without=["payload"], payload=kind)
    place.fill(1, payload=stored)
    holder = Holder(place, usual())
    assert holder.claim()[0].body == body
    assert holder.store.payload_kind == payload_kind
