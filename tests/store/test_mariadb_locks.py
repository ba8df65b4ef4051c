"""What MariaDB's row locks and locks on keys hold, and for whom: InnoDB locks whatever a locking statement reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardrun.db.mysql.locks_sql import lock_name
from shardrun.db.store import Claimed, Settlement, Verb
from shardrun.errors import Conflict
from tests.mariadb import Mariadb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual
from tests.store.test_counts import rows_read
from tests.store.test_locks import FORMS, Holding, keyed, queue_of
from tests.store.test_mariadb_claims import claim_meanwhile


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


def free_rows(place: Place) -> set[Any]:
    """List the rows that nobody has locked."""
    return {id for (id,) in place.own.execute("select id from q for update skip locked").fetchall()}


def levels(place: Place) -> list[tuple[Any, ...]]:
    """List at which levels transactions are open."""
    return place.run("select trx_isolation_level from information_schema.innodb_trx")


@pytest.mark.parametrize("indexed", [True, False])
def test_a_held_claim_locks_nothing_but_its_rows(place: Place, indexed: bool) -> None:
    """R10, B7: others lock every other row, due or not, and insert before, between and behind without waiting."""
    place.create_usual()
    if indexed:
        place.run("create index claimed on q (priority, retry_after, id)")
    place.run(f"insert into q (id, priority, retry_after) select seq * 10, 5, {place.seconds(60)} from seq_1_to_40")
    place.run("update q set retry_after = null where id in (100, 110, 200, 300)")
    place.run("update q set priority = 4 where id = 200")
    every = set(range(10, 410, 10))
    one, several, last, none = (Holding(place, queue_of("row lock")) for _ in range(4))
    row = one.taken()
    assert (row.id, free_rows(place)) == (200, every - {200})
    batch = several.store.claim(several.connection, 2, [])
    assert ([each.id for each in batch], free_rows(place)) == ([100, 110], every - {100, 110, 200})
    other = place.child()
    other.execute("set innodb_lock_wait_timeout = 0")
    for id in (1, 99, 105, 111, 401):
        other.execute(f"insert into q (id, priority, retry_after) values (%s, 5, {place.seconds(60)})", (id,))
    other.commit()
    assert (last.taken().id, none.claim()) == (300, None)
    assert one.end(Verb.RELEASE, row, attempt=0)
    acks = [Settlement(Verb.ACK, each.id, "", attempt=1) for each in batch]
    assert several.store.settle(several.connection, acks) == {100, 110}
    assert free_rows(place) == every - {100, 110, 300} | {1, 99, 105, 111, 401}


def test_a_batch_locks_what_was_chosen_of_it_and_no_more(place: Place) -> None:
    """R10: what is not chosen is free at once, and what is keeps its order, also where that is not the order of ids."""
    place.create_usual()
    for priority in (3, 2, 2, 1, 1, 5):
        place.fill(1, priority=priority)
    holder, other = (Holding(place, queue_of("row lock")) for _ in range(2))
    rows = holder.store.claim(holder.connection, 5, [], lambda rows: [row for row in rows if row.id != 2])
    assert ([row.id for row in rows], free_rows(place)) == ([4, 5, 3, 1], {2, 6})
    assert holder.store.claim(other.connection, 9, [], lambda _: []) == []
    assert free_rows(place) == {2, 6}


@pytest.mark.parametrize("kind", ["bigint auto_increment primary key", "uuid primary key default uuid()"])
def test_rows_that_many_others_hold_are_passed_by_in_claim_order(place: Place, kind: str) -> None:
    """D2, R10: the first free one is taken, whatever order ids have, also behind more than one page of held ones."""
    place.create_usual(without=["id"], id=kind)
    place.run("insert into q (priority) select mod(seq * 7, 10) from seq_1_to_60")
    order = [id for (id,) in place.run("select id from q order by priority, id")]
    first, second, third = (Holding(place, queue_of("row lock")) for _ in range(3))
    assert [row.id for row in first.store.claim(first.connection, 30, [])] == order[:30]
    assert second.taken().id == order[30]
    assert [row.id for row in third.store.claim(third.connection, 40, [])] == order[31:]


def test_whatever_locks_looks_its_rows_up(place: Place) -> None:
    """R10: also in a table so small that to read all of it would be cheaper."""
    place.create_usual(processed_at="time", group="text")
    place.run("create index due on q (retry_after)")
    place.fill(4, group="a")
    values: dict[str, Any] = {"id": 1, "ids": [1, 2, 3, 4], "limit": 1, "group": "a", "dead_group": "d"}
    values |= {"delay": 1, "attempt": 1, "reason": "r"}
    for form in ("row lock", "advisory"):
        for settings in ({}, {"processed_at": "processed_at"}, {"group": "group"}):
            holder = Holding(
                place, queue_of(form, **settings), dead_letter="q_dead", group="a" if "group" in settings else None
            )
            every = holder.store.statements()  # type: ignore[attr-defined]
            locking = [
                one for one in every if one.text[:6] in ("update", "delete", "insert") or "for update" in one.text
            ]
            assert len(locking) >= 7
            for statement in locking:
                found = holder.connection.execute(f"explain {statement.text}", values).fetchall()
                assert {row[3] for row in found if row[2] != "q_dead"} <= {"range", "const"}, statement.text


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_claims_run_at_the_queues_isolation(place: Place, level: str) -> None:
    """B7: the transaction that holds a row, the one that counts an attempt, the one that writes a lease."""
    place.create_usual()
    keyed(place, "a", "b")
    holder = Holding(place, queue_of("row lock", isolation=level))
    row = holder.taken()
    assert levels(place) == [(level.upper(),)]
    assert holder.end(Verb.ACK, row)
    seen: list[Any] = []
    leased = Holder(place, usual(isolation=level))
    assert claim_meanwhile(leased, 1, lambda: seen.append(levels(place))) == [2]
    assert seen == [[(level.upper(),)]]


@pytest.mark.parametrize("level", [None, "repeatable read"])
def test_a_row_is_read_again_behind_the_lock_on_its_key(place: Place, level: str | None) -> None:
    """R11, C80: what was settled between the look and the lock is not run from an old snapshot."""
    place.create_usual()
    keyed(place, "a", "a", "b")
    holder, other = (Holding(place, queue_of("advisory", isolation=level)) for _ in range(2))
    store: Any = holder.store
    lock_first = store._lock_first

    def late(connection: Any, keys: Any) -> Any:
        if not place.run("select 1 from q where partition_key = 'z'"):
            assert other.end(Verb.ACK, other.taken())
            place.run("update q set partition_key = 'z' where id = 2")
        return lock_first(connection, keys)

    store._lock_first = late
    assert holder.taken().id == 2
    assert other.taken().id == 3
    assert place.run("select is_free_lock('accounts-a')") == [(1,)]


def test_rows_of_one_key_go_one_at_a_time_over_tables_databases_and_other_programs(place: Place) -> None:
    """B4, R11: the lock is on the key's text, which other programs lock alike; busy keys are paged past."""
    place.create_usual()
    place.create_usual("other")
    place.run("insert into q (id, partition_key) select seq, if(seq <= 300, 'a', 'b') from seq_1_to_340")
    keyed(place, "c")
    place.fill(1, "other", partition_key="a")
    first, second, third = (Holding(place, queue_of("advisory")) for _ in range(3))
    beside = Holding(place, queue_of("advisory", table="other"))
    place.run("select get_lock('accounts-b', 0)")
    row = first.taken()
    assert (row.id, second.taken().id, third.claim(), beside.claim()) == (1, 341, None, None)
    assert place.run("select get_lock('accounts-a', 0)") == [(0,)]
    assert first.end(Verb.ACK, row)
    assert beside.taken().id == 1
    assert first.claim() is None
    place.run("do release_all_locks()")
    assert first.taken().id == 301


