"""A child's side of transactional mode, in this process: rows taken, called and settled on real databases."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shardrun import DeadLetter, Delivery, Drop, Queue, Retry, Snooze
from shardrun.child.call import boot_time
from shardrun.child.lanes import Lane
from shardrun.child.pools import Pool
from shardrun.child.transactional import TransactionalCall
from shardrun.child.transactional_batch import TransactionalBatchCall
from shardrun.contrib.sqlalchemy import session
from shardrun.db.inserted import Written
from shardrun.db.taking import Fate, described, layout_of
from shardrun.errors import Conflict
from shardrun.policy.verbs import Verb
from shardrun.ring import words
from shardrun.ring.wire import Report
from shardrun.signature import plan
from tests.proxy import Proxy
from tests.servers import Postgres
from tests.store.place import Holder, Place, usual
from tests.waiting import eventually

DRIVERS = {"postgres": psycopg.Connection, "sqlite": sqlite3.Connection, "mariadb": pymysql.connections.Connection}
REFUSED = "the transaction of q row 1 is committed by shardrun when the handler returns; remove {}, or use "


LEASES = ["postgres lease", "sqlite lease", "mariadb lease"]
ON_SERVERS = [f"{dialect} {form}" for dialect in ("postgres", "mariadb") for form in ("row lock", "advisory")]


@pytest.fixture(params=[*LEASES, *ON_SERVERS, "sqlite advisory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give a database of each kind with a queue of 3 rows and a table that handlers write to, and a form for the queue."""
    yield from a_place(request, tmp_path)


def a_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give the database, and the form, that the fixture's parameter names."""
    dialect, _, form = request.param.partition(" ")
    if dialect == "sqlite":
        dsn = f"sqlite:///{tmp_path}/test.db"
    else:
        server = request.getfixturevalue(dialect)
        dsn = server.new_database() if dialect == "postgres" else server.url("mariadb", server.new_database())
    made = Place(dialect, dsn)
    made.form = form
    made.create_usual()
    made.create("effects", id="key", note="text")
    made.fill(3, payload="{}")
    yield made
    made.close()
    if dialect == "mariadb":
        server.drop_databases()


class Child:
    """A child as far as one transactional handler goes: its call, its pool, and the rows that were claimed for it."""

    def __init__(self, place: Place, handler: Callable[..., Any], dsn: str | None = None, **settings: Any) -> None:
        self.place = place
        queue = settings.pop("queue", None) or self.usual(place.form)
        queue.name = "q"
        queue.handler(transactional=True, **settings)(handler)
        (subscription,) = queue.subscriptions
        connection = place.connect()
        store = place.database.store(connection, subscription)
        self.claimed = {row.id: row for row in store.claim(connection, 3, ())}
        self.told: list[Written] = []
        self.sessions: list[str] = []
        self.pool = Pool(dsn or place.dsn, 1, "part", self.sessions.append, patience=1)
        description = json.loads(json.dumps(described(store.layout)))
        layout = layout_of(description, place.database.column_kind)
        assert layout == store.layout
        call_plan = plan(subscription, store.payload_kind)
        kind = TransactionalCall if subscription.batch is None else TransactionalBatchCall
        self.call = kind(subscription, call_plan, self.pool, lambda no, lane: False, description, self.told.append)
        self.taking = place.database.taking(layout)

    @staticmethod
    def usual(form: str, **more: Any) -> Queue[Any]:
        """Declare a queue of a form over the usual table."""
        if form == "lease":
            return usual(**more)
        return usual(without=["locked_until"], advisory_lock="row-{id}" if form == "advisory" else None, **more)

    def run(self, id: int = 1, *, token: str | None = None, seconds: float = 20, **more: Any) -> Report:
        """Hand over a row and return its report."""
        row = self.claimed[id]
        attempt, charged = more.get("attempt", row.attempt), more.get("charged", False)
        frame = (id, 0, id, attempt, boot_time() + seconds, None, None, None, row.body, token or row.token, charged)
        return Report(*self.call.run(frame, boot_time()))

    def fate(self, id: int = 1) -> Fate:
        """Ask what became of a row."""
        return self.taking.fate(self.place.own, id, self.claimed[id].token)

    def notes(self) -> list[str]:
        """Read what handlers have written and committed."""
        return [note for (note,) in self.place.run("select note from effects order by id")]

    def row(self, id: int = 1) -> tuple[Any, ...] | None:
        """Read a row's attempt and error, if it is there."""
        found = self.place.run("select attempt, last_error from q where id = ?", id)
        return found[0] if found else None

    def is_ours(self, id: int = 1) -> bool:
        """Tell whether nothing was settled: the row carries the token that it was handed with."""
        return eventually(lambda: self._known_fate(id)) is Fate.HELD

    def _known_fate(self, id: int) -> Fate | None:
        """Tell the fate, once the server has seen the end of a connection that was closed over the row's lock."""
        try:
            return self.fate(id)
        except Conflict:
            return None


