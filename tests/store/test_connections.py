"""Connections: the coordinator's own, those lent to handlers, and the sessions that a dead child leaves behind."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pymysql
import pytest

from shardrun.db.connect import database
from shardrun.db.store import Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost
from tests.servers import Postgres
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


def test_a_lent_block_commits_or_rolls_back(place: Place) -> None:
    """F1: what the block wrote is kept when it ends well, and undone when it raises."""
    place.create_usual()
    lent = place.child()
    with place.database.transaction(lent):
        lent.cursor().execute("insert into q (priority) values (1)")
    with pytest.raises(ZeroDivisionError), place.database.transaction(lent):
        print(lent.execute("insert into q (priority) values (2)").rowcount / 0)
    assert place.run("select priority from q") == [(1,)]
    assert place.database.is_usable(lent)


def test_what_a_handler_set_on_a_lent_connection_is_put_back(place: Place) -> None:
    """F1: the next borrower finds the driver's defaults and no open transaction."""
    place.create_usual()
    lent = place.child()
    lent.execute("insert into q (priority) values (1)")
    if place.dialect == "mariadb":
        lent.cursorclass = pymysql.cursors.DictCursor
    else:
        lent.row_factory = (
            psycopg.rows.dict_row if place.dialect == "postgres" else (lambda cursor, row: dict(enumerate(row)))
        )
    assert place.database.reset(lent)
    if place.dialect == "postgres":
        lent.autocommit = True
        assert place.database.reset(lent)
        assert not lent.autocommit
    assert lent.execute("select count(*) from q").fetchone() == (0,)


def test_a_closed_connection_is_neither_usable_nor_kept(place: Place) -> None:
    """F4: a handler that closed what it was lent costs one connection."""
    lent = place.child()
    lent.close()
    assert not place.database.is_usable(lent)
    assert not place.database.reset(lent)
    place.database.close(lent)


def test_a_closed_connection_reads_as_lost(place: Place) -> None:
    """F4: what was under way is in doubt."""
    place.create_usual()
    holder = Holder(place, usual())
    holder.connection.close()
    with pytest.raises(ConnectionLost):
        holder.claim()
    with pytest.raises(ConnectionLost):
        holder.settle(Settlement(Verb.ACK, 1, "2026-01-01"), Settlement(Verb.RETRY, 2, "2026-01-01"))


def test_an_ended_session_reads_as_lost(open_place: Opener, postgres: Postgres) -> None:
    """F4: in a batch of one statement and in one of several."""
    place = open_place("postgres")
    place.create_usual()
    place.fill(2)
    for batch in (1, 2):
        holder = Holder(place, usual())
        with postgres.admin() as admin:
            admin.execute(
                "select pg_terminate_backend(%s, 5000)",
                ((place.database.session(holder.connection) or "").partition(":")[0],),
            )
        settlements = [Settlement(Verb.RETRY, number, "2026-01-01") for number in range(batch)]
        with pytest.raises(ConnectionLost):
            holder.settle(*settlements)
        assert not place.database.is_usable(holder.connection)


def test_a_dead_childs_sessions_are_ended_with_what_they_run(open_place: Opener, postgres: Postgres) -> None:
    """R4: also those that wait inside the server, or took another name; a session that came later keeps its life."""
    place = open_place("postgres")
    place.create_usual()
    place.fill(1)
    dead = place.database.connect_child("shardrun test child 3")
    other = place.database.connect_child("shardrun test child 4")
    session, later = place.database.session(dead) or "", place.database.session(other) or ""
    dead.execute("set application_name = 'mine'")
    dead.execute("select * from q for update")
    before = f"{later.partition(':')[0]}:1"  # the process number of `other`, of one that was there before it
    place.database.end_sessions(place.own, [session, before], "shardrun test child 3")
    assert not place.database.is_usable(dead)
    assert [one.application_name for one in postgres.sessions(place.dsn) if "child" in one.application_name] == [
        "shardrun test child 4"
    ]
    assert Holder(place, usual()).ids() == [1]
    dead.close()
    other.close()


