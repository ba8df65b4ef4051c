"""What MariaDB's claims and settlements lock, and for whom they wait: InnoDB locks whatever a locking statement reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from shardrun.db.store import Connection, Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost, StatementFailed
from tests.mariadb import Mariadb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


class Meanwhile:
    """Stands where a claim fetches bodies: its rows are locked and written, and nothing is committed."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def bodies(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, Any]:
        self._act()
        return {id: {"id": id} for id in ids}


def claim_meanwhile(holder: Holder, limit: int, act: Callable[[], object]) -> list[Any]:
    """Claim rows and do something else before the claim commits."""
    store: Any = holder.store
    store._claims._fetch = Meanwhile(act)
    return holder.ids(limit)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_claim_locks_nothing_but_the_rows_that_it_takes(place: Place, indexed: bool) -> None:
    """R10, B7: others lock every other row, due or not, and insert before, between and behind without waiting."""
    place.create_usual()
    if indexed:
        place.run("create index claimed on q (priority, retry_after, id)")
        place.run("create index held on q (locked_until)")
    place.run(f"insert into q (id, priority, retry_after) select seq * 10, 5, {place.seconds(60)} from seq_1_to_40")
    place.run("update q set retry_after = null where id in (100, 110, 200, 300)")
    other = place.child()

    def look() -> None:
        free = place.own.execute("select id from q for update skip locked").fetchall()
        assert {id for (id,) in free} == set(range(10, 410, 10)) - {100, 110}
        other.execute("set innodb_lock_wait_timeout = 0")
        for id in (1, 99, 105, 111, 401):
            other.execute("insert into q (id, priority, retry_after) values (%s, 5, null)", (id,))
        other.commit()

    assert claim_meanwhile(Holder(place, usual()), 2, look) == [100, 110]
    assert place.run("select count(*) from q") == [(45,)]


def test_whatever_locks_looks_its_rows_up(place: Place) -> None:
    """R10: also in a table so small that to read all of it would be cheaper."""
    place.create_usual(processed_at="time", group="text")
    place.run("create index held on q (locked_until)")
    place.fill(4)
    roles = {"processed_at": "processed_at", "group": "group"}
    for settings in ({}, {"processed_at": "processed_at"}, roles):
        holder = Holder(place, usual(**settings), dead_letter="q_dead", group="a" if "group" in settings else None)
        store: Any = holder.store
        values: dict[str, Any] = {"token": "2026-01-01", "new": "2026-02-01", "delay": 1, "attempt": 1, "reason": "r"}
        values |= {
            "group": "a",
            "ids": [1, 2, 3, 4],
            "tokens": ["2026-01-01", "2026-01-02"],
            "limit": 1,
            "avoided": [None],
        }
        locking = [one for one in store.statements() if not one.text.startswith("select") or "for update" in one.text]
        assert len(locking) >= 12
        for statement in locking:
            found = holder.connection.execute(f"explain {statement.text}", values).fetchall()
            assert {row[3] for row in found if row[2] != "q_dead"} == {"range"}, statement.text


