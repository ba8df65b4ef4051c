"""The forms in which a connection holds the row: claims, every ending, and what another connection sees meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from shardrun.db.locks import LockStore
from shardrun.db.store import Backlog, Claimed, Connection, Settlement, Verb
from shardrun.errors import ConnectionLost, ShardrunError, StatementFailed
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Place, subscribe, usual

KEY = "accounts-{partition_key}"


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest, open_place: Opener) -> Place:
    """Give an empty database on each server in turn."""
    return open_place(request.param)


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty database on PostgreSQL, for what others do otherwise or not at all."""
    return open_place("postgres")


class Holding:
    """One connection of a replica, and the statements of a subscription, prepared."""

    def __init__(self, place: Place, queue: Queue[Any], **settings: Any) -> None:
        self.place = place
        self.connection = place.connect()
        self.store = cast(LockStore, place.database.store(self.connection, subscribe(queue, **settings)))
        self.store.prepare(self.connection)

    def claim(self, full_keys: Sequence[Any] = ()) -> Claimed | None:
        """Claim a row, which this connection then holds."""
        rows = self.store.claim(self.connection, 1, full_keys)
        return rows[0] if rows else None

    def taken(self) -> Claimed:
        """Claim a row that must be there."""
        row = self.claim()
        assert row is not None
        return row

    def end(self, verb: Verb, row: Claimed, **how: Any) -> bool:
        """Settle the row; tells whether it took effect."""
        how = {"attempt": row.attempt, **how}
        return self.store.settle(self.connection, [Settlement(verb, row.id, "", **how)]) == {row.id}


def queue_of(form: str, without: Sequence[str] = (), **more: Any) -> Queue[Any]:
    """Declare a queue of a form over the usual table."""
    more |= {"advisory_lock": KEY} if form == "advisory" else {}
    return usual(without=["locked_until", *without], **more)


FORMS = pytest.mark.parametrize("form", ["row lock", "advisory"])


def seconds_left(place: Place) -> str:
    """Write how many whole seconds a row is still not due."""
    if place.dialect == "mariadb":
        return "round(timestampdiff(microsecond, utc_timestamp(6), retry_after) / 1e6)"
    return "round(extract(epoch from retry_after - clock_timestamp()))::int"


def end_session(place: Place, connection: Connection) -> None:
    """End a server's session and wait until it is gone."""
    session = str(place.database.session(connection))
    place.database.end_sessions(place.own, [session], "a test")


def refuse(place: Place, act: str, when: str) -> None:
    """Have the server refuse to delete, or to update, some rows."""
    if place.dialect == "mariadb":
        says = f"if {when} then signal sqlstate '45000' set message_text = 'no such luck'; end if"
        place.run(f"create trigger no_{act} before {act} on q for each row {says}")
        return
    place.run(
        "create or replace function refuse() returns trigger language plpgsql as $$ begin raise 'no such luck'; end $$"
    )
    place.run(f"create trigger no_{act} before {act} on q for each row when ({when}) execute function refuse()")


def keyed(place: Place, *keys: str | None, **values: Any) -> None:
    """Insert a row for each key."""
    for key in keys:
        place.fill(1, partition_key=key, **values)


@FORMS
def test_rows_are_claimed_one_by_one_in_claim_order_and_held_by_their_connections(server: Place, form: str) -> None:
    """B1, B4, D2: priority, due time, id; what one connection holds no other takes, and no row that is not due."""
    server.create_usual()
    for priority, key in ((2, "a"), (1, "b"), (2, "c"), (1, "d")):
        server.fill(1, priority=priority, partition_key=key, payload='{"a": 1}')
    server.run(f"update q set retry_after = {server.seconds(-60)} where id = 2")
    server.run(f"update q set retry_after = {server.seconds(60)} where id = 3")
    holders = [Holding(server, queue_of(form)) for _ in range(4)]
    rows = [each.claim() for each in holders]
    assert [row and row.id for row in rows] == [4, 2, 1, None]
    lane_key = rows[0].lane_key if rows[0] else None  # the key itself, or its weights' hash
    assert rows[0] == Claimed(4, "", 1, False, "d", lane_key, None, None, '{"a": 1}')
    first = holders[0]
    assert first.store.backlog(first.connection, []) == Backlog(ready=True, later=1, awaited=False)


