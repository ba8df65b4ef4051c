"""Orders over all replicas: what claims of FIFO groups, and of partition keys, take and leave, with others beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from shardrun.db.store import Claimed, Connection, Settlement, Verb
from shardrun.db.strands import StrandStore
from shardrun.errors import Conflict, ShardrunError, StatementFailed
from shardrun.queue import Form
from tests.store.conftest import Opener
from tests.store.place import Place, subscribe, usual
from tests.store.test_locks import refuse

FORMS = [f"{dialect} {form}" for dialect in ("postgres", "mariadb") for form in ("lease", "row lock", "cluster")]
"""Databases, and what holds the rows of FIFO groups there; "cluster" is the order of partition keys, under leases."""

FIFO = [each for each in FORMS if not each.endswith("cluster")]
LEASES = [each for each in FORMS if not each.endswith("row lock")]
CLUSTER = [each for each in FORMS if each.endswith("cluster")]

forms = pytest.mark.parametrize("ordered", FORMS, indirect=True)
fifo = pytest.mark.parametrize("ordered", FIFO, indirect=True)
leases = pytest.mark.parametrize("ordered", LEASES, indirect=True)
cluster = pytest.mark.parametrize("ordered", CLUSTER, indirect=True)


class Ordered:
    """An empty database and a form: tables whose column `strand` is the group, or the partition key."""

    def __init__(self, place: Place, form: str) -> None:
        self.place = place
        self.form = form
        self.run = place.run

    def create(self, kind: str = "text") -> None:
        """Create the table."""
        without = ["partition_key", *(["locked_until"] if self.form == "row lock" else [])]
        self.place.create_usual(without=without, strand=kind)

    def fill(self, *strands: Any, **values: Any) -> None:
        """Insert a row for each strand; ids go up from 1."""
        for strand in strands:
            self.place.fill(1, strand=strand, **values)

    def replica(self, group: str | None = None, **roles: Any) -> Replica:
        """Open a replica."""
        return Replica(self, group, roles)


class Replica:
    """A replica as far as one store goes: a connection for leases, or one for each row that it has locked."""

    def __init__(self, ordered: Ordered, group: str | None, roles: dict[str, Any]) -> None:
        self.place, self.form = ordered.place, ordered.form
        without, settings = ["partition_key"], dict[str, Any](group=group, dead_letter="q_dead")
        if self.form == "row lock":
            without.append("locked_until")
        if self.form == "cluster":
            roles = {"partition_key": "strand", **roles}
            settings |= {"workers_by_key": 4, "key_scope": "cluster"}
        else:
            roles = {"group": "strand", "fifo": True, **roles}
        self.subscription = subscribe(usual(without=without, **roles), **settings)
        self.idle = [self.place.connect()]
        self.store = cast(StrandStore, self.place.database.store(self.idle[0], self.subscription))
        self.store.prepare(self.idle[0])
        self.held: dict[Any, Connection] = {}

    def claim(self, limit: int = 100, full_keys: Iterable[Any] = ()) -> list[Claimed]:
        """Claim rows, one by one where a connection holds one row."""
        rows: list[Claimed] = []
        one_by_one = self.store.layout.form is Form.ROW_LOCK
        while len(rows) < limit:
            connection = self.idle.pop() if self.idle else self.place.connect()
            some = self.store.claim_strands(connection, 1 if one_by_one else limit, list(full_keys), set(self.held))
            if not (one_by_one and some):
                self.idle.append(connection)
            self.held |= {row.id: connection for row in some}
            rows += some
            if not (one_by_one and some):
                break
        return rows

    def ids(self, limit: int = 100) -> list[Any]:
        """Claim rows and give their ids."""
        return [row.id for row in self.claim(limit)]

    def end(self, verb: Verb, row: Claimed, **how: Any) -> bool:
        """Settle a row; tells whether that took effect."""
        connection = self.held.pop(row.id)
        how = {"attempt": row.attempt, **how}
        written = self.store.settle(connection, [Settlement(verb, row.id, row.token, **how)])
        if self.store.layout.form is Form.ROW_LOCK:
            self.idle.append(connection)
        return written == {row.id}


@pytest.fixture
def ordered(request: pytest.FixtureRequest, open_place: Opener) -> Ordered:
    """Give an empty database for a form."""
    dialect, form = request.param.split(" ", 1)
    return Ordered(open_place(dialect), form)


def before_writing(replica: Replica, act: Callable[[], None]) -> None:
    """Have something done once while a claim has its guards, and has chosen rows, and has not written their leases."""
    store: Any = replica.store
    claims = getattr(store, "_strand_claims", store)
    write, done = claims._write, list[bool]()

    def late(*given: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return write(*given)

    claims._write = late


def numbers(place: Place, most: int) -> str:
    """Write a table of the numbers i from 1 on."""
    if place.dialect == "mariadb":
        return f"(select seq as i from seq_1_to_{most}) as numbers"
    return f"generate_series(1, {most}) as i"


@fifo
def test_one_row_of_a_group_is_in_work_at_a_time_over_all_replicas(ordered: Ordered) -> None:
    """D3, R5: the first of each group; the next when that has ended, whoever asks for it, and whatever else is claimed."""
    ordered.create()
    ordered.fill("a", "a", "b", "a", "b")
    first, second = ordered.replica(), ordered.replica()
    (head,) = first.claim(1)
    (other,) = second.claim()
    assert (head.id, head.attempt, head.expired, head.group, other.id) == (1, 1, False, "a", 3)
    assert first.ids() == second.ids() == []
    assert first.end(Verb.ACK, head)
    assert second.ids() == [2]
    assert second.end(Verb.ACK, other)
    assert first.ids() == [5]
    assert ordered.replica().ids() == []


@fifo
def test_a_smaller_id_that_commits_late_does_not_get_out_beside_a_larger_one(ordered: Ordered) -> None:
    """D3, R5: its insert was under way when another row of its group was claimed; it is next, when that one has ended."""
    ordered.create()
    late = ordered.place.connect()
    late.execute("begin")
    late.execute("insert into q (id, strand) values (1, 'a')")
    ordered.run("insert into q (id, strand) values (2, 'a')")
    first, second = ordered.replica(), ordered.replica()
    (row,) = first.claim()
    late.execute("commit")
    assert (row.id, second.ids()) == (2, [])
    assert first.end(Verb.ACK, row)
    assert second.ids() == [1]


@leases
def test_a_smaller_id_that_commits_before_the_lease_is_written_does_not_get_out_either(ordered: Ordered) -> None:
    """D3, D4, R5, R6, R16: the guard alone keeps it back, however its value is spelt: no row says yet that one is in work."""
    ordered.create("numeric")
    ordered.run("create index in_order on q (strand, attempt, priority, retry_after, id)")
    ordered.run("insert into q (id, strand) values (2, 1.00)")
    first, second = ordered.replica(), ordered.replica()
    seen: list[list[Any]] = []

    def others() -> None:
        ordered.run("insert into q (id, strand) values (1, 1.0)")
        seen.append(second.ids())

    before_writing(first, others)
    assert (first.ids(), seen, second.ids()) == ([2], [[]], [])


@forms
def test_what_another_replica_claims_between_the_look_and_the_guard_is_seen(ordered: Ordered) -> None:
    """D3, D4, R5: the rows are read anew behind the guard; so is one that went back to be due later."""
    ordered.create()
    ordered.fill("a", "a", "b", "b")
    first, second = ordered.replica(), ordered.replica()
    store: Any = second.store
    take, rows = store.take, list[Claimed]()

    def late(*given: Any) -> Any:
        if not rows:
            rows.extend(first.claim())
            failed = next(row for row in rows if row.id == 3)
            assert first.end(Verb.RETRY, failed, delay=60.0)
        return take(*given)

    store.take = late
    assert second.ids() == []
    assert [row.id for row in rows] == ([1, 2, 3, 4] if ordered.form == "cluster" else [1, 3])


@fifo
def test_a_row_that_failed_stays_the_head_and_blocks_its_group_alone(ordered: Ordered) -> None:
    """D3, E3, C8: at once or after its delay, also before smaller ids; dead letters let the group go on."""
    ordered.create()
    ordered.run("insert into q (id, strand) values (5, 'a'), (6, 'a'), (7, 'b'), (8, 'b')")
    replica, other = ordered.replica(), ordered.replica()
    failed, fine = replica.claim()
    ordered.run("insert into q (id, strand) values (1, 'a')")
    assert replica.end(Verb.RETRY, failed, reason="no")
    (again,) = other.claim()
    assert (again.id, again.attempt) == (5, 2)
    assert other.end(Verb.RETRY, again, delay=60.0)
    assert replica.end(Verb.ACK, fine)
    assert (replica.ids(), other.ids()) == ([8], [])
    due = other.store.strands.next_due
    assert due is not None
    assert 50 < due <= 60
    ordered.run("update q set retry_after = null where id = 5")
    (last,) = replica.claim()
    assert (last.id, last.attempt) == (5, 3)
    assert replica.end(Verb.BURY, last, reason="no")
    assert ordered.run("select id, attempt from q_dead") == [(5, 3)]
    assert other.ids() == [1]


@fifo
def test_rows_that_have_not_begun_block_nobody_and_come_in_claim_order(ordered: Ordered) -> None:
    """D3, D2, E3: one that is scheduled, or was snoozed at its first attempt, lets others pass; NULL counts as not begun."""
    ordered.create()
    at = ordered.place.seconds
    times = [
        ("null", 1, "0"),
        (at(-5), 0, "0"),
        (at(-9), 0, "0"),
        ("null", 0, "null"),
        ("null", 9, "2"),
        (at(60), 0, "0"),
    ]
    for time, priority, attempt in times:
        ordered.run(
            f"insert into q (strand, retry_after, priority, attempt) values ('a', {time}, {priority}, {attempt})"
        )
    replica, seen = ordered.replica(), list[Any]()
    while rows := replica.claim():
        seen += [row.id for row in rows]
        assert replica.end(Verb.ACK, rows[0])
    assert seen == [5, 4, 3, 2, 1]
    ordered.fill("b", "b")
    (snoozed,) = replica.claim()
    assert replica.end(Verb.SNOOZE, snoozed, delay=60.0, attempt=0)
    (passing,) = replica.claim()
    assert (snoozed.id, passing.id) == (7, 8)


@forms
def test_rows_of_no_group_or_key_are_in_no_order(ordered: Ordered) -> None:
    """D3, D4: NULL is no strand; any number of such rows is in work, behind those that have one."""
    ordered.create()
    ordered.fill(None, None, "a", None)
    replica = ordered.replica()
    assert replica.ids(3) == [3, 1, 2]
    assert ordered.replica().ids() == [4]


@fifo
def test_a_handler_of_one_group_takes_the_head_of_that_one(ordered: Ordered) -> None:
    """B5, D3: the group that `group=` names is one strand."""
    ordered.create()
    ordered.fill("a", "b", "b")
    replica = ordered.replica(group="b")
    (row,) = replica.claim()
    assert (row.id, ordered.replica(group="b").ids()) == (2, [])
    assert replica.end(Verb.ACK, row)
    assert replica.ids() == [3]


@forms
def test_equal_values_are_one_group_or_key(ordered: Ordered) -> None:
    """D3, D4, R16: as the database compares them, however they are spelt: 1.0 and 1.00."""
    ordered.create("numeric")
    ordered.fill("1.0", "1.00", "2")
    first, second = ordered.replica(), ordered.replica()
    taken = [*first.ids(1), *first.ids(1), *first.ids(1)]
    assert sorted(taken) == ([1, 2, 3] if ordered.form == "cluster" else [1, 3])
    assert second.ids() == []


@fifo
def test_a_thousand_blocked_groups_in_front_keep_no_free_one_back(ordered: Ordered) -> None:
    """D3, H3: they are walked past in one claim; and none starves where all are free."""
    ordered.create()
    ordered.run("create index in_order on q (strand, attempt, priority, retry_after, id)")
    later = ordered.place.seconds(600)
    groups = f"select concat('g', i), 1, {later} from {numbers(ordered.place, 1000)}"
    ordered.run(f"insert into q (strand, attempt, retry_after) {groups}")
    ordered.fill("z", "z")
    replica = ordered.replica()
    (row,) = replica.claim()
    assert row.group == "z"
    ordered.run("update q set retry_after = null where strand <> 'z'")
    assert len(set(replica.ids(3) + replica.ids(3))) == 6


@forms
def test_a_row_that_someone_has_locked_is_not_passed(ordered: Ordered) -> None:
    """D3, D4, R5: a program's own lock on a head keeps its strand, and no other, waiting."""
    ordered.create()
    ordered.fill("a", "a", "b")
    program = ordered.place.child()
    program.execute("select 1 from q where id = 1 for update")
    replica = ordered.replica()
    assert replica.ids() == [3]
    program.rollback()
    assert ordered.replica().ids() == ([1, 2] if ordered.form == "cluster" else [1])