def test_a_claim_walks_its_index_however_much_it_takes(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """P5, R10: left to itself MariaDB sorts the whole table for some per cent of it; an index that is gone costs no claim."""
    place.create_usual()
    place.run("create index claimed on q (priority, retry_after, id)")
    place.run("insert into q (priority) select seq mod 5 from seq_1_to_20000")
    place.run("analyze table q")
    holder = Holder(place, usual())
    store: Any = holder.store
    values = {"limit": 900, "avoided": [None]}
    place.own.execute("flush status")
    assert len(place.own.execute(store._claims.statements()[0].text, values).fetchall()) == 900
    asked = "select sum(variable_value) from information_schema.session_status where variable_name like 'Handler_read%'"
    assert place.run(asked)[0][0] < 1000
    place.run("alter table q drop index claimed, add index c (priority, retry_after, id)")
    assert holder.ids(3) == [5, 10, 15]
    assert caplog.records == []


def test_a_claim_takes_three_round_trips_and_a_settlement_two(place: Place) -> None:
    """P6: the candidates, the locks that read the rows, the leases; with triggers the rows are read again beside the write."""
    place.create_usual()
    place.fill(6)

    def trips(holder: Holder, act: Callable[[], Any]) -> int:
        seen = 0
        query = holder.connection.query

        def counted(*given: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            return query(*given, **more)

        holder.connection.query = counted
        act()
        holder.connection.query = query
        return seen

    holder = Holder(place, usual())
    rows: list[Any] = []
    assert trips(holder, lambda: rows.extend(holder.claim(3))) == 3
    assert place.run("select id, locked_until = ?, attempt from q where locked_until is not null", rows[0].token) == [
        (id, 1, 1) for id in (1, 2, 3)
    ]
    new = holder.store.lease_end(holder.connection)
    assert trips(holder, lambda: holder.store.extend(holder.connection, [1, 2, 3], rows[0].token, new)) == 2
    assert trips(holder, lambda: holder.settle(*(Settlement(Verb.ACK, row.id, new) for row in rows))) == 2
    place.own.execute("create trigger counts before update on q for each row set new.attempt = new.attempt + 10")
    with_trigger = Holder(place, usual())
    assert trips(with_trigger, lambda: rows.extend(with_trigger.claim(3))) == 3
    assert [(row.id, row.attempt) for row in rows[3:]] == [(4, 11), (5, 11), (6, 11)]


def test_rows_whose_tokens_must_differ_each_get_their_own(place: Place) -> None:
    """R1, R10: a row that was held for longer before gets a later token than its neighbours, and they keep their lease."""
    place.create_usual()
    place.fill(3)
    later = Holder(place, usual(), lease=600)
    (row,) = later.claim(1)
    assert later.one(Verb.RELEASE, row)
    first, *others = Holder(place, usual()).claim()
    assert first.token > row.token
    assert {one.token for one in others} == {others[0].token}
    assert others[0].token < row.token
    written = [place.run("select locked_until = ? from q where id = ?", row.token, row.id) for row in (first, *others)]
    assert written == [[(1,)]] * 3


def test_a_handler_that_takes_the_row_sees_it_as_the_claim_left_it(place: Place) -> None:
    """A2: the lease and the attempt in the row's own columns are those of this delivery."""
    place.create_usual()
    place.fill(1)
    (row,) = Holder(place, usual(without=["payload"])).claim()
    assert place.run("select locked_until, attempt from q") == [(row.body["locked_until"], row.body["attempt"])]


def test_claims_at_one_time_take_different_rows_in_order(place: Place) -> None:
    """R10, H8: what another claim has locked is passed by, also where that is many more rows than are wanted."""
    place.create_usual()
    place.run("insert into q (priority) select 0 from seq_1_to_400")
    first, second, third = (Holder(place, usual()) for _ in range(3))
    taken: list[list[Any]] = []

    def look() -> None:
        taken.append(claim_meanwhile(second, 3, lambda: taken.append(third.ids(2))))

    assert claim_meanwhile(first, 350, look) == list(range(1, 351))
    assert taken == [[354, 355], [351, 352, 353]]


def test_a_lost_row_that_someone_keeps_locked_holds_up_no_settlement(place: Place) -> None:
    """R10, R3: only a row that still carries our token is waited for, and its settlement is tried again."""
    place.create_usual()
    place.fill(3)
    holder = Holder(place, usual())
    lost, locked, free = holder.claim()
    place.run(f"update q set locked_until = {place.seconds(-1)} where id = 1")
    assert Holder(place, usual()).ids() == [1]
    other = place.child()
    other.execute("select id from q force index (primary) where id in (1, 2) order by id for update")
    acks = {row.id: Settlement(Verb.ACK, row.id, row.token) for row in (lost, locked, free)}
    assert holder.settle(acks[1], acks[3]) == {3}
    with pytest.raises(Conflict):
        holder.settle(acks[1], acks[2], repeated=True)
    other.rollback()
    assert holder.settle(acks[1], acks[2]) == {2}


def test_a_doubt_waits_for_the_session_that_may_still_commit(place: Place) -> None:
    """R1: the look is a locking read with a deadline, longer than that of other statements."""
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual())
    (row,) = holder.claim()
    other = place.child()
    other.execute("update q set locked_until = locked_until - interval 1 second")
    store: Any = holder.store
    ended = threading.Timer(1.5, other.rollback)
    ended.start()
    settlement = Settlement(Verb.RELEASE, row.id, row.token)
    assert store._resolve(holder.connection, [settlement]) == set()
    ended.join()
    assert holder.connection.execute("select @@innodb_lock_wait_timeout").fetchall() == ((1,),)
    assert holder.settle(settlement) == {1}
    assert store._resolve(holder.connection, [settlement]) == {1}


@pytest.mark.parametrize(
    "kind", ["datetime(0)", "timestamp(0) null", "datetime(1)", "datetime(6)", "timestamp(6) null"]
)
def test_no_claim_writes_what_an_extension_in_doubt_promised(place: Place, kind: str) -> None:
    """R1, C84: claims write even units and extensions odd ones; neither ends before clock plus lease."""
    place.create_usual(without=["locked_until"], locked_until=kind)
    place.fill(1)
    holder = Holder(place, usual(), lease=2.5)
    tokens: list[str] = []
    for _ in range(3):
        before = place.run("select utc_timestamp(6) + interval 2500000 microsecond")[0][0]
        new = holder.store.lease_end(holder.connection)
        (row,) = holder.claim()
        assert not tokens or row.token > tokens[-1]
        assert (int(row.token[-1]) % 2, int(new[-1]) % 2) == (0, 1)
        assert (
            min(place.run("select locked_until from q")[0][0], place.run(f"select timestamp '{new}'")[0][0]) >= before
        )
        assert holder.store.extend(holder.connection, [1], row.token, new).extended == ([1] if new > row.token else [])
        tokens.append(max(new, row.token))
        assert holder.one(Verb.RELEASE, row, token=tokens[-1])


@pytest.mark.parametrize("without", [[], ["retry_after"]])
def test_a_short_delay_on_whole_seconds_is_neither_early_nor_none(place: Place, without: list[str]) -> None:
    """C84: MySQL would round the due time and MariaDB cut it; it is written whole, a little later."""
    role = "locked_until" if without else "retry_after"
    place.create_usual(without=[role], **{role: "datetime(0)"})
    if without:
        place.run("alter table q drop column retry_after")
    place.fill(1)
    holder = Holder(place, usual(without=without), lease=1)
    (row,) = holder.claim()
    (before,) = place.run("select utc_timestamp(6) + interval 0.3 second")[0]
    assert holder.one(Verb.RETRY, row, delay=0.3)
    due, latest = place.run(f"select {role}, utc_timestamp(6) + interval 5.3 second from q")[0]
    assert before <= due <= latest
    assert holder.ids() == []


@contextmanager
def small_packets(server: Mariadb) -> Iterator[None]:
    """Let new sessions send a million bytes at a time at most."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("select @@global.max_allowed_packet")
        (usual_size,) = cursor.fetchone()
        cursor.execute("set global max_allowed_packet = 1048576")
        try:
            yield
        finally:
            cursor.execute("set global max_allowed_packet = %s", (usual_size,))


def test_statements_fit_into_small_packets(place: Place, mariadb: Mariadb) -> None:
    """C86: many long ids, a huge reason and a huge payload settle; no statement breaks the connection."""
    with small_packets(mariadb):
        place.create("q", id="varchar(750) primary key", payload="json", locked_until="time", last_error="longtext")
        place.create(
            "q_dead", id="varchar(750) primary key", payload="json", locked_until="time", last_error="longtext"
        )
        place.run("insert into q (id) select concat(seq, repeat('\\'', 700)) from seq_1_to_900")
        place.run("""insert into q (id, payload) values ('a', concat('"', repeat('x', 900000), '"'))""")
        queue = usual(
            without=[role for role in usual().roles if role not in ("id", "payload", "locked_until", "last_error")]
        )
        holder = Holder(place, queue, dead_letter="q_dead")
        rows = holder.claim(1000)
        assert len(rows) == 901
        first = [row.id for row in rows if row.token == rows[0].token]
        new = holder.store.lease_end(holder.connection)
        assert sorted(holder.store.extend(holder.connection, first, rows[0].token, new).extended) == sorted(first)
        tokens = {row.id: new if row.id in first else row.token for row in rows}
        buried = Settlement(Verb.BURY, "a", tokens.pop("a"), reason="x" * 2_000_000)
        acks = [Settlement(Verb.ACK, id, token) for id, token in tokens.items()]
        assert len(holder.settle(buried, *acks)) == 901
        assert place.run("select id, length(payload), length(last_error) > 1000 from q_dead") == [("a", 900_002, 1)]


def test_a_reason_fits_whatever_characters_its_column_has(place: Place) -> None:
    """C43: what latin1 or three bytes cannot say is spelt in ASCII; a TINYTEXT takes what fits."""
    for number, kind in enumerate(("varchar(99) character set latin1", "text character set utf8mb3", "tinytext")):
        place.create_usual(f"q{number}", without=["last_error"], last_error=kind)
        place.fill(1, f"q{number}")
        holder = Holder(place, usual(table=f"q{number}"))
        (row,) = holder.claim()
        assert holder.one(Verb.RETRY, row, reason="\U0001f9fe\u0416" + "\u00fc" * 300)
        assert len(place.run(f"select last_error from q{number}")[0][0]) > 60


def test_odd_ids_name_their_own_rows(place: Place) -> None:
    """C99: text is never compared with a number, nor a FLOAT with what is shown of it."""
    kinds: dict[str, list[Any]] = {
        "varchar(20)": ["1", "01", "1abc", "Strasse", "\u00df"],
        "varchar(20) character set latin1": ["1", " 1", "a'\\", "%s", "\u00e9"],
        "bigint unsigned": [0, 1, 2**63 - 1, 2**63, 2**64 - 1],
        "binary(16)": [bytes([n] * 16) for n in (0, 1, 39, 92, 255)],
        "uuid": [f"a0000000-0000-0000-0000-00000000000{n}" for n in range(5)],
        "float": [0.1, 0.2, 1e30, -7, 16777217],
        "double": [0.1, 0.10000000000000002, 0.3, 1e300, -7],
        "decimal(30,2)": ["1.00", "1.50", "-2", "3", "10000000000000000000000"],
        "datetime(6)": [f"2026-01-01 00:00:00.00000{n}" for n in range(5)],
        "enum('a','b','c','d','e')": list("abcde"),
    }
    for number, (kind, values) in enumerate(kinds.items()):
        table = f"q{number}"
        place.create_usual(table, without=["id"], id=f"{kind} primary key")
        for value in values:
            place.fill(1, table, id=value)
        holder = Holder(place, usual(table=table), dead_letter=f"{table}_dead", lease=30)
        rows = holder.claim()
        before = place.run(f"select * from {table} order by id")
        assert holder.one(Verb.ACK, rows[1])
        assert place.run(f"select * from {table} order by id") == before[:1] + before[2:], kind
        verbs = (Verb.RETRY, Verb.BURY, Verb.RELEASE, Verb.DROP)
        left = [rows[0], *rows[2:]]
        assert all(holder.one(verb, row) for verb, row in zip(verbs, left, strict=True)), kind


def test_a_trigger_that_refuses_or_swallows_a_lease_costs_its_own_row(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """C95: such rows are named once and left alone; the others come in their order."""
    place.create_usual()
    place.fill(8)
    place.own.execute(
        """create trigger odd before update on q for each row begin
             if old.id = 3 then set new.locked_until = old.locked_until; end if;
             if old.id = 5 then signal sqlstate '45000' set message_text = 'row is sealed'; end if; end"""
    )
    holder = Holder(place, usual())
    assert holder.ids(4) == [1, 2, 4, 6]
    assert holder.ids() == [7, 8]
    said = sorted(record.getMessage() for record in caplog.records)
    assert [text[:8] for text in said] == ["q row 3:", "q row 5:"]
    assert "row is sealed" in said[1]


def test_claims_settlements_and_inserts_do_not_wait_for_each_other(place: Place) -> None:
    """C81: three replicas and a writer at one time; every row is taken once and acked once."""
    place.create_usual()
    place.run("create index claimed on q (priority, retry_after, id)")
    place.run("create index held on q (locked_until)")
    done: list[Any] = []
    holders = [Holder(place, usual()) for _ in range(3)]
    written = threading.Event()
    writer = place.connect()

    def write() -> None:
        for number in range(60):
            writer.execute("insert into q (priority) values (%s), (%s), (1)", (number % 3, 2))
        written.set()

    def work(holder: Holder) -> None:
        while True:
            last = written.is_set()
            rows = again(lambda: holder.claim(7))
            done.extend(again(partial(holder.settle, *(Settlement(Verb.ACK, row.id, row.token) for row in rows))))
            if last and not rows:
                return

    threads = [threading.Thread(target=write), *(threading.Thread(target=work, args=(one,)) for one in holders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == list(range(1, 181))


def again(act: Callable[[], Any]) -> Any:
    """Repeat what the database refused for now, as the coordinator does."""
    for _ in range(20):
        try:
            return act()
        except Conflict:
            continue
    raise AssertionError("refused twenty times")


def test_a_lost_connection_and_a_missing_column_are_told_apart(place: Place) -> None:
    """F4: in doubt, or never."""
    place.create_usual()
    place.fill(2)
    holder = Holder(place, usual())
    place.run("alter table q drop column retry_after")
    with pytest.raises(StatementFailed, match="retry_after"):
        holder.claim(1)
    place.run("kill connection ?", holder.connection.thread_id())
    with pytest.raises(ConnectionLost):
        holder.claim(1)