def test_a_key_is_locked_once_and_let_go_of_wholly(place: Place) -> None:
    """B4: a session may take a name again and again; one that was taken twice would outlive its row."""
    place.create_usual()
    keyed(place, "a", "a", "b")
    holder = Holding(place, queue_of("advisory"))
    locked = "select is_used_lock('accounts-a') = ?, is_free_lock('accounts-a'), is_free_lock('accounts-b')"
    number = holder.connection.thread_id()
    row = holder.taken()
    assert place.run(locked, number) == [(1, 0, 1)]
    holder.end(Verb.RECOUNT, row, reason="killed by signal 9")
    assert place.run(locked, number) == [(1, 0, 1)]
    holder.end(Verb.RETRY, row)
    assert place.run(locked, number) == [(None, 1, 1)]
    holder.end(Verb.ACK, holder.taken())
    holder.taken()
    holder.store.let_go(holder.connection)
    assert place.run(locked, number) == [(None, 1, 1)]


def test_two_rows_of_one_lock_are_in_no_batch_together(place: Place) -> None:
    """B4, B6: a session would get a name again; also where two keys go by one name, and what a batch gave up is free."""
    place.create_usual(without=["partition_key"], partition_key="varchar(255) collate utf8mb4_bin")
    long = "x" * 65
    keyed(place, long, lock_name(long), "b", "b")
    queue = usual(without=["locked_until"], advisory_lock="{partition_key}")
    holder, other = (Holding(place, queue) for _ in range(2))
    free = f"select is_free_lock('{lock_name(long)}'), is_free_lock('b')"
    rows = holder.store.claim(holder.connection, 9, [])
    assert [row.id for row in rows] == [1, 3]
    assert (place.run(free), other.claim()) == ([(0, 0)], None)
    assert holder.end(Verb.ACK, rows[0])
    assert (place.run(free), other.taken().id) == ([(1, 0)], 2)
    assert holder.end(Verb.ACK, rows[1])
    assert place.run(free) == [(0, 1)]