@cluster
def test_rows_of_a_key_go_to_one_replica_in_order(ordered: Ordered) -> None:
    """D4, R6: several at once; behind those that it holds it takes more; another takes none of the key."""
    ordered.create()
    ordered.fill("a", "a", "a", "b", "a")
    first, second = ordered.replica(), ordered.replica()
    rows = first.claim(2)
    assert [row.id for row in rows] == [1, 2]
    assert second.ids() == [4]
    assert second.store.strands.next_due is None  # it has not tried in vain
    assert first.ids() == [3, 5]
    assert first.end(Verb.ACK, rows[1])
    ordered.fill("a")
    assert (second.ids(), first.ids()) == ([], [6])


@cluster
def test_keys_behind_those_that_a_replica_holds_entirely_are_found(ordered: Ordered) -> None:
    """D4, H3: more keys than one look visits, each with one row that this replica has, keep none behind them back."""
    ordered.create()
    ordered.fill(*[f"a{number:02}" for number in range(30)])
    replica = ordered.replica()
    assert len(replica.claim()) == 30
    ordered.fill("b")
    assert replica.ids(1) == [31]


@cluster
def test_a_replica_has_a_key_while_it_holds_any_row_of_it(ordered: Ordered) -> None:
    """D4, R6: also where the row that came late, and stands before that one, has lost its lease first."""
    ordered.create()
    ordered.run("insert into q (id, strand) values (2, 'a')")
    first, second = ordered.replica(), ordered.replica()
    assert first.ids() == [2]
    ordered.run("insert into q (id, strand) values (1, 'a')")
    assert first.ids() == [1]
    ordered.run(f"update q set locked_until = {ordered.place.seconds(-1)} where id = 1")
    assert second.ids() == []
    ordered.run(f"update q set locked_until = {ordered.place.seconds(-1)} where id = 2")
    assert second.ids() == [1, 2]


