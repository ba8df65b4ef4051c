"""Orders over all replicas on MariaDB: what a claim of FIFO groups, and of partition keys, takes and leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import pytest

from shardrun.db.store import Verb
from shardrun.db.strands import StrandStore
from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual
from tests.store.test_locks import end_session, refuse
from tests.store.test_mariadb_claims import Meanwhile


class StrandHolder(Holder):
    """A replica whose claims go by strands; `held` are the ids of the rows that it holds."""

    def __init__(self, place: Place, queue: Queue[Any], **settings: Any) -> None:
        super().__init__(place, queue, **settings)
        self.held: set[Any] = set()

    def claim(self, limit: int = 100, full_keys: Sequence[Any] = (), held: Collection[Any] = ()) -> list[Any]:
        """Claim rows strand by strand."""
        store = cast(StrandStore, self.store)
        rows = list(store.claim_strands(self.connection, limit, full_keys, {*self.held, *held}))
        self.held.update(row.id for row in rows)
        return rows

    def one(self, verb: Verb, row: Any, token: str | None = None, **values: Any) -> bool:
        """Settle one row, which is held no more."""
        self.held.discard(row.id)
        return super().one(verb, row, token, **values)


@pytest.fixture
def server(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


def fifo(**more: Any) -> Queue[Any]:
    """Declare a queue whose groups are FIFO."""
    return usual(group="account", fifo=True, **more)


def grouped(place: Place, *accounts: Any, kind: str = "text", **more: Any) -> None:
    """Create a table of accounts, and a row for each of these."""
    place.create_usual(account=kind)
    for account in accounts:
        place.fill(1, account=account, **more)


def keyed(place: Place, *keys: Any) -> StrandHolder:
    """Create a table of keys with a row for each of these, and a replica that keeps their order over all replicas."""
    place.create_usual()
    for key in keys:
        place.fill(1, partition_key=key)
    return in_order(place)


def in_order(place: Place, **settings: Any) -> StrandHolder:
    """Open a replica that keeps the order of keys over all replicas."""
    return StrandHolder(place, usual(), workers_by_key=4, key_scope="cluster", **settings)


@pytest.mark.parametrize(
    ("kind", "values", "heads"),
    [
        ("varchar(50) collate utf8mb4_general_ci", ["a", "A", "a ", "\u00e4", "b"], [1, 5]),
        ("varchar(50) collate utf8mb4_nopad_bin", ["a", "A", "a ", "a", "%s'\\"], [1, 2, 3, 5]),
        ("bigint", [10, 9, 10, 0], [1, 2, 4]),
        ("decimal(9, 2)", ["1.50", "1.5", "-2"], [1, 3]),
        ("varbinary(9)", [b"a", b"A", b"\xff\x00", b"a"], [1, 2, 3]),
        ("date", ["2026-01-01", "2026-01-02", "2026-01-01"], [1, 2]),
        ("datetime(6)", ["2026-01-01 00:00:00.000001", "2026-01-01", "2026-01-01 00:00:00.000000"], [1, 2]),
        ("uuid", ["00000000-0000-0000-0000-000000000002", "10000000-0000-0000-0000-000000000001"] * 2, [1, 2]),
    ],
)
def test_groups_are_the_values_that_the_server_calls_equal(
    server: Place, kind: str, values: list[Any], heads: list[int]
) -> None:
    """D3, R16: by the column's collation; one guard for all spellings, and values of any type go back as they came."""
    grouped(server, *values, kind=kind)
    if kind != "decimal(9, 2)":
        server.run("create index claim on q (account, attempt, priority, retry_after, id)")
    first, second = StrandHolder(server, fifo()), StrandHolder(server, fifo())
    assert sorted(first.ids(1) + second.ids()) == heads
    (row, *_) = [*first.claim(), *second.claim(), None]
    assert row is None
    store = cast(Any, first.store)
    looks = store._looks.by_name(second.connection, values[:1], ())
    second.connection.execute("select get_lock(%s, 0)", (looks[0][0].guard,))
    server.run("update q set attempt = 0, locked_until = null")
    assert sorted(first.ids()) == heads[1:]


def test_equal_values_share_a_guard_however_they_are_spelt(server: Place) -> None:
    """D3, R16: its name is made of what the collation compares."""
    grouped(server, "a", "A ", kind="varchar(50) collate utf8mb4_general_ci")
    looks = cast(Any, StrandHolder(server, fifo()).store)._looks
    first = looks.by_name(server.own, ["a"], ())[0][0]
    server.run("delete from q where id = 1")
    then = looks.by_name(server.own, ["a"], ())[0][0]
    assert (first.strand, then.strand) == ("a", "A ")
    assert first.guard == then.guard


