"""Rows that are offered to children: what is offered and what is not, and what is written of rows that no child has settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from shardrun.db.mysql import locks as mysql_locks
from shardrun.db.mysql import offers as mysql_offers
from shardrun.db.offers import OfferStore
from shardrun.db.postgres import offers as postgres_offers
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Verb
from shardrun.db.taking import Fate
from shardrun.errors import Conflict, StatementFailed
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Place, subscribe, usual

FORMS = ["postgres row lock", "postgres advisory", "mariadb row lock", "mariadb advisory", "sqlite advisory"]
PATIENCE = 0.0
"""Seconds that a take waits for whoever has locked the row."""


@pytest.fixture(params=FORMS)
def place(request: pytest.FixtureRequest, open_place: Opener) -> Place:
    """Give an empty database with each form of lock that it has."""
    dialect, _, form = request.param.partition(" ")
    made = open_place(dialect)
    made.form = form
    return made


class Offering:
    """A coordinator's connection with the statements of a subscription, and what its children take rows by."""

    def __init__(self, place: Place, lock: str = "key-{partition_key}", **settings: Any) -> None:
        more = settings.pop("roles", {})
        more |= {"advisory_lock": lock} if place.form == "advisory" else {}
        queue: Queue[Any] = usual(without=["locked_until"], **more)
        self.place = place
        self.connection = place.connect()
        subscription = subscribe(queue, transactional=True, **settings)
        self.store = cast(OfferStore, place.database.store(self.connection, subscription))
        self.store.prepare(self.connection)
        self.taking: Any = place.database.taking(self.store.layout)

    def offer(
        self, limit: int = 10, full: Sequence[Any] = (), offered: Sequence[Any] = (), resting: Sequence[Any] = ()
    ) -> Any:
        """Name the rows that are offered."""
        return [row.id for row in self.rows(limit, full, offered, resting)]

    def rows(self, limit: int = 10, *left_out: Sequence[Any]) -> list[Claimed]:
        """Have rows offered."""
        return self.store.offer(self.connection, limit, *(left_out or ((), (), ())))

    def take(self, row: Claimed) -> Any:
        """Take a row as a child does; gives its connection, or None where it is not to be had."""
        connection = self.place.child()
        try:
            return connection if self.taking.take(connection, row.id, row.token, PATIENCE) else None
        except Conflict:
            return None

    def take_also(self, connection: Any, *rows: Claimed) -> set[Any]:
        """Take more rows of a batch."""
        return set(self.taking.take_also(connection, [(row.id, row.token) for row in rows]))

    def end(self, row: Claimed, verb: Verb, **how: Any) -> str | None:
        """Settle a row as the coordinator does."""
        return self.store.settle_offered(self.connection, Settlement(verb, row.id, row.token, **how))


def keyed(place: Place, *keys: str | None, **values: Any) -> None:
    """Insert a row for each key."""
    for key in keys:
        place.fill(1, partition_key=key, payload='{"a": 1}', **values)


def test_due_rows_are_offered_in_claim_order_and_nothing_is_written_or_held(place: Place) -> None:
    """R3, D2, C1: several at once, whichever are free; not those that are offered, rest, are not due, or have a full lane."""
    place.create_usual()
    for priority, key in ((2, "a"), (1, "b"), (2, "c"), (1, "d"), (1, "e")):
        keyed(place, key, priority=priority, attempt=3)
    place.run(f"update q set retry_after = {place.seconds(60)} where id = 5")
    desk, other = Offering(place), Offering(place, workers_by_key=2) if place.dialect != "sqlite" else None
    rows = desk.rows(3)
    assert [(row.id, row.attempt, row.expired, row.key, row.body) for row in rows] == [
        (id, 4, False, key, '{"a": 1}') for id, key in ((2, "b"), (4, "d"), (1, "a"))
    ]
    assert place.run("select attempt from q") == [(3,)] * 5
    assert desk.offer(offered=[2, 4]) == [1, 3]
    assert desk.offer(offered=[1], resting=[4]) == [2, 3]
    if other is not None:
        lane_keys = {row.key: row.lane_key for row in other.rows()}
        assert other.offer(full=[lane_keys["b"], lane_keys["c"]]) == [4, 1]


def test_what_another_has_taken_is_neither_offered_nor_taken(place: Place) -> None:
    """B1, B4, B5: not while its transaction is open; where that is rolled back it is as it was, where it commits it is gone."""
    place.create_usual()
    keyed(place, "a", "b")
    desk = Offering(place)
    first, second = desk.rows()
    if place.dialect == "sqlite":  # where one transaction is open at a time
        taken = desk.take(first)
    else:
        other = Offering(place)
        taken = desk.take(first)
        assert other.offer() == [2]
        assert other.take(first) is None
        with pytest.raises(Conflict):
            desk.taking.fate(desk.connection, first.id, first.token)
        assert desk.end(first, Verb.RETRY, attempt=1) is None
    desk.taking.abandon(taken)
    assert desk.taking.fate(desk.connection, first.id, first.token) is Fate.HELD
    taken = desk.take(first)
    assert desk.taking.settle(taken, Settlement(Verb.ACK, first.id, first.token), keep=True)
    desk.taking.commit(taken)
    assert desk.taking.fate(desk.connection, first.id, first.token) is Fate.DONE
    assert desk.take(first) is None
    assert desk.offer() == [2]
    assert desk.take(second) is not None