@cluster
def test_a_row_that_is_put_off_holds_its_key(ordered: Ordered) -> None:
    """D4, R6, E3: after a retry and a snooze alike, and one that was scheduled: nothing passes it; what begun is first."""
    ordered.create()
    ordered.run("insert into q (id, strand) values (2, 'a'), (3, 'a'), (4, 'b'), (5, 'b'), (6, 'c')")
    ordered.run(f"insert into q (id, strand, retry_after) values (1, 'c', {ordered.place.seconds(60)})")
    ordered.run("insert into q (id, strand) values (7, 'd'), (8, 'd'), (9, 'd')")
    ordered.run(f"update q set retry_after = {ordered.place.seconds(60)} where id = 8")
    ordered.run("update q set priority = 0")
    first, second = ordered.replica(), ordered.replica()
    rows = {row.id: row for row in first.claim()}
    assert list(rows) == [2, 3, 4, 5, 7]
    for later in (rows[3], rows[5]):  # given back first, as the coordinator does (R6)
        assert first.end(Verb.RELEASE, later, attempt=0)
    assert first.end(Verb.RETRY, rows[2], delay=60.0, reason="no")
    assert first.end(Verb.SNOOZE, rows[4], delay=60.0, attempt=0)
    ordered.run("insert into q (id, strand, priority) values (0, 'a', -1)")
    assert (first.ids(), second.ids()) == ([], [])
    assert 50 < (first.store.strands.next_due or 0) <= 60
    ordered.run("update q set retry_after = null")
    assert second.ids() == [2, 0, 3, 4, 5, 1, 6]
    assert first.ids() == [8, 9]