def test_a_table_whose_finished_rows_stay_goes_on_group_by_group(server: Place) -> None:
    """D3, A5: finished rows are of no strand."""
    grouped(server, "a", "a")
    server.run("alter table q add column processed_at timestamp")
    holder = StrandHolder(server, fifo(processed_at="processed_at"))
    for id in (1, 2):
        (row,) = holder.claim()
        assert row.id == id
        assert holder.one(Verb.ACK, row)
    assert holder.ids() == []


def test_a_claim_takes_its_limit_from_keys_in_turn_and_leaves_out_full_ones(server: Place) -> None:
    """D4, R16: a limit is one over all keys; the next claim goes on behind it."""
    first = keyed(server, *"aabbcc")
    a, b, c = (row.lane_key for row in in_order(server).claim() if row.id % 2)
    server.run("update q set attempt = 0, locked_until = null")
    assert first.ids(3, full_keys=[a]) == [3, 4, 5]
    assert first.ids(100, full_keys=[b, c]) == [1, 2]
    assert first.ids() == [6]


@pytest.mark.parametrize("scope", ["fifo", "cluster"])
def test_the_index_that_ddl_prints_serves_and_a_look_at_long_strands_is_short(server: Place, scope: str) -> None:
    """A7, H3: a few seeks for each strand, however many rows it has; the index has a name of its own."""
    grouped(server)
    server.run(
        "insert into q (account, partition_key, attempt) select concat('g', mod(seq, 5000)), concat('k', mod(seq, 5000)), "
        "if(mod(seq, 3), 0, null) from seq_1_to_100000"
    )
    server.run("insert into q (account, partition_key) select 'g1', 'k1' from seq_1_to_10000")
    queue = fifo() if scope == "fifo" else usual()
    settings: dict[str, Any] = {} if scope == "fifo" else {"workers_by_key": 4, "key_scope": "cluster"}
    holder = StrandHolder(server, queue, **settings)
    (warning,) = server.database.warnings(server.own, queue.subscriptions[-1])
    assert "q_claim_in_order" in warning
    for text in server.database.ddl(queue, queue.subscriptions, server.own):
        server.run(text)
    assert not server.database.warnings(server.own, queue.subscriptions[-1])
    server.run("analyze table q")
    holder = StrandHolder(server, queue, **settings)
    assert reads(holder, lambda: holder.claim(20)) < 4000
    assert len(holder.held) == 20
    store = cast(Any, holder.store)
    assert reads(holder, lambda: store.look(holder.connection, ["g1", "k1"], None, 64, (), ())) < 3000
    server.run("drop index q_claim_in_order on q")  # costs no claim
    assert len(holder.ids(3)) == 3


def test_a_free_group_is_found_behind_many_without_an_index(server: Place) -> None:
    """D3, A5: a walk goes on in the order of the values, wherever their rows lie."""
    grouped(server, kind="varchar(50)")
    server.run(
        "insert into q (account, attempt, retry_after) select concat('s', lpad(1000 - seq, 4, '0')), 1, "
        "utc_timestamp(6) + interval 1 hour from seq_1_to_600"
    )
    server.run("insert into q (account) values ('a')")
    assert [row.group for row in StrandHolder(server, fifo()).claim()] == ["a"]


def reads(holder: Holder, act: Callable[[], object]) -> int:
    """Count the rows that the server reads for something."""
    holder.connection.execute("flush status")
    act()
    asked = (
        "select sum(variable_value) from information_schema.session_status where variable_name like 'Handler_read%%'"
    )
    return int(holder.connection.execute(asked).fetchall()[0][0])


def claim_meanwhile(holder: StrandHolder, act: Callable[[], object], limit: int = 100) -> list[Any]:
    """Claim rows and do something else before the claim commits."""
    store = cast(Any, holder.store)
    store._strand_claims._fetch = Meanwhile(act)
    return holder.ids(limit)


def guarded(server: Place, holder: StrandHolder, *strands: str) -> list[bool]:
    """Tell which strands are guarded; their guards' names are learnt while they have rows."""
    looks = cast(Any, holder.store)._looks.by_name(server.own, strands, ())
    names = holder.__dict__.setdefault("names", {})
    names |= {each[0].strand: each[0].guard for each in looks}
    return [server.run("select is_used_lock(?) is not null", names[strand]) == [(1,)] for strand in strands]