def test_a_long_part_is_cut_where_replicas_are_told_apart_by_its_end(postgres: Postgres) -> None:
    """F3: the server keeps 63 bytes of a name."""
    dsn = postgres.new_database()
    target = database(dsn)
    parts = [f"shardrun {'very-long-host-name' * 4}-4127 child {number}" for number in (1, 2)]
    connections = [target.connect_child(part) for part in parts]
    names = {one.application_name for one in postgres.sessions(dsn)}
    assert len(names) == 2
    assert all(len(name) <= 63 and name.startswith("shardrun very-long") for name in names)
    ours = target.connect("shardrun test")
    target.end_sessions(ours, [target.session(connections[0]) or ""], parts[0])
    assert [target.is_usable(connection) for connection in connections] == [False, True]
    for connection in [ours, *connections]:
        target.close(connection)


def test_a_childs_connection_notices_on_the_server_that_the_child_is_gone(open_place: Opener) -> None:
    """R4: PostgreSQL 14 and newer look for the client while a statement runs."""
    place = open_place("postgres")
    lent = place.child()
    assert lent.execute("show client_connection_check_interval").fetchone() == ("500ms",)
    assert lent.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_describe_and_limit(place: Place) -> None:
    """F3: the database is named without a secret, and says how many connections it takes."""
    name = place.database.describe()
    assert name.startswith({"postgres": "PostgreSQL 1", "sqlite": "SQLite 3.", "mariadb": "MariaDB 1"}[place.dialect])
    assert "never-shown" not in name
    limit = place.database.connection_limit(place.own)
    assert limit is None if place.dialect == "sqlite" else limit is not None and limit[0] > limit[1] > 0


def test_a_file_that_another_writes_to_is_a_conflict_and_not_an_error(tmp_path: Path) -> None:
    """C5: "database is locked" is a passing matter."""
    place = Place("sqlite", f"sqlite:///{tmp_path}/q.db?timeout=0")
    place.create_usual()
    holder = Holder(place, usual())
    place.own.execute("begin immediate")
    with pytest.raises(Conflict):
        holder.claim()
    place.own.execute("rollback")
    assert holder.ids() == []
    place.close()


def test_a_lent_sqlite_connection_takes_the_write_lock_at_its_first_write(open_place: Opener) -> None:
    """C5: BEGIN IMMEDIATE; a block that only reads, or computes first, keeps no one waiting."""
    place = open_place("sqlite")
    place.create_usual()
    lent = place.child()
    with place.database.transaction(lent):
        lent.execute("select * from q").fetchall()
        place.fill(1)
        lent.execute("update q set priority = 3")
        assert lent.in_transaction
    assert place.run("select priority from q") == [(3,)]


def test_new_files_keep_a_write_ahead_log_and_old_ones_their_own(tmp_path: Path) -> None:
    """C5: an existing file is left as its owner wants it."""
    import sqlite3

    new = Place("sqlite", f"sqlite:///{tmp_path}/new.db")
    assert new.run("pragma journal_mode") == [("wal",)]
    new.close()
    old = sqlite3.connect(tmp_path / "old.db")
    old.execute("create table t (a)")
    old.close()
    kept = Place("sqlite", f"sqlite:///{tmp_path}/old.db")
    assert kept.run("pragma journal_mode") == [("delete",)]
    kept.close()


def test_plans_go_by_index_also_when_they_were_made_on_an_empty_table(open_place: Opener) -> None:
    """P5: a coordinator that starts on an empty table does not scan it when it is full."""
    place = open_place("postgres")
    place.create_usual()
    place.run("create index on q (priority, retry_after nulls first, id)")
    place.run("vacuum analyze q")
    holder = Holder(place, usual())
    for _ in range(8):
        holder.claim()
    place.run("insert into q (priority) select 1 from generate_series(1, 50000)")
    place.run("insert into q (priority) values (0)")
    statement = holder.connection._prepared._names  # what psycopg has prepared for the claim
    name = next(name for (text, _), name in statement.items() if b"with clock" in text)
    plan = "\n".join(row[0] for row in holder.connection.execute(f"explain execute {name.decode()} (5)"))
    assert "Index Scan using q_priority_retry_after_id_idx" in plan
    assert "Seq Scan" not in plan