@pytest.mark.parametrize("change", ["payload = '[]'", "attempt = 1", "retry_after = {later}", "partition_key = 'b'"])
def test_a_row_that_was_changed_since_it_was_offered_is_a_miss_and_is_offered_anew(place: Place, change: str) -> None:
    """R3: whatever was changed, the handler gets what is in the table when its child takes the row."""
    place.create_usual()
    keyed(place, "a")
    desk = Offering(place)
    (row,) = desk.rows()
    place.run(f"update q set {change.format(later=place.seconds(60))}")
    assert desk.take(row) is None
    assert desk.end(row, Verb.RETRY, attempt=1) is None
    again = desk.rows()
    assert len(again) == (0 if "later" in change else 1)
    assert all(desk.take(each) is not None for each in again)


SETTLED = [
    (Verb.ACK, {"attempt": 1}, None),
    (Verb.RETRY, {"attempt": 1, "delay": 60.0, "reason": "no"}, (1, "no")),
    (Verb.RECOUNT, {"attempt": 1, "reason": "killed"}, (1, "killed")),
    (Verb.BURY, {"attempt": 1, "reason": "killed"}, None),
]


@pytest.mark.parametrize(("verb", "how", "left"), SETTLED, ids=[verb.name for verb, _, _ in SETTLED])
def test_what_no_child_has_settled_is_written_under_the_rows_token(
    place: Place, verb: Verb, how: dict[str, Any], left: tuple[Any, ...] | None
) -> None:
    """R8, H4: the count and the reason are committed; a recount gives the token that the row carries from then on."""
    place.create_usual()
    keyed(place, "a")
    desk = Offering(place, max_attempts=2, dead_letter="q_dead")
    (row,) = desk.rows()
    token = desk.end(row, verb, **how)
    assert place.run("select attempt, last_error from q") == ([left] if left else [])
    assert place.run("select attempt, last_error from q_dead") == ([(1, "killed")] if verb is Verb.BURY else [])
    assert desk.end(row, verb, **how) is None
    if verb is Verb.RECOUNT:
        assert token
        assert desk.take(row) is None
        assert desk.take(row._replace(token=token)) is not None
    else:
        assert token == ""


def test_of_one_key_one_row_is_offered_and_none_while_it_is(open_place: Opener) -> None:
    """B4, R11: nor while another session has the key, however many rows with busy keys come first."""
    for form in ("postgres advisory", "mariadb advisory", "sqlite advisory"):
        place = open_place(form.split()[0])
        place.form = "advisory"
        place.create_usual()
        keyed(place, *["a"] * 40, "b", "b", "c")
        desk = Offering(place)
        first, second = desk.rows(2)
        assert (first.id, second.id) == (1, 41), form
        assert desk.offer(limit=5, offered=[1]) == [41, 43]
        assert desk.offer(limit=5) == [1, 41, 43]
        if place.dialect != "sqlite":
            taken = desk.take(first)
            assert desk.offer(limit=1) == [41]
            desk.taking.abandon(taken)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_a_transaction_that_keeps_its_first_snapshot_begins_behind_the_lock(
    open_place: Opener, dialect: str, isolation: str
) -> None:
    """R11, B7: the session locks the key first; that lock goes over to the transaction, and ends with it."""
    place = open_place(dialect)
    place.form = "advisory"
    place.create_usual()
    keyed(place, "a", "a")
    desk = Offering(place, roles={"isolation": isolation})
    (first,) = desk.rows()
    for ends in (desk.taking.abandon, desk.taking.commit):
        taken = desk.take(first)
        assert desk.offer() == []
        ends(taken)
        assert desk.offer() == [1]


def test_a_child_locks_the_key_that_coordinators_lock_whatever_its_session_spells(open_place: Opener) -> None:
    """B4, R11, R17: a time in the key reads otherwise in another zone; the handler's transaction keeps its own settings."""
    place = open_place("postgres")
    place.form = "advisory"
    place.create_usual(at="timestamptz")
    keyed(place, "a", "a", at="2026-01-01 12:00+00")
    keyed(place, "a", "a", at="2026-01-02 12:00+00")
    desk, other = Offering(place, lock="day-{at}"), Offering(place, lock="day-{at}")
    row, another = desk.rows()
    connection = place.child()
    connection.execute("set time zone 'Asia/Kolkata'")
    connection.commit()
    assert desk.taking.take(connection, row.id, row.token, PATIENCE)
    assert other.offer() == [3]
    assert desk.take_also(connection, another) == {3}
    assert other.offer() == []
    assert connection.execute("show time zone").fetchone() == ("Asia/Kolkata",)
    desk.taking.abandon(connection)
    assert other.offer() == [1, 3]