def test_a_batch_that_meets_a_conflict_delivers_what_it_has_counted(place: Place) -> None:
    """B6, B7, R11: the key of the row that it could not take is free, the others are held; alone, all is let go of."""
    place.create_usual()
    keyed(place, "a", "b", "c")
    holder = Holding(place, queue_of("advisory"))
    store: Any = holder.store
    take, refused = store._take_row, {2}

    def passing(connection: Any, id: Any, key: str) -> Any:
        if id in refused:
            raise Conflict("refused for now")
        return take(connection, id, key)

    store._take_row = passing
    free = "select is_free_lock('accounts-a'), is_free_lock('accounts-b'), is_free_lock('accounts-c')"
    (row,) = store.claim(holder.connection, 9, [])
    assert (row.id, place.run(free)) == (1, [(0, 1, 1)])
    assert holder.end(Verb.RELEASE, row, attempt=0)
    refused.add(1)
    with pytest.raises(Conflict):
        holder.claim()
    assert place.run(free) == [(1, 1, 1)]
    assert place.run("select id, attempt from q") == [(1, 0), (2, None), (3, None)]


@FORMS
def test_a_claim_walks_its_index_and_goes_on_without_it(
    place: Place, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P5, R10: left to itself MariaDB sorts the whole table for some per cent of it; an index that is gone costs no claim."""
    place.create_usual()
    place.run("create index claimed on q (priority, retry_after, id)")
    place.run("insert into q (priority, partition_key) select seq mod 5, seq from seq_1_to_20000")
    place.run("analyze table q")
    holder = Holding(place, queue_of(form), workers_by_key=2)
    candidates = holder.store.statements()[1].text  # type: ignore[attr-defined]
    values: dict[str, Any] = {"limit": 900, "avoided": [None], "busy": [None], "full_keys": [b"none"]}
    plan = place.own.execute(f"explain {candidates}", values).fetchall()
    assert [row[5] for row in plan if row[2] == "c"] == ["claimed"]
    before = rows_read(place)
    asking = rows_read(place) - before
    before = rows_read(place)
    assert len(place.own.execute(candidates, values).fetchall()) == 900
    assert (
        rows_read(place) - before - asking < 9000
    )  # some times each from what was gathered; the table is read no further
    place.run("alter table q drop index claimed, add index c (priority, retry_after, id)")
    assert holder.taken().id == 5
    assert caplog.records == []


KEYS = {
    "accounts-7": "accounts-7",
    "x" * 64: "x" * 64,
    "\u4e2d" * 64: "\u4e2d" * 64,
    "x" * 65: hashlib.sha256(b"x" * 65).hexdigest(),
    "\U0001f9fe": hashlib.sha256("\U0001f9fe".encode()).hexdigest(),
    "a\0b": hashlib.sha256(b"a\0b").hexdigest(),
    "": hashlib.sha256(b"").hexdigest(),
}


def test_a_key_that_is_no_name_of_a_lock_goes_by_its_hash(place: Place) -> None:
    """B4: what other software computes as sha2(key, 256); names that differ in case are two on MariaDB."""
    place.create_usual(without=["partition_key"], partition_key="varchar(255) collate utf8mb4_bin")
    assert {key: lock_name(key) for key in KEYS} == KEYS
    keyed(place, *KEYS, "Key", "key")
    holders = [Holding(place, usual(without=["locked_until"], advisory_lock="{partition_key}")) for _ in range(9)]
    rows = {holder.taken().key: holder for holder in holders}
    assert list(rows) == [*KEYS, "Key", "key"]
    for key, name in KEYS.items():
        assert place.run("select is_used_lock(?)", name) == [(rows[key].connection.thread_id(),)]
        if len(name) == 64 and name != key:
            assert place.run("select sha2(?, 256)", key) == [(name,)]


def test_a_key_has_any_columns_and_any_text_in_it(place: Place) -> None:
    """B4, A1: values as the server writes them, bytes in hexadecimal, nothing for NULL; quotes and backslashes are text."""
    columns = {"A %(id)s": "decimal(9,2)", "made": "timestamp(0) null", "raw": "varbinary(9)", "old": "varchar(9)"}
    place.create_usual(without=["locked_until"], **columns)
    place.run("alter table q modify old varchar(9) character set latin1")
    made = """insert into q ("A %(id)s", made, raw, old) values (1.50, '2026-01-02 03:04:05', x'00ff', 'caf\u00e9')"""
    place.run(made)
    template = "it's 100% \\ {{x}} {A %(id)s}|{made}|{raw}|{old}|{priority}"
    holder = Holding(place, usual(without=["locked_until"], advisory_lock=template))
    holder.taken()
    key = "it's 100% \\ {x} 1.50|2026-01-02 03:04:05|00ff|caf\u00e9|"
    assert place.run("select is_used_lock(?)", lock_name(key)) == [(holder.connection.thread_id(),)]


@FORMS
def test_a_settlement_that_waits_for_a_lock_too_long_is_tried_again(place: Place, form: str) -> None:
    """B7: 1205 is a conflict; the row is still ours, or is locked again, and is settled once."""
    place.create_usual(without=["locked_until"])
    keyed(place, "a")
    holder, second = (Holding(place, queue_of(form), dead_letter="q_dead") for _ in range(2))
    row = holder.taken()
    other = place.child()
    other.execute("insert into q_dead (id) values (1)")
    with pytest.raises(Conflict):
        holder.end(Verb.BURY, row, reason="no")
    if form == "advisory":
        assert second.claim() is None
    other.rollback()
    assert holder.end(Verb.BURY, row, reason="no")
    assert place.run("select id, attempt, last_error from q_dead") == [(1, 1, "no")]
    assert place.run("select count(*) from q") == [(0,)]


def test_crashes_are_counted_in_the_transaction_that_holds_the_row(place: Place) -> None:
    """R8: the row is not let go of for a moment, however often its child dies."""
    place.create_usual()
    keyed(place, "a")
    holder = Holding(place, queue_of("row lock"))
    row = holder.taken()
    assert all(holder.end(Verb.RECOUNT, row, attempt=attempt) for attempt in (2, 3))
    assert place.run("select attempt from q") == [(None,)]
    assert holder.end(Verb.RELEASE, row, attempt=3)
    assert place.run("select attempt from q") == [(3,)]


@contextmanager
def impatient(server: Mariadb) -> Iterator[None]:
    """Have the server end sessions that are idle for a second."""
    settings = ["wait_timeout", "idle_transaction_timeout", "idle_readonly_transaction_timeout"]
    settings.append("idle_write_transaction_timeout")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"select {', '.join(f'@@global.{name}' for name in settings)}")
        before = cursor.fetchone()
        for name in settings:
            cursor.execute(f"set global {name} = 1")
        try:
            yield
        finally:
            for name, value in zip(settings, before, strict=True):
                cursor.execute(f"set global {name} = %s", (value,))


def test_no_limit_of_the_servers_ends_a_session_that_holds_a_row(place: Place, mariadb: Mariadb) -> None:
    """B1, B4: it is idle for as long as the handler runs."""
    place.create_usual()
    with impatient(mariadb):
        connection = place.connect()
    found = connection.execute("show session variables like '%timeout'").fetchall()
    limits = {name: int(value) for name, value in found if name.startswith(("idle_", "wait_"))}
    assert limits.pop("wait_timeout") == 31536000
    assert limits == dict.fromkeys(limits, 0)
    assert len(limits) == 3


def test_a_claim_that_fails_leaves_nothing_held(place: Place) -> None:
    """B1: the rows that it had locked are free, and the connection claims again."""
    place.create_usual()
    keyed(place, "a", "b")
    holder = Holding(place, queue_of("row lock", without=["payload"], fetch="select id, priority from q"))

    def broken(connection: Any, ids: Any) -> Any:
        raise Conflict("refused for now")

    store: Any = holder.store
    bodies, store._fetch.bodies = store._fetch.bodies, broken
    with pytest.raises(Conflict):
        holder.claim()
    assert free_rows(place) == {1, 2}
    store._fetch.bodies = bodies
    row: Claimed = holder.taken()
    assert (row.id, row.body) == (1, {"id": 1, "priority": None})