@pytest.fixture
def serve(place: Place) -> Iterator[Callable[..., Child]]:
    """Give a function that makes a child for a handler."""
    made: list[Child] = []

    def make(handler: Callable[..., Any], **settings: Any) -> Child:
        made.append(Child(place, handler, **settings))
        return made[-1]

    yield make
    for child in made:
        child.pool.close()


Serve = Callable[..., Child]


def note(delivery: Delivery, text: str = "written") -> Any:
    """Write through the delivery's transaction, and give it."""
    tx = delivery.tx
    mark = "?" if isinstance(tx, sqlite3.Connection) else "%s"
    tx.cursor().execute(f"insert into effects (note) values ({mark})", (text,))
    return tx


def execute(tx: Any, text: str) -> None:
    """Run a statement in a handler."""
    tx.cursor().execute(text)


def test_what_was_written_commits_with_the_ack_and_is_told(serve: Serve, place: Place) -> None:
    """B5, G1: writes, inserts into a queue and the row's settlement in one transaction, on the driver's own connection."""
    inserts: Queue[Any] = usual()

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        tx = note(delivery)
        assert isinstance(tx, DRIVERS[place.dialect])
        inserts.insert(tx, payload={"more": 1})
        assert place.run("select count(*) from effects") == [(0,)]

    child = serve(handle)
    assert child.fate() is Fate.HELD
    assert child.run()[:2] == (1, words.ACK)
    assert child.notes() == ["written"]
    assert child.row() is None
    assert child.told == [{"q": {None}}]
    assert child.fate() is Fate.DONE
    assert place.run("select count(*) from q") == [(3,)]


