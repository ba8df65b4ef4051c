"""What a child's transactions lock on MariaDB, for how long they wait there, and what a settlement finds written already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardrun.db.mysql import taking as mysql
from shardrun.db.store import Settlement, Verb
from shardrun.db.taking import Fate
from shardrun.errors import Conflict
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual
from tests.store.test_offers import Offering

PATIENCE = 0.0


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


def meanwhile(connection: Any, act: Callable[[], object]) -> None:
    """Do something before a connection commits."""
    commit = connection.commit

    def late() -> None:
        act()
        commit()

    connection.commit = late


def test_a_taken_row_locks_no_gap_beside_it_in_a_session_that_would(place: Place) -> None:
    """R10: rows that sort just before it are inserted by others, while it is taken and while its fate is looked at."""
    place.create("q", n="key", uid="char(36) not null unique", locked_until="time")
    place.run("insert into q (uid) values ('b'), ('m'), ('x')")
    holder = Holder(place, Queue("q", id="uid", locked_until="locked_until"), transactional=True)
    row = {one.id: one for one in holder.claim()}["m"]
    taking = place.database.taking(holder.store.layout)
    child, other = place.child(), place.child()
    child.execute("set session transaction isolation level repeatable read")
    other.execute("set innodb_lock_wait_timeout = 0")
    assert taking.take(child, row.id, row.token, PATIENCE)
    other.execute("insert into q (uid) values ('l')")
    other.commit()
    taking.abandon(child)
    meanwhile(child, lambda: other.execute("insert into q (uid) values ('l2')"))
    assert taking.fate(child, row.id, row.token) is Fate.HELD


def test_a_childs_look_ends_before_the_sessions_own_patience(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: whoever keeps the row is waited for a few seconds; the session's own settings are as they were, also after it."""
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual(), transactional=True)
    (row,) = holder.claim()
    taking = place.database.taking(holder.store.layout)
    other, child = place.child(), place.child()
    monkeypatch.setattr(mysql, "LOOK_SECONDS", 1)
    child.execute("set innodb_lock_wait_timeout = 600")
    other.execute("select id from q for update")
    with pytest.raises(Conflict):
        taking.fate(child, row.id, row.token)
    assert child.execute("select @@innodb_lock_wait_timeout").fetchall() == ((600,),)


@pytest.mark.parametrize("form", ["lease", "row lock", "advisory"])
def test_a_row_that_the_handler_has_finished_itself_is_acked(place: Place, form: str) -> None:
    """B5, E1: an update that writes what stands there counts no rows in a handler's session; one that is gone is none."""
    place.form = form
    place.create_usual(processed_at="timestamp(0)")
    place.fill(2, attempt=1)
    desk: Any = (
        Holder(place, usual(processed_at="processed_at"), transactional=True)
        if form == "lease"
        else Offering(place, "row-{id}", roles={"processed_at": "processed_at"})
    )
    rows = desk.claim() if form == "lease" else desk.rows()
    taking = place.database.taking(desk.store.layout)
    child = place.child()
    child.execute("set timestamp = 1800000000")  # so that its clock stands still
    acts = {1: "update q set processed_at = utc_timestamp() where id = 1", 2: "delete from q where id = 2"}
    for row in rows:
        assert taking.take(child, row.id, row.token, PATIENCE)
        child.execute(acts[row.id])
        ack = Settlement(Verb.ACK, row.id, row.token, attempt=1)
        assert taking.settle(child, ack, keep=True) is (row.id == 1)
        taking.commit(child)
    assert place.run("select id, processed_at is not null from q") == [(1, 1)]