@cluster
def test_keys_whose_rows_go_back_are_left_out_and_long_ones_take_turns(ordered: Ordered) -> None:
    """D4, R6, R16: the lane keys of full lanes; one claim takes a few rows of each key where there are many keys."""
    ordered.create()
    ordered.fill(*["a"] * 9, "b", "c", "d", "e")
    replica = ordered.replica()
    (first,) = ordered.replica().claim(1)
    others = replica.claim()
    assert [row.id for row in others] == [10, 11, 12, 13]
    full = [row.lane_key for row in (first, others[1])]
    ordered.run("update q set locked_until = null, attempt = 0")
    assert [row.id for row in ordered.replica().claim(full_keys=full)] == [10, 12, 13]
    assert [row.id for row in ordered.replica().claim(4)] == [1, 2, 3, 4]


@leases
def test_a_lease_that_ran_out_makes_its_row_the_first_again(ordered: Ordered) -> None:
    """D3, D4, R8: marked, with its attempts counted, before rows with smaller ids that have come since."""
    ordered.create()
    ordered.run("insert into q (id, strand) values (2, 'a')")
    assert ordered.replica().ids() == [2]
    ordered.run("insert into q (id, strand) values (1, 'a')")
    ordered.run(f"update q set locked_until = {ordered.place.seconds(-1)} where id = 2")
    row = ordered.replica().claim()[0]
    assert (row.id, row.attempt, row.expired) == (2, 2, True)