ENDINGS: dict[str, tuple[Any, Verb | None, Fate, tuple[int, str | None] | None]] = {
    "drop": (Drop("no"), Verb.DROP, Fate.DONE, None),
    "retry": (Retry(), Verb.RETRY, Fate.FREE, (1, None)),
    "retry later": (Retry(60), Verb.RETRY, Fate.FREE, (1, None)),
    "snooze": (Snooze(60), Verb.SNOOZE, Fate.FREE, (0, None)),
    "dead letter": (DeadLetter("hopeless"), Verb.BURY, Fate.DEAD, None),
    "number": (42, Verb.RETRY, Fate.FREE, (1, "handle returned 42 (int)")),
    "raises": (ValueError("no"), Verb.RETRY, Fate.FREE, (1, "ValueError: no")),
    "exits": (SystemExit(3), Verb.RETRY, Fate.FREE, (1, "SystemExit: 3")),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_other_ending_undoes_the_writes_and_settles_the_row(serve: Serve, name: str) -> None:
    """B5, E1, E2: rolled back, then settled as in plain mode; a drop keeps what was written, as an ack does."""
    answer, verb, fate, row = ENDINGS[name]

    def handle(body: dict[str, Any], delivery: Delivery) -> Any:
        tx = note(delivery)
        usual().insert(tx, payload={})
        if isinstance(answer, BaseException):
            raise answer
        return answer

    child = serve(handle, max_attempts=3, dead_letter="q_dead")
    report = child.run()
    assert report.verb == (verb and verb.value)
    assert child.fate() is fate
    found = child.row()
    assert (found and found[0]) == (row and row[0])
    assert row is None or row[1] is None or (found and found[1].startswith(row[1]))
    assert child.notes() == (["written"] if name == "drop" else [])
    assert bool(child.told) is (name == "drop")
    assert child.run(2).code == report.code  # the connection serves on


def test_the_last_attempt_and_a_misfit_go_to_the_dead_letters(serve: Serve, place: Place) -> None:
    """A4, E3: a row that does not fit has no handler run; what was charged for another's death comes back (R7)."""

    def handle(body: list[int], delivery: Delivery) -> Retry:
        note(delivery)
        return Retry()

    child = serve(handle, max_attempts=2, dead_letter="q_dead")
    assert child.run(1).code == words.UNDECODABLE
    child.claimed = {id: row._replace(body="[]") for id, row in child.claimed.items()}
    assert child.run(2, attempt=2).verb == Verb.BURY.value
    if place.form == "lease":  # elsewhere the attempt that runs is not counted yet
        place.run("update q set attempt = 2 where id = 3")
    assert child.run(3, attempt=2, charged=True).verb == Verb.SNOOZE.value
    assert child.row(3) == (1, None)
    assert place.run("select id from q_dead order by id") == [(1,), (2,)]
    assert child.notes() == []


def test_a_row_that_is_not_ours_is_missed_and_nothing_runs(serve: Serve, place: Place) -> None:
    """R3: another token, a row that somebody has locked, a deadline that has passed: reported, and nothing was changed."""
    ran: list[int] = []
    child = serve(lambda body: ran.append(1))
    row = child.claimed[2]
    assert child.run(1, token="2001-01-01 00:00:00").code == words.MISSED
    other = place.child()
    execute(other, "update q set priority = 1 where id = 1")
    if place.dialect != "sqlite":  # where a write waits for 5 s, as every statement does
        assert child.run(1, seconds=0.3).code == words.MISSED
        assert child.run(2, seconds=0.3).code == words.ACK
    other.rollback()
    assert child.run(3).code == words.ACK
    assert len(ran) == len(child.claimed) - child.place.run("select count(*) from q")[0][0]
    assert child.is_ours(1)
    assert row.id == 2


@pytest.mark.parametrize("call", ["commit", "rollback", "close", "with"])
def test_the_driver_s_own_ways_to_end_the_transaction_are_refused(serve: Serve, call: str) -> None:
    """Contract 1, text 19: by a sentence, as a failed attempt; nothing was written, and the connection serves on."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        tx = note(delivery)
        if call == "with":
            with tx:
                pass
        getattr(tx, call)()

    child = serve(handle)
    report = child.run()
    told = REFUSED.format("`with delivery.tx`" if call == "with" else f".{call}()")
    assert (report.reason or "").startswith(f"RuntimeError: {told}")
    assert child.notes() == []
    assert child.row() is not None
    assert child.run(2).code == words.FAILED


def raw(text: str) -> Callable[[Any], None]:
    """Give what runs a statement."""
    return lambda tx: execute(tx, text)


def closed_below(tx: Any) -> None:
    """Close a connection as no library would."""
    DRIVERS_CLOSE[next(name for name, kind in DRIVERS.items() if isinstance(tx, kind))](tx)


DRIVERS_CLOSE: dict[str, Callable[[Any], None]] = {
    "postgres": lambda tx: tx.pgconn.finish(),
    "sqlite": lambda tx: sqlite3.Connection.close(tx),
    "mariadb": lambda tx: tx._force_close(),
}


def reset_by_library(tx: Any) -> None:
    """End a transaction as a library does that thinks the connection its own."""
    execute(tx, "rollback")
    execute(tx, "insert into effects (note) values ('after')")


@pytest.mark.parametrize("end", [raw("commit"), raw("rollback"), closed_below, reset_by_library])
def test_a_transaction_ended_behind_our_back_is_found(serve: Serve, end: Callable[[Any], None]) -> None:
    """B5: the row is not acked, what was written after is undone, and the coordinator settles the failed attempt."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        end(note(delivery))

    child = serve(handle)
    report = child.run()
    assert (report.code, report.verb) == (words.FAILED, None)
    assert child.is_ours()
    assert "after" not in child.notes()
    assert report.reason
    assert report.reason.startswith(("TransactionEnded: the delivery's transaction was ended", "ConnectionLost: "))


def test_a_commit_of_its_own_stays_and_is_said_even_where_the_answer_is_retry(serve: Serve) -> None:
    """B5: nothing can undo it; the reason names what happened."""

    def handle(body: dict[str, Any], delivery: Delivery) -> Retry:
        execute(note(delivery), "commit")
        return Retry()

    child = serve(handle)
    report = child.run()
    assert report.code == words.FAILED
    assert "a COMMIT or ROLLBACK of its own" in (report.reason or "")
    assert child.notes() == ["written"]


def test_a_row_that_its_own_handler_deletes_is_a_failed_attempt(serve: Serve) -> None:
    """B2, B5: a settlement that changes nothing commits nothing."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        execute(note(delivery), "delete from q where id = 1")

    child = serve(handle)
    report = child.run()
    assert (report.code, report.verb) == (words.FAILED, None)
    assert "changed or deleted inside its own transaction" in (report.reason or "")
    assert child.is_ours()
    assert child.notes() == []


def test_a_settlement_that_the_database_refuses_is_a_failed_attempt(serve: Serve, place: Place) -> None:
    """B5: an ack that a foreign key forbids, and on PostgreSQL a constraint that is checked at the commit."""
    place.run("create table refers (q bigint references q (id))") if place.dialect != "mariadb" else place.run(
        "create table refers (q bigint, foreign key (q) references q (id))"
    )
    place.run("insert into refers values (1)")

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        tx = note(delivery)
        if place.dialect == "sqlite" and delivery.id == 1:
            execute(
                tx,
                "create temp trigger refuse before delete on main.q when old.id = 1 begin select raise(abort, 'fk'); end",
            )
        if place.dialect == "postgres" and delivery.id == 2:
            execute(tx, "insert into late values (9)")

    if place.dialect == "postgres":
        place.run("create table late (q bigint references q (id) deferrable initially deferred)")
    child = serve(handle)
    report = child.run(1)
    assert (report.code, report.verb) == (words.FAILED, None)
    assert child.is_ours(1)
    if place.dialect == "postgres":
        late = child.run(2)
        assert (late.code, late.verb) == (words.FAILED, None)
        assert "late_q_fkey" in (late.reason or "")
        assert child.is_ours(2)
    assert child.notes() == []
    assert child.run(3).code == words.ACK


def test_an_error_that_the_handler_passed_over_keeps_postgresql_from_committing(serve: Serve, place: Place) -> None:
    """B5: a failed attempt with the way out; a savepoint of the handler's own (`with tx.transaction()`) is one."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        tx = note(delivery)
        if place.dialect == "postgres" and delivery.id == 2:
            with tx.transaction():
                execute(tx, "insert into effects (note) values ('inner')")
        try:
            if place.dialect == "postgres" and delivery.id == 2:
                with tx.transaction():
                    execute(tx, "select * from nowhere")
            else:
                execute(tx, "select * from nowhere")
        except Exception:
            pass

    child = serve(handle)
    report = child.run(1)
    if place.dialect == "postgres":
        assert (report.code, report.verb) == (words.FAILED, Verb.RETRY.value)
        assert "the handler passed over it" in (report.reason or "")
        assert child.run(2).code == words.ACK
        assert child.notes() == ["written", "inner"]
    else:
        assert report.code == words.ACK


def test_a_second_connection_needs_a_larger_pool(serve: Serve) -> None:
    """Contract 1, text 18: `delivery.connection()` beside `.tx`."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        with delivery.connection():
            pass

    report = serve(handle).run()
    assert "waited 1 s for a second connection; this child has 1" in (report.reason or "")
    assert report.verb == Verb.RETRY.value


class Base(DeclarativeBase):
    """Tables of the test."""


class Effect(Base):
    """What a handler writes through SQLAlchemy."""

    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


def committed(db: Session) -> None:
    """Commit, and undo what follows."""
    db.add(Effect(note="kept"))
    db.commit()
    db.add(Effect(note="undone"))
    db.flush()
    db.rollback()


def rolled_back(db: Session) -> None:
    """Undo, and go on."""
    db.add(Effect(note="undone"))
    db.rollback()
    db.add(Effect(note="kept"))
    db.commit()


def neither(db: Session) -> None:
    """Leave both out."""
    assert [effect.note for effect in db.scalars(sqlalchemy.select(Effect))] == ["before"]
    db.add(Effect(note="kept"))


def broken(db: Session) -> None:
    """Meet an error, and go on after a rollback."""
    db.add(Effect(note="undone"))
    db.flush()
    with pytest.raises(sqlalchemy.exc.DBAPIError):
        db.execute(sqlalchemy.text("select * from nowhere"))
    db.rollback()
    db.add(Effect(note="kept"))


@pytest.mark.parametrize("inside", [committed, rolled_back, neither, broken])
@pytest.mark.parametrize("block", [True, False])
def test_a_sqlalchemy_session_lives_inside_the_transaction(
    serve: Serve, inside: Callable[[Session], None], block: bool
) -> None:
    """Contract 1: its commit, its rollback, or neither leave the delivery's transaction open; the ending decides over all."""

    def handle(body: dict[str, Any], delivery: Delivery) -> Retry | None:
        note(delivery, "before")
        db = session(delivery)
        if block:
            with db:
                inside(db)
        else:
            inside(db)
        if delivery.id != 2:
            note(delivery, "after")
        return Retry() if delivery.id == 3 else None

    child = serve(handle)
    for id, code in ((1, words.ACK), (2, words.ACK), (3, words.RETRY)):
        child.place.run("delete from effects")
        report = child.run(id)
        assert report.code == code, report
        if id == 1:
            assert sorted(child.notes()) == ["after", "before", "kept"]
        elif id == 3:
            assert child.notes() == []


def test_a_connection_of_many_deliveries_is_prepared_for_sqlalchemy_once(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract 1: what SQLAlchemy adds to a connection does not add up; a notice is logged once each time."""
    made = Place("postgres", postgres.new_database())
    made.create_usual()
    made.fill(3, payload="{}")

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        with session(delivery) as db:
            db.execute(sqlalchemy.text("do $$ begin raise notice 'written'; end $$"))

    child = Child(made, handle)
    with caplog.at_level(logging.INFO, "sqlalchemy.dialects.postgresql"):
        assert [child.run(id).code for id in (1, 2, 3)] == [words.ACK] * 3
    assert caplog.text.count("written") == 3
    child.pool.close()
    made.close()


def test_a_flush_that_fails_at_the_end_fails_the_attempt(serve: Serve) -> None:
    """Contract 1: what a Session had left to write is part of the handler."""

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        session(delivery).add(Effect(id=77, note="twice"))
        execute(note(delivery), "insert into effects (id, note) values (77, 'once')")

    child = serve(handle)
    child.place.run("delete from effects")
    report = child.run()
    assert (report.code, report.verb) == (words.FAILED, Verb.RETRY.value)
    assert "IntegrityError" in (report.reason or "")
    assert child.notes() == []


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("answer", [None, Retry()])
def test_a_commit_in_doubt_is_looked_for(postgres: Any, committed: bool, answer: Any) -> None:
    """R1, C80: the connection breaks between COMMIT and its reply, or before the server had it; the report is true."""
    dsn = postgres.new_database()
    place = Place("postgres", dsn)
    place.create_usual()
    place.create("effects", id="key", note="text")
    place.fill(3, payload="{}")

    def handle(body: dict[str, Any], delivery: Delivery) -> Any:
        note(delivery)
        cut = proxy.cut_after_request if committed else proxy.cut_at_request
        cut(b"commit\0")
        return answer

    with Proxy.of(dsn) as proxy:
        child = Child(place, handle, dsn=proxy.dsn(dsn))
        report = child.run()
        assert len(child.sessions) == 2
        child.pool.close()
    assert child.notes() == (["written"] if committed and answer is None else [])
    if committed:
        assert report.verb == (None if answer is None else Verb.RETRY.value)
        assert report.code == (words.ACK if answer is None else words.RETRY)
        assert child.fate() is (Fate.DONE if answer is None else Fate.FREE)
    else:
        assert report.verb is None
        assert report.code == (words.FAILED if answer is None else words.RETRY)
        assert child.is_ours()
    place.close()


def test_on_sqlite_a_transaction_waits_for_the_writer_before_it(tmp_path: Path) -> None:
    """C5, R3: BEGIN IMMEDIATE waits; nothing is refused as locked."""
    place = Place("sqlite", f"sqlite:///{tmp_path}/test.db")
    place.create_usual()
    place.create("effects", id="key", note="text")
    place.fill(3, payload="{}")

    def handle(body: dict[str, Any], delivery: Delivery) -> None:
        note(delivery)

    child = Child(place, handle)
    other = place.child()
    execute(other, "insert into effects (note) values ('other')")
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(child.run()))
    thread.start()
    eventually(lambda: child.pool._places == 1)
    other.commit()
    thread.join(10)
    assert reports[0].code == words.ACK
    assert child.notes() == ["other", "written"]
    child.pool.close()
    place.close()


class Heard:
    """What a lane writes for the coordinator."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(64)).cast("q")
        self.reports: list[Any] = []

    def add(self, report: Any) -> None:
        """Keep a report."""
        self.reports.append(report)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_row_for_a_transaction_does_not_begin_past_its_own_deadline(transactional: bool) -> None:
    """R3, R14: until when the others of its child are held says nothing about a row that is not extended."""
    heard, coordinator = Heard(), memoryview(bytearray(64)).cast("q")
    call = cast(Any, SimpleNamespace(is_transactional=transactional))
    lane = Lane(0, call, coordinator, cast(Any, heard))
    coordinator[words.EXTENDED] = int((boot_time() + 60) * 1e9)
    began = lane.begin((1, 0, 1, 1, boot_time() - 1))
    assert (began is None) is transactional
    assert [report[1] for report in heard.reports] == ([words.UNSTARTED] if transactional else [])


def test_fates_are_told_apart(place: Place) -> None:
    """R1, R3: what became of a row, for every layout: gone, finished, given back, dead in a group, another's."""
    place.create("f", id="key", done="time", locked_until="time", name="text", attempt="integer")
    place.fill(5, "f", name="work")
    queue: Queue[Any] = Queue(
        "f", id="id", processed_at="done", locked_until="locked_until", group="name", attempt="attempt"
    )
    holder = Holder(place, queue, group="work", dead_letter_group="dead", lease=30)
    taking = place.database.taking(holder.store.layout)
    rows = {row.id: row for row in holder.claim()}
    for id, verb in ((1, Verb.ACK), (2, Verb.RETRY), (3, Verb.BURY)):
        assert holder.one(verb, rows[id])
    assert holder.one(Verb.RELEASE, rows[5], attempt=0)
    fates = [taking.fate(holder.connection, id, rows[id].token) for id in range(1, 6)]
    assert fates == [Fate.DONE, Fate.FREE, Fate.DEAD, Fate.HELD, Fate.FREE]
    assert {row.id for row in Holder(place, queue, group="work", lease=60).claim()} == {2, 5}
    assert taking.fate(holder.connection, 5, rows[5].token) is Fate.LOST  # a successor's token is a later time
    place.run(f"update f set done = null, locked_until = {place.seconds(-5)} where id = 4")
    assert taking.fate(holder.connection, 4, rows[4].token) is Fate.LOST
    assert taking.fate(holder.connection, 99, rows[4].token) is Fate.DONE