def test_rows_in_work_do_not_count_among_those_that_a_claim_looks_past(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, B6: however many lanes have full batches, another that is free is offered rows."""
    for module in (postgres_offers, mysql_offers, mysql_locks):
        monkeypatch.setattr(module, "MOST_TRIED", 2)
    place.create_usual()
    keyed(place, *"abcd")
    desk = Offering(place)
    offered = desk.offer(limit=3)
    assert offered == [1, 2, 3]
    assert desk.offer(limit=3, offered=offered) == [4]


def test_a_batch_takes_of_the_offered_rows_what_can_be_had(place: Place) -> None:
    """B5, B6, R3, R11: not what another has or what was changed; all of it is free at the end, by commit or by rollback."""
    place.create_usual()
    keyed(place, *"abcde")
    desk = Offering(place)
    first, second, third, *others = desk.rows()
    on_server = place.dialect != "sqlite"
    look = Offering(place) if on_server else desk
    held = look.take(second) if on_server else None
    place.run("update q set payload = '[]' where id = 3")
    for is_last in (False, True):
        batch = desk.take(first)
        had = desk.take_also(batch, second, third, *others)
        assert had == ({4, 5} if on_server else {2, 4, 5})
        if on_server:
            assert set(look.offer()) <= {3}  # its key may be locked until the batch ends
        if not is_last:
            desk.taking.abandon(batch)
            assert look.offer() == [1, *([] if on_server else [2]), 3, 4, 5]
    assert desk.taking.settle(batch, Settlement(Verb.ACK, 1, first.token), keep=True)
    assert desk.taking.settle_also(batch, Settlement(Verb.RETRY, 4, others[0].token, attempt=1))
    desk.taking.commit(batch)
    assert place.run("select id from q order by id") == [(2,), (3,), (4,), (5,)]
    assert look.offer() == [*([] if on_server else [2]), 3, 4, 5]
    if held is not None:
        look.taking.abandon(held)


SNAPSHOTS = [None, "repeatable read", "serializable"]
KEYED = pytest.mark.parametrize(
    ("dialect", "isolation"), [(dialect, each) for dialect in ("postgres", "mariadb") for each in SNAPSHOTS]
)


def a_batch(place: Place, isolation: str | None) -> tuple[Offering, list[Claimed], Any]:
    """Offer four rows, of which the first two and the last two have one key, and take the first."""
    place.form = "advisory"
    place.create_usual()
    keyed(place, *"aabb")
    desk = Offering(place, roles={"isolation": isolation} if isolation else {})
    rows = sorted([*desk.rows(), *desk.rows(10, (), (), [1, 3])], key=lambda row: row.id)
    assert [row.id for row in rows] == [1, 2, 3, 4]
    return desk, rows, desk.take(rows[0])


@KEYED
def test_of_two_rows_of_one_key_a_batch_takes_one(open_place: Opener, dialect: str, isolation: str | None) -> None:
    """B4, R11: a session would get a lock again that it has; the later row is left out, here as anywhere."""
    place = open_place(dialect)
    desk, rows, batch = a_batch(place, isolation)
    assert desk.take_also(batch, *rows[1:]) == {3}
    assert Offering(place).offer() == []
    desk.taking.commit(batch)
    assert Offering(place).offer() == [1, 3]


@KEYED
def test_a_batch_sees_what_was_committed_under_its_keys_before(
    open_place: Opener, dialect: str, isolation: str | None
) -> None:
    """R11, C80: a transaction that keeps its first snapshot begins behind the locks of all its rows, not of the first."""
    place = open_place(dialect)
    desk, rows, batch = a_batch(place, isolation)
    place.run("insert into q_dead (id) values (7)")  # as who had the second key may have done
    assert desk.take_also(batch, rows[2]) == {3}
    assert len(batch.execute("select id from q_dead").fetchall()) == 1
    desk.taking.abandon(batch)
    assert Offering(place).offer() == [1, 3]


LOST = {"postgres": "select 1 where false", "mariadb": "another token"}


@pytest.mark.parametrize("dialect", LOST)
def test_every_key_is_let_go_where_the_first_row_is_lost_meanwhile(open_place: Opener, dialect: str) -> None:
    """R11, B4: a transaction that begins again has no lock on its row for a moment."""
    place = open_place(dialect)
    desk, rows, batch = a_batch(place, "repeatable read")
    batch.taken = (batch.taken[0], LOST[dialect])
    with pytest.raises(Conflict):
        desk.take_also(batch, rows[2])
    desk.taking.abandon(batch)
    assert Offering(place).offer() == [1, 3]


@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_every_key_is_let_go_where_an_error_ends_the_taking(open_place: Opener, dialect: str) -> None:
    """R11, B4: before anything else is done with the session."""
    place = open_place(dialect)
    desk, rows, batch = a_batch(place, "repeatable read")
    if dialect == "postgres":
        desk.taking._begin = "select 1 / 0"
    else:
        desk.taking._take_free = Statement("select nothing")
    with pytest.raises(StatementFailed):
        desk.take_also(batch, rows[2])
    assert Offering(place).offer() == [1, 3]