@leases
def test_a_row_that_cannot_be_claimed_keeps_its_strand_alone_waiting(
    ordered: Ordered, caplog: pytest.LogCaptureFixture
) -> None:
    """D3, D4, C92: refused or swallowed by a trigger; it is named once, and none of its group or key passes it."""
    ordered.create()
    ordered.fill("a", "a", "b", "b", "c", "d", "d")
    if ordered.place.dialect == "mariadb":
        refuse(ordered.place, "update", "old.id = 1")
        swallow = (
            "if(old.id = 7, old.locked_until, new.locked_until), new.attempt = if(old.id = 7, old.attempt, new.attempt)"
        )
        ordered.run(f"create trigger no before update on q for each row set new.locked_until = {swallow}")
    else:
        body = "if old.id = 1 then raise 'not me'; elsif old.id = 7 then return null; end if; return new;"
        ordered.run(f"create function no() returns trigger language plpgsql as $$ begin {body} end $$")
        ordered.run("create trigger no before update on q for each row execute function no()")
    replica = ordered.replica()
    taken: list[Any] = []
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            for row in replica.claim():
                taken.append(row.id)
                assert replica.end(Verb.ACK, row)
    assert sorted(taken) == [3, 4, 5, 6]
    named = sorted(record.getMessage() for record in caplog.records)
    assert [text.split(":")[0] for text in named] == ["q row 1", "q row 7"]
    assert ordered.run("select id, attempt from q order by id") == [(1, None), (2, None), (7, None)]


@pytest.mark.parametrize("ordered", ["postgres lease"], indirect=True)
def test_rows_that_are_claimed_one_by_one_are_delivered_though_the_next_cannot_be_for_now(ordered: Ordered) -> None:
    """D3, C11: each has been committed by then; the claim ends early, and only one without any raises."""
    ordered.create()
    ordered.fill("a", "b", "c")
    raises = "if old.id = 1 then raise 'not me'; elsif old.id = 3 then raise sqlstate '40P01'; end if; return new;"
    ordered.run(f"create function no() returns trigger language plpgsql as $$ begin {raises} end $$")
    ordered.run("create trigger no before update on q for each row execute function no()")
    replica = ordered.replica()
    assert replica.ids() == [2]
    with pytest.raises(Conflict):
        replica.claim()