@FORMS
@pytest.mark.parametrize(
    ("verb", "how", "left"),
    [
        (Verb.ACK, {}, None),
        (Verb.DROP, {"reason": "no"}, None),
        (Verb.RETRY, {"reason": "ValueError: no"}, (3, None, "ValueError: no")),
        (Verb.RETRY, {"delay": 60.0}, (3, 60, None)),
        (Verb.SNOOZE, {"delay": 60.0, "attempt": 2}, (2, 60, None)),
        (Verb.RELEASE, {"attempt": 2}, (2, None, None)),
    ],
)
def test_a_settlement_writes_what_its_verb_says_and_lets_go(
    server: Place, form: str, verb: Verb, how: dict[str, Any], left: tuple[Any, ...] | None
) -> None:
    """E1: ack and drop delete, retry counts, snooze and release do not; the row and its key are free at once."""
    server.create_usual()
    keyed(server, "a", attempt=2)
    holder, other = (Holding(server, queue_of(form)) for _ in range(2))
    row = holder.taken()
    assert (row.attempt, other.claim()) == (3, None)
    assert holder.end(verb, row, **how)
    assert server.run(f"select attempt, {seconds_left(server)}, last_error from q") == ([left] if left else [])
    keyed(server, "a")
    server.run("update q set retry_after = null where id = 1")
    assert other.taken().id == (1 if left else 2)


@FORMS
def test_finished_rows_that_stay_keep_their_count_and_the_reason_of_a_drop(server: Place, form: str) -> None:
    """E1: with a `processed_at` role a finished row is marked, not deleted."""
    server.create_usual(processed_at="time")
    keyed(server, "a", "b")
    holder = Holding(server, queue_of(form, processed_at="processed_at"))
    assert holder.end(Verb.ACK, holder.taken())
    assert holder.end(Verb.DROP, holder.taken(), reason="not wanted")
    rows = server.run("select attempt, last_error, processed_at is null from q order by id")
    assert rows == [(1, None, False), (1, "not wanted", False)]
    assert holder.claim() is None


@FORMS
def test_dead_letters_go_to_their_table_or_group_with_their_count(server: Place, form: str) -> None:
    """E3: moved in one transaction, with the reason."""
    server.create_usual(without=["locked_until"], group="text")
    keyed(server, "a", "b", group="mails", attempt=4)
    to_table = Holding(server, queue_of(form, group="group"), dead_letter="q_dead", group="mails")
    to_group = Holding(server, queue_of(form, group="group"), dead_letter_group="dead", group="mails")
    assert to_table.end(Verb.BURY, to_table.taken(), reason="killed by signal 9")
    assert to_group.end(Verb.BURY, to_group.taken(), reason="ValueError: no")
    assert server.run("select id, attempt, last_error from q_dead") == [(1, 5, "killed by signal 9")]
    assert server.run('select id, attempt, "group", last_error from q') == [(2, 5, "dead", "ValueError: no")]
    assert to_table.claim() is None


@FORMS
def test_a_crash_is_counted_while_the_row_stays_held(server: Place, form: str) -> None:
    """R8, H4: a RECOUNT keeps the row, and whatever ends it later writes the count and the cause with it."""
    server.create_usual()
    keyed(server, "a")
    holder, other = (Holding(server, queue_of(form)) for _ in range(2))
    row = holder.taken()
    assert holder.end(Verb.RECOUNT, row, attempt=2, reason="killed by signal 9")
    assert other.claim() is None
    assert holder.end(Verb.RELEASE, row, attempt=1)
    assert server.run("select attempt, last_error from q") == [(1, "killed by signal 9")]
    assert other.taken().attempt == 2


@FORMS
def test_the_row_of_a_session_that_is_killed_is_free_at_once_and_a_late_settlement_finds_no_connection(
    server: Place, form: str
) -> None:
    """B1, B4: nothing is held by a session that is gone, and nothing can be written on it."""
    server.create_usual()
    keyed(server, "a")
    holder, other = (Holding(server, queue_of(form)) for _ in range(2))
    row = holder.taken()
    assert server.database.is_alive(holder.connection)
    end_session(server, holder.connection)
    assert not server.database.is_alive(holder.connection)
    assert other.taken().id == 1
    with pytest.raises(ConnectionLost):
        holder.end(Verb.ACK, row)
    assert server.run("select count(*) from q") == [(1,)]