def test_a_smaller_id_that_commits_late_starts_nothing_while_a_claim_is_under_way(server: Place) -> None:
    """D3, R5: the guard is held until the claim has committed, and then the row is seen to be in work."""
    grouped(server)
    late = server.child()
    late.execute("insert into q (id, account) values (1, 'a')")
    server.fill(1, id=2, account="a")
    first, second = StrandHolder(server, fifo()), StrandHolder(server, fifo())
    seen: list[Any] = []

    def act() -> None:
        late.commit()
        seen.append(second.ids())

    assert claim_meanwhile(first, act) == [2]
    assert seen == [[]]
    assert second.ids() == []
    assert server.run("select id, attempt from q order by id") == [(1, None), (2, 1)]


def test_a_claim_locks_one_row_of_a_group_and_lets_others_insert(server: Place) -> None:
    """R10, D3: nobody waits for the claim: neither inserts before, between and behind, nor locks of other rows."""
    grouped(server)
    server.run("create index claim on q (account, attempt, priority, retry_after, id)")
    server.run("insert into q (id, account) select seq * 10, 'a' from seq_1_to_20")
    other = server.child()
    other.execute("set innodb_lock_wait_timeout = 0")

    def act() -> None:
        for id in (1, 11, 25, 201):
            other.execute("insert into q (id, account) values (%s, 'a')", (id,))
        other.commit()
        assert len(server.run("select * from q for update skip locked")) == 23

    assert claim_meanwhile(StrandHolder(server, fifo()), act) == [10]


@pytest.mark.parametrize("scope", ["fifo", "cluster"])
def test_guards_end_with_the_claim_however_it_ends(server: Place, scope: str) -> None:
    """D3, D4, R5: after a claim, a failed one, an empty one, and one whose connection was lost."""
    grouped(server, "a", "b", partition_key="k")
    holders = [StrandHolder(server, fifo()) if scope == "fifo" else in_order(server) for _ in range(4)]
    first, second, third, fourth = holders
    store = cast(Any, third.store)
    third.ids()
    third.held.clear()
    server.run("update q set attempt = 0, locked_until = null")

    strands = ("a", "b") if scope == "fifo" else ("k",)

    def fail() -> None:
        assert all(guarded(server, first, *strands))
        raise Conflict("no such luck")

    def lose() -> None:
        end_session(server, second.connection)
        second.connection.execute("select 1")

    with pytest.raises(Conflict):
        claim_meanwhile(first, fail)
    assert not any(guarded(server, first, *strands))
    with pytest.raises(ConnectionLost):
        claim_meanwhile(second, lose)
    assert store.take(third.connection, ["z"], 1, set()) == []
    assert fourth.ids() == [1, 2]
    assert third.ids() == []
    assert not any(guarded(server, first, *strands))


def test_a_row_that_left_its_group_since_it_was_looked_at_is_left_alone(server: Place) -> None:
    """D3, R10: it is read once more when it is locked, by users' hands too."""
    grouped(server, "a", "a")
    holder = StrandHolder(server, fifo())
    store = cast(Any, holder.store)
    head = store._looks.head

    def moved(looks: Any) -> Any:
        server.run("update q set account = 'z' where id = 1")
        return 1 if looks[0].strand == "a" else head(looks)

    store.look(holder.connection, [], None, 64, (), ())
    store._looks.head = moved
    assert store.take(holder.connection, ["a"], 9, set()) == []
    store._looks.head = head
    assert sorted(holder.ids()) == [1, 2]


def test_a_swallowed_lease_stops_its_key_and_no_other(server: Place, caplog: pytest.LogCaptureFixture) -> None:
    """D4, C92: a trigger that does not write a lease keeps the rows behind that from being claimed as well."""
    holder = keyed(server, "a", "a", "a", "b")
    server.run(
        "create trigger s before update on q for each row set new.locked_until = if(old.id = 2, null, new.locked_until)"
    )
    holder = in_order(server)
    assert holder.ids() == [1, 4]
    assert holder.ids() == []
    assert "row 2" in caplog.text


def test_long_texts_and_values_without_an_order_are_refused_or_warned_of(server: Place) -> None:
    """A5, A7: no index takes a TEXT, nor much beside a long column; an ENUM has the order of its numbers, not of its texts."""
    grouped(server, kind="longtext")
    for kind, said in (("longtext", "longtext"), ("varchar(760)", r"varchar\(760\)"), ("blob", "blob")):
        server.run(f"alter table q modify account {kind}")
        queue = fifo()
        StrandHolder(server, queue)
        (warning,) = server.database.warnings(server.own, queue.subscriptions[-1])
        assert re.search(f"Column account is {said}, which no index takes whole. alter table", warning)
        assert server.database.ddl(queue, queue.subscriptions, server.own) == []
    server.run("alter table q modify account enum('b', 'a')")
    with pytest.raises(
        ShardrunError, match=r"account .role group. is enum.'b','a'., whose values may compare in another"
    ):
        StrandHolder(server, fifo())