@pytest.mark.parametrize("ordered", ["postgres row lock"], indirect=True)  # on MariaDB a guard outlives the failure
def test_a_row_is_lost_where_another_has_its_group_since_its_settlement_failed(ordered: Ordered) -> None:
    """D3, E1, R5: the failure ended the transaction that had the guard; where nobody has it, it is got again."""
    ordered.create()
    ordered.run("insert into q (id, strand) values (2, 'a'), (3, 'b')")
    body = "begin raise 'no such luck'; end"
    ordered.run(f"create function refuse() returns trigger language plpgsql as $$ {body} $$")
    ordered.run("create trigger no before delete on q for each row execute function refuse()")
    first, second = ordered.replica(), ordered.replica()
    rows = first.claim()
    connections = dict(first.held)
    for row in rows:
        with pytest.raises(StatementFailed):
            first.end(Verb.ACK, row)
    ordered.run("insert into q (id, strand) values (1, 'a')")
    (other,) = second.claim(1)
    assert other.id == 1
    first.held, first.idle = connections, []
    assert [first.end(Verb.RETRY, row) for row in rows] == [False, True]
    assert second.end(Verb.RELEASE, other, attempt=0)
    assert ordered.run("select id, attempt from q order by id") == [(1, None), (2, None), (3, 1)]
    free = "select count(*) from pg_locks where locktype = 'advisory'"
    assert ordered.run(free) == [(0,)]


@forms
def test_bodies_and_isolation_are_what_they_are_without_an_order(ordered: Ordered) -> None:
    """A3, B7: rows of the queue's own SELECT, at whatever isolation; whole rows where there is no payload."""
    ordered.create()
    ordered.fill("a", "b")
    own = ordered.replica(fetch="select id, concat(strand, '!') as said from q", isolation="repeatable read")
    (row,) = own.claim(1)
    assert row.body == {"id": 1, "said": "a!"}
    whole = ordered.replica(payload=None)
    (row,) = whole.claim()
    assert (row.body["strand"], row.body["attempt"]) == ("b", 1)


@forms
@pytest.mark.parametrize("kind", ["json", "double precision", "other"])
def test_a_column_whose_values_cannot_be_found_again_is_refused(ordered: Ordered, kind: str) -> None:
    """A5, R16: at start, with the column, its type and the way out."""
    others = {"postgres": "integer[]", "mariadb": "enum('a', 'b')"}
    ordered.create(others[ordered.place.dialect] if kind == "other" else kind)
    with pytest.raises(ShardrunError, match=r"column strand \(role \w+\) is .*, whose (equal )?values may"):
        ordered.replica()


def read_rows(plan: dict[str, Any], table: str) -> float:
    """Count the rows that a plan's scans of a table have read; a scan of the whole table fails."""
    assert plan["Node Type"] != "Seq Scan" or plan.get("Relation Name") != table
    read = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0) + plan["Actual Rows"]
    own = read * plan["Actual Loops"] if plan.get("Relation Name") == table else 0.0
    return float(own + sum(read_rows(each, table) for each in plan.get("Plans", [])))


@pytest.mark.parametrize("ordered", FORMS[:3], indirect=True)
@pytest.mark.parametrize(("strands", "rows", "pages"), [(2, 12, 60), (2000, 150, 1600)])
def test_a_look_reads_a_few_rows_of_each_strand_by_the_index_that_ddl_prints(
    ordered: Ordered, strands: int, rows: int, pages: int
) -> None:
    """A7, H3: of 20,000 rows in long strands, and in many; also where most are put off, and before any statistics."""
    ordered.create()
    ordered.run(
        "insert into q (strand, attempt, retry_after) select 's' || i % ?, nullif(i % 2, 1), "
        "case when i > 10000 then now() + interval '1 hour' end from generate_series(1, 20000) as i",
        strands,
    )
    replica = ordered.replica()
    database, connection, store = ordered.place.database, replica.idle[0], cast(Any, replica.store)
    (warning,) = database.warnings(connection, replica.subscription)
    assert "no index serves the claim" in warning
    ordered.run(warning[warning.index("create index") :])
    assert database.warnings(connection, replica.subscription) == []
    looked = store._line
    values = looked.values([1, 2], [3], after="s", visits=64, strands="{s0,s1}", limit=1, most=4)
    for statement in (looked.next, looked.these, looked.choose):
        ((explained,),) = connection.execute(
            f"explain (analyze, buffers, format json) {statement.text}", values
        ).fetchall()
        plan = explained[0]["Plan"]
        assert read_rows(plan, "q") < rows
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < pages