@FORMS
def test_full_keys_are_left_out(server: Place, form: str) -> None:
    """D1, R16: rows whose lanes are full are not claimed; rows without a key always are."""
    server.create_usual()
    keyed(server, "a", "b", None)
    holders = [Holding(server, queue_of(form), workers_by_key=4) for _ in range(3)]
    other = Holding(server, queue_of(form), workers_by_key=4)
    full = other.taken().lane_key
    other.store.let_go(other.connection)
    rows = [each.claim([full]) for each in holders]
    assert [row and (row.id, row.lane_key is None) for row in rows] == [(2, False), (3, True), None]


@FORMS
def test_a_settlement_that_a_trigger_refuses_leaves_the_row_to_be_settled_otherwise(server: Place, form: str) -> None:
    """E1: after a refused ack the row is written as failed, by whom it is held; a row that can never be written is left."""
    server.create_usual()
    keyed(server, "a")
    refuse(server, "delete", "true")
    refuse(server, "update", "new.last_error = 'sealed'")
    holder = Holding(server, queue_of(form))
    row = holder.taken()
    with pytest.raises(StatementFailed, match="no such luck"):
        holder.end(Verb.ACK, row)
    assert holder.end(Verb.RETRY, row, reason="no such luck")
    assert server.run("select attempt, last_error from q") == [(1, "no such luck")]
    again = holder.taken()
    with pytest.raises(StatementFailed):
        holder.end(Verb.RETRY, again, reason="sealed")
    holder.store.let_go(holder.connection)
    assert holder.claim() is None


def test_a_row_that_another_took_after_a_refused_settlement_is_lost(server: Place) -> None:
    """B1: the error has ended the transaction, and the row is only settled where it can be locked again."""
    server.create_usual()
    keyed(server, "a")
    refuse(server, "delete", "true")
    holder, other = (Holding(server, queue_of("row lock")) for _ in range(2))
    row = holder.taken()
    with pytest.raises(StatementFailed):
        holder.end(Verb.ACK, row)
    assert other.taken().id == 1
    assert not holder.end(Verb.RETRY, row)