def locked(**more: Any) -> Queue[Any]:
    """Declare a queue whose groups are FIFO and whose rows are held by row locks."""
    return fifo(without=["locked_until"], **more)


def of_locks(server: Place, *accounts: Any, count: int = 2) -> list[StrandHolder]:
    """Create a table with a row for each of these, and connections of replicas."""
    grouped(server, *accounts)
    return [StrandHolder(server, locked()) for _ in range(count)]


def test_a_transaction_holds_one_row_of_its_group_until_it_is_settled(server: Place) -> None:
    """D3, B1, R5: rows of the group come one after another; a smaller id that commits late waits, a failed row goes first."""
    late = server.child()
    first, second = of_locks(server)
    late.execute("insert into q (id, account) values (1, 'a')")
    for id, account in ((2, "a"), (3, "a"), (4, "b")):
        server.fill(1, id=id, account=account)
    (row,) = first.claim(1)
    late.commit()
    assert (row.id, row.attempt, row.token) == (2, 1, "")
    (other,) = second.claim(1)
    assert other.id == 4
    assert StrandHolder(server, locked()).ids(1) == []
    assert first.one(Verb.RETRY, row, delay=None, reason="no", attempt=1)
    (again,) = first.claim(1)
    assert (again.id, again.attempt) == (2, 2)
    assert first.one(Verb.RETRY, again, delay=60.0, reason="no", attempt=2)
    assert first.ids(1) == []
    assert second.one(Verb.SNOOZE, other, delay=60.0, attempt=0)
    server.run("update q set retry_after = null where id = 2")
    for id in (2, 1, 3):
        (row,) = second.claim(1)
        assert (row.id, guarded(server, second, "a")) == (id, [True])
        assert second.one(Verb.ACK, row, attempt=row.attempt)
        assert guarded(server, second, "a") == [False]
    assert second.ids(1) == []


def test_a_held_row_of_a_group_keeps_nobody_from_inserting(server: Place) -> None:
    """R10, D3: the lock is on one row and on no gap."""
    first, _ = of_locks(server, *"aaaa")
    server.run("create index claim on q (account, attempt, priority, retry_after, id)")
    first = StrandHolder(server, locked())
    assert first.ids(1) == [1]
    other = server.child()
    other.execute("set innodb_lock_wait_timeout = 0")
    for id in (-5, 5, 9):
        other.execute("insert into q (id, account) values (%s, 'a')", (id,))
    other.commit()
    assert len(server.run("select * from q for update skip locked")) == 6


def test_a_group_is_free_when_its_row_was_let_go_of_or_its_connection_lost(server: Place) -> None:
    """D3, B1, R5: the guard ends with the session, and with what is let go of."""
    first, second = of_locks(server, "a", "a")
    assert first.ids(1) == [1]
    cast(Any, first.store).let_go(first.connection)
    assert guarded(server, first, "a") == [False]
    assert second.ids(1) == [1]
    end_session(server, second.connection)
    assert first.ids(1) == [1]


def test_a_row_whose_settlement_was_refused_keeps_its_group_or_is_lost(server: Place) -> None:
    """D3, R5: the guard outlives an error; let go of, it must be there again, or another may have the row."""
    first, second = of_locks(server, "a", "a")
    refuse(server, "delete", "true")
    (row,) = first.claim(1)
    with pytest.raises(StatementFailed):
        first.one(Verb.ACK, row)
    assert second.ids(1) == []
    assert first.one(Verb.RECOUNT, row, attempt=1)
    assert second.ids(1) == []
    cast(Any, first.store).let_go(first.connection)
    assert first.one(Verb.RETRY, row, attempt=1, reason="no such luck")
    assert guarded(server, first, "a") == [False]
    (row,) = first.claim(1)
    cast(Any, first.store).let_go(first.connection)
    server.run("update q set priority = 0")
    server.fill(1, id=3, account="a", attempt=1, priority=-1)
    assert second.ids(1) == [3]
    assert not first.one(Verb.RETRY, row, attempt=2, reason="no such luck")
    assert guarded(server, second, "a") == [True]
