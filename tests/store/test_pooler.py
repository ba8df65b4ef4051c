"""PgBouncer before the server: it is recognised, the lease form works through it, and what needs a session is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from shardrun.db.postgres import driver
from shardrun.db.postgres.pooler import NAMED
from shardrun.db.postgres.server import Postgres
from shardrun.db.store import Settlement, Verb
from shardrun.errors import Problems, Unsupported
from tests.pgbouncer import Pgbouncer
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual
from tests.store.test_locks import Holding, queue_of
from tests.waiting import eventually

Through = Callable[[str], Place]


@pytest.fixture
def pooler(pgbouncer: Pgbouncer, shared_dsn: str) -> Iterator[Pgbouncer]:
    """Give the pooler in transaction mode; it keeps no session of the server after the test."""
    yield pgbouncer
    pgbouncer.set(pool_mode="transaction", default_pool_size="8")
    pgbouncer.forget(shared_dsn)


@pytest.fixture
def pooled(open_place: Opener, pooler: Pgbouncer) -> Iterator[Place]:
    """Give an empty database, reached through the pooler."""
    direct = open_place("postgres")
    place = Place("postgres", pooler.dsn(direct.dsn))
    yield place
    place.close()


def problems(database: Any, connection: Any) -> list[Any]:
    """Ask for the statements of a queue in the advisory lock form."""
    queue = usual(without=["locked_until"], advisory_lock="q-{id}")
    try:
        database.store(connection, subscribe(queue))
    except Problems as found:
        return list(found.problems)
    return []


def test_the_lease_form_works_through_a_pooler_whose_sessions_change_hands(pooled: Place) -> None:
    """B4: claims, extensions and every settlement, with nothing prepared and nothing of ours left on shared sessions."""
    pooled.create_usual()
    pooled.fill(8, partition_key="a", payload="{}")
    first, second = (Holder(pooled, usual(), dead_letter="q_dead") for _ in range(2))
    rows = first.claim(6)
    with psycopg.connect(pooled.dsn) as busy:
        busy.execute("select 1")  # takes the session that was used last
        rows += second.claim(6)
    assert [row.id for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {row.token[-3:] for row in rows} == {"+00"}  # UTC, on a server whose own zone is another
    new = first.store.lease_end(first.connection)
    assert list(first.store.extend(first.connection, [1], rows[0].token, new).extended) == [1]
    verbs = [Verb.DROP, Verb.RETRY, Verb.SNOOZE, Verb.BURY, Verb.RELEASE, Verb.RECOUNT]
    others = [
        Settlement(verb, row.id, row.token, attempt=1, delay=60) for verb, row in zip(verbs, rows[1:], strict=False)
    ]
    assert first.settle(Settlement(Verb.ACK, 1, new), *others) == {1, 2, 3, 4, 5, 6, 7}
    assert second.one(Verb.ACK, rows[7])
    assert not second.one(Verb.ACK, rows[7])
    assert pooled.run("select id from q order by id") == [(3,), (4,), (6,), (7,)]
    assert pooled.run("select id from q_dead") == [(5,)]
    assert first.settle(Settlement(Verb.ACK, 1, new), repeated=True) == {1}


def test_sessions_are_left_as_another_client_wants_them(pooled: Place, pooler: Pgbouncer) -> None:
    """B4: the next client of a session finds its own settings and no prepared statement; ours have all of them."""
    asked = ["TimeZone", "lock_timeout", "enable_seqscan", "client_connection_check_interval"]
    look = "select " + ", ".join(f"current_setting('{name}')" for name in asked)
    with psycopg.connect(pooler.server_dsn(pooled.dsn)) as direct:
        unset = direct.execute(look).fetchone() or ()
    with psycopg.connect(pooled.dsn, autocommit=True) as plain:
        holder = Holder(pooled_with_row(pooled), usual())
        assert holder.ids() == [1]
        lent = pooled.child()
        for _ in range(7):
            lent.execute("select 1")
        lent.rollback()
        assert pooled.database.reset(lent)
        assert lent.prepare_threshold is None
        assert len(pooler.show("servers")) == 1  # one session has served all of them
        assert plain.execute(look).fetchone() == unset
        assert plain.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
        assert holder.connection.execute(look).fetchone() == ("UTC", *unset[1:])
    with driver.transaction(holder.connection):
        assert holder.connection.execute(look).fetchone() == ("UTC", "1s", "off", unset[3])


def pooled_with_row(place: Place) -> Place:
    """Create the usual table with one row."""
    place.create_usual()
    place.fill(1)
    return place


def test_what_needs_a_session_is_refused_in_transaction_mode_alone(pooled: Place, pooler: Pgbouncer) -> None:
    """A5: directly and in session mode nothing is refused; in transaction mode one sentence names the way out."""
    pooled.create_usual()
    direct = Postgres(pooler.server_dsn(pooled.dsn))
    connection = direct.connect("shardrun test")
    assert problems(direct, connection) == []
    connection.close()
    for size in ("1", "8"):  # a pool of one connection is enough
        pooler.set(default_pool_size=size)
        found = problems(Postgres(pooled.dsn), pooled.own)
        assert [type(one) for one in found] == [Unsupported]
        assert str(found[0]).startswith("queue q (tests/store/place.py:")
        assert str(found[0]).endswith(
            "): the advisory lock form needs a session of its own, and the DSN leads to PgBouncer (or a pooler like it) in "
            "transaction mode. Name the PostgreSQL server itself in the DSN, or set pool_mode=session for this database."
        )
    pooled.close()
    pooler.set(pool_mode="session")
    pooler.forget(pooled.dsn)
    again = Place("postgres", pooled.dsn)
    again.fill(1, partition_key="a")
    assert problems(again.database, again.own) == []
    first, second = (Holding(again, queue_of("advisory")) for _ in range(2))
    row = first.taken()
    assert second.claim() is None
    assert first.end(Verb.ACK, row)
    assert again.run("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
    again.close()


def test_a_pooler_without_transactions_is_refused(pooled: Place, pooler: Pgbouncer) -> None:
    """A5: in statement mode no form can work."""
    pooler.set(pool_mode="statement")
    with pytest.raises(Unsupported, match=r"^PostgreSQL \d.* is PgBouncer with pool_mode=statement, .* in the DSN\.$"):
        Postgres(pooled.dsn).connect("shardrun check")


def test_the_row_lock_form_and_transactions_of_a_child_work_through_a_pooler(pooled: Place, pooler: Pgbouncer) -> None:
    """B1, B4, R3: they need one transaction at a time, and a pooler leaves them the session that long."""
    pooler.set(default_pool_size="3")
    pooled.create_usual()
    pooled.fill(3)
    first, second = (Holding(pooled, queue_of("row lock")) for _ in range(2))
    rows = first.taken(), second.taken()
    assert [row.id for row in rows] == [1, 2]
    level = "show transaction_isolation"
    assert first.connection.execute(level).fetchone() == ("read committed",)
    assert first.connection.execute("show lock_timeout").fetchone() == ("1s",)
    assert first.end(Verb.RETRY, rows[0], reason="no", delay=60.0)
    assert second.end(Verb.ACK, rows[1])
    lease = Holder(pooled, usual())
    row = lease.claim()[0]
    taking, lent = pooled.database.taking(lease.store.layout), pooled.child()
    assert taking.take(lent, row.id, row.token, 1.0)
    assert taking.settle(lent, Settlement(Verb.ACK, row.id, row.token), keep=True)
    taking.commit(lent)
    assert pooled.run("select id, last_error from q") == [(1, "no")]


def test_a_dead_childs_statement_is_ended_and_no_other_clients(pooled: Place, pooler: Pgbouncer) -> None:
    """R4: the child's session is the pooler's, and may be another client's when its child is dead."""
    pooled.create_usual()
    pooled.fill(1)
    dead, other = pooled.database.connect_child("shardrun child 3"), pooled.database.connect_child("shardrun child 4")
    session = pooled.database.session(dead) or ""
    assert session == f"{NAMED}shardrun child 3"
    dead.execute("select * from q for update")
    dead.pgconn.send_query(b"select pg_sleep(60)")
    other.execute("select pg_backend_pid()")
    asleep = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
    eventually(lambda: pooled.run(asleep) == [(1,)])
    dead.pgconn.finish()
    pooled.database.end_sessions(pooled.own, [session], "shardrun child 3")
    assert pooled.run(asleep) == [(0,)]
    assert Holder(pooled, usual()).ids() == [1]
    other.execute("select 1")  # its transaction goes on
    other.close()