def test_handlers_may_insert_rows_that_refer_to_a_locked_row(place: Place) -> None:
    """B1: FOR NO KEY UPDATE lets foreign keys be checked."""
    place.create_usual()
    place.run("create table child (q_id bigint references q (id))")
    keyed(place, "a")
    holder = Holding(place, queue_of("row lock"))
    holder.taken()
    with place.child() as connection:
        connection.execute("set lock_timeout = '2s'")
        connection.execute("insert into child values (1)")
    assert place.run("select count(*) from child") == [(1,)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_row_lock_holds_its_row_at_the_queues_isolation(place: Place, isolation: str) -> None:
    """B7: the transaction that holds the row runs at the level that the queue asks for."""
    place.create_usual()
    keyed(place, "a")
    holder = Holding(place, queue_of("row lock", isolation=isolation))
    row = holder.taken()
    assert holder.connection.execute("show transaction_isolation").fetchone() == (isolation,)
    assert holder.end(Verb.ACK, row)


@pytest.mark.parametrize("fetch", [None, "select id, payload from q"])
def test_a_lease_is_claimed_at_the_queues_isolation(place: Place, fetch: str | None) -> None:
    """B7: so that a claim reads as the user's own statements do."""
    place.create_usual()
    keyed(place, "a", last_error="")
    level = "new.last_error = current_setting('transaction_isolation'); return new;"
    place.run(f"create function note() returns trigger language plpgsql as $$ begin {level} end $$")
    place.run("create trigger note before update on q for each row execute function note()")
    holder = Holding(place, usual(isolation="repeatable read", fetch=fetch))
    assert holder.taken().id == 1
    assert place.run("select last_error from q") == [("repeatable read",)]


def test_rows_of_one_key_go_one_at_a_time_over_tables_connections_and_other_programs(place: Place) -> None:
    """B4, R11: the lock is on the key's text, which other programs lock alike; busy keys are paged past."""
    place.create_usual()
    place.create_usual("other")
    keyed(place, *["a"] * 300, *["b"] * 40, "c")
    place.fill(1, "other", partition_key="a")
    first, second, third = (Holding(place, queue_of("advisory")) for _ in range(3))
    beside = Holding(place, queue_of("advisory", table="other"))
    place.run("select pg_advisory_lock(hashtextextended('accounts-b', 0))")
    row = first.taken()
    assert (row.id, second.taken().id, third.claim(), beside.claim()) == (1, 341, None, None)
    assert first.end(Verb.ACK, row)
    assert beside.taken().id == 1
    assert first.claim() is None
    place.run("select pg_advisory_unlock_all()")
    assert first.taken().id == 301


def test_a_key_is_locked_once_and_let_go_of_wholly(place: Place) -> None:
    """B4: session locks count how often they were taken; one that was taken twice would outlive its row."""
    place.create_usual()
    keyed(place, "a", "a", "b")
    holder = Holding(place, queue_of("advisory"))
    locks = "select count(*) from pg_locks where locktype = 'advisory' and granted"
    row = holder.taken()
    assert place.run(locks) == [(1,)]
    holder.end(Verb.RETRY, row)
    assert place.run(locks) == [(0,)]
    holder.end(Verb.ACK, holder.taken())
    holder.taken()
    holder.store.let_go(holder.connection)
    assert place.run(locks) == [(0,)]


def test_a_row_that_changed_before_its_key_was_locked_is_read_again(server: Place) -> None:
    """R11: what was read before the lock may be settled by then, or have another key."""
    server.create_usual()
    keyed(server, "a", "b")
    holder = Holding(server, queue_of("advisory"))
    store: Any = holder.store
    take_row, meddled = store._take_row, [False]

    def meddle(connection: Any, id: Any, key: str) -> Any:
        if not meddled[0]:
            meddled[0] = True
            server.run("update q set partition_key = 'z' where id = 1")
        return take_row(connection, id, key)

    store._take_row = meddle
    assert holder.taken().id == 2
    assert Holding(server, queue_of("advisory")).taken().id == 1


def test_a_key_has_any_columns_and_any_text_in_it(place: Place) -> None:
    """B4, A1: values as the database writes them, nothing for NULL; quotes, percent signs and backslashes are text."""
    place.create_usual(without=["locked_until"], **{"A %(id)s": "numeric", "made": "time"})
    place.run("""insert into q ("A %(id)s", made) values (1.50, '2026-01-02 03:04:05+00')""")
    template = "it's 100% \\ {{x}} {A %(id)s}|{made}|{priority}"
    holder = Holding(place, usual(without=["locked_until"], advisory_lock=template))
    holder.taken()
    key = "it's 100% \\ {x} 1.50|2026-01-02 03:04:05+00|"
    assert place.run("select pg_try_advisory_lock(hashtextextended(?, 0))", key) == [(False,)]


def test_an_unknown_column_of_the_key_is_named(server: Place) -> None:
    """A5: the template is checked against the table at start."""
    server.create_usual()
    with pytest.raises(
        ShardrunError, match=r"table q has no column acount \(advisory_lock='k-\{acount\}'\)\. It has: id"
    ):
        Holding(server, usual(without=["locked_until"], advisory_lock="k-{acount}"))


def test_a_handler_may_take_whole_rows_and_rows_of_its_own_select(server: Place) -> None:
    """A2, A3: bodies are what they are in the other forms; the count in a whole row includes this attempt."""
    server.create_usual(without=["locked_until"])
    keyed(server, "a", "b", attempt=1)
    whole, own = (
        Holding(server, queue_of(form, without=["payload"], **more))
        for form, more in (("row lock", {}), ("advisory", {"fetch": "select id, attempt * 10 as tenfold from q"}))
    )
    row = whole.taken()
    assert (row.body["attempt"], row.body["partition_key"]) == (2, "a")
    assert whole.end(Verb.RELEASE, row, attempt=1)
    fetched = own.taken()
    assert (fetched.id, fetched.attempt, fetched.body) == (1, 2, {"id": 1, "tenfold": 20})
    assert own.end(Verb.ACK, fetched)
    assert server.run("select id from q") == [(2,)]
