"""Triggers and foreign keys that change, swallow or refuse what a claim or a settlement writes."""

from __future__ import annotations

import pytest

from shardrun.db import avoided
from shardrun.db.store import Settlement, Verb
from shardrun.errors import StatementFailed
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual

SWALLOWS = {
    "postgres": """
        create function odd() returns trigger language plpgsql as $$ begin
          if old.id = 3 then return null; end if; return new; end $$;
        create trigger odd before update on q for each row execute function odd()""",
    "sqlite": "create trigger odd before update on q when old.id = 3 begin select raise(ignore); end",
}
RAISES = {
    "postgres": """
        create function odd() returns trigger language plpgsql as $$ begin
          if old.id in (5, 6) then raise exception 'row % is sealed', old.id; end if; return new; end $$;
        create trigger odd before update on q for each row execute function odd()""",
    "sqlite": "create trigger odd before update on q when old.id in (5, 6) begin select raise(abort, 'row is sealed'); end",
}


def run_script(place: Place, text: str) -> None:
    if place.dialect == "postgres":
        place.own.execute(text)
    else:
        place.own.executescript(text)


@pytest.fixture
def rows(place: Place) -> Place:
    """Give the usual table with ten rows."""
    place.create_usual()
    place.fill(10)
    return place


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("fetch", [None, "select id from q"])
def test_a_row_that_a_trigger_refuses_to_claim_holds_up_no_other(
    rows: Place, caplog: pytest.LogCaptureFixture, limit: int, fetch: str | None
) -> None:
    """C95: it never runs, is named once with the reason, and the others come in their order."""
    run_script(rows, RAISES[rows.dialect])
    rows.run("update q set priority = 0 where id < 5")
    holder = Holder(rows, usual(fetch=fetch))
    taken: list[int] = []
    for _ in range(40):
        taken += holder.ids(limit=limit)
    assert sorted(taken) == [1, 2, 3, 4, 7, 8, 9, 10]
    said = [record.getMessage() for record in caplog.records]
    assert [text[:10] for text in sorted(said)] == ["q row 5: i", "q row 6: i"]
    assert all("sealed. It is left alone" in text for text in said)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_row_whose_claim_a_trigger_swallows_holds_up_no_other(
    rows: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """C95: no start without a lease that is really in the table; the row is named, and tried again when it may be mended."""
    now = [1.0]
    monkeypatch.setattr("shardrun.db.avoided.monotonic", lambda: now[0])
    run_script(rows, SWALLOWS[rows.dialect])
    holder = Holder(rows, usual())
    taken: list[int] = []
    for _ in range(40):
        taken += holder.ids(limit=limit)
    assert sorted(taken) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("q row 3: it cannot be claimed: the database does not write its lease, so a trigger")
    rows.run("drop trigger odd on q" if rows.dialect == "postgres" else "drop trigger odd")
    assert holder.ids() == []
    now[0] += avoided.SECONDS
    assert holder.ids() == [3]


def test_a_claim_among_keys_goes_around_a_refused_row(rows: Place) -> None:
    """C95, R16: full lanes stay left out meanwhile."""
    run_script(rows, RAISES[rows.dialect])
    rows.run("update q set partition_key = case when id % 2 = 0 then 'even' else 'odd' end where id not in (5, 6)")
    holder = Holder(rows, usual(), workers_by_key=2)
    even = next(row.lane_key for row in holder.claim(limit=2) if row.key == "even")
    assert sorted(holder.ids(full_keys=[even])) == [3, 7, 9]
    assert sorted(holder.ids(full_keys=["x"])) == [4, 8, 10]


def test_a_trigger_that_rewrites_rows_takes_no_lease_away(open_place: Opener) -> None:
    """C95: what it changes beside the lease is the user's; the token is what was written in the end."""
    place = open_place("postgres")
    place.create_usual(owner="text", updated_at="timestamptz")
    place.fill(5, owner="Ann")
    run_script(
        place,
        """
        create function odd() returns trigger language plpgsql as $$ begin
          new.updated_at = now(); new.owner = lower(new.owner);
          new.locked_until = date_trunc('second', new.locked_until); return new; end $$;
        create trigger odd before update on q for each row execute function odd()""",
    )
    holder = Holder(place, usual(), dead_letter="q_dead")
    rows = holder.claim()
    verbs = [Verb.ACK, Verb.RETRY, Verb.BURY, Verb.RELEASE, Verb.DROP]
    assert (
        len(holder.settle(*[Settlement(verb, row.id, row.token) for verb, row in zip(verbs, rows, strict=True)])) == 5
    )
    assert place.run("select owner from q_dead") == [("ann",)]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_a_trigger_that_archives_finished_rows_lets_them_be_acked(open_place: Opener, dialect: str) -> None:
    """C95: archive on ack counts as done, whether rows are deleted or marked."""
    place = open_place(dialect)
    place.create_usual(processed_at="time")
    place.create("archive", id="bigint" if dialect == "postgres" else "integer")
    text = {
        "postgres": """
        create function odd() returns trigger language plpgsql as $$ begin
          insert into archive values (old.id); delete from q where id = old.id; return null; end $$;
        create trigger odd after update of processed_at on q for each row execute function odd()""",
        "sqlite": """create trigger odd after update of processed_at on q begin
          insert into archive values (old.id); delete from q where id = old.id; end""",
    }[dialect]
    run_script(place, text)
    place.fill(3)
    holder = Holder(place, usual(processed_at="processed_at"))
    rows = holder.claim()
    assert holder.settle(*[Settlement(Verb.ACK, row.id, row.token) for row in rows]) == {1, 2, 3}
    assert (place.run("select count(*) from q"), place.run("select count(*) from archive")) == ([(0,)], [(3,)])


@pytest.mark.parametrize("reference", ["", "deferrable initially deferred", "on delete restrict"])
def test_a_row_that_another_table_refers_to_is_refused_with_the_constraints_name(place: Place, reference: str) -> None:
    """C93: also where the refusal comes at COMMIT; nothing of it is reported as done, and the others are acked."""
    if place.dialect == "sqlite":
        place.database.close(place.own)
        place = Place("sqlite", place.dsn + "?foreign_keys=on")
    place.create_usual()
    kind = "bigint" if place.dialect == "postgres" else "integer"
    place.run(f"create table audit (row_id {kind}, constraint seen foreign key (row_id) references q (id) {reference})")
    place.fill(5)
    place.run("insert into audit values (2)")
    holder = Holder(place, usual(), dead_letter="q_dead")
    rows = holder.claim()
    acks = [Settlement(Verb.ACK, row.id, row.token) for row in rows]
    with pytest.raises(StatementFailed, match="seen" if place.dialect == "postgres" else "FOREIGN KEY"):
        holder.settle(*acks)
    assert place.run("select count(*) from q") == [(5,)]
    assert holder.settle(*acks[:1], *acks[2:]) == {1, 3, 4, 5}
    for verb in (Verb.ACK, Verb.BURY):
        with pytest.raises(StatementFailed):
            holder.one(verb, rows[1], reason="no")
    assert place.run("select id from q") == [(2,)]
    assert place.run("select count(*) from q_dead") == [(0,)]
    assert holder.one(Verb.RETRY, rows[1], reason="still referred to")
    place.close()


def test_a_reference_that_cascades_is_no_hindrance(place: Place) -> None:
    """C93: as the table's owner has it; on SQLite where the DSN asks for foreign keys, else they are not looked at."""
    for settings, left in (("?foreign_keys=on", 0), ("", 1)):
        if place.dialect == "postgres" and not settings:
            return
        here = place if place.dialect == "postgres" else Place("sqlite", place.dsn + settings)
        here.create_usual("q" if settings else "p")
        table = "q" if settings else "p"
        kind = "bigint" if place.dialect == "postgres" else "integer"
        here.run(f"create table audit_{table} (row_id {kind} references {table} (id) on delete cascade)")
        here.fill(2, table)
        here.run(f"insert into audit_{table} values (2)")
        holder = Holder(here, usual(table=table))
        rows = holder.claim()
        assert holder.settle(*[Settlement(Verb.ACK, row.id, row.token) for row in rows]) == {1, 2}
        assert here.run(f"select count(*) from audit_{table}") == [(left,)]
        if here is not place:
            here.close()


def test_a_claimed_row_may_be_referred_to_by_new_rows(open_place: Opener) -> None:
    """B2, C93: a handler inserts rows that refer to the row that it works on."""
    place = open_place("postgres")
    place.create_usual()
    place.run("create table audit (row_id bigint references q (id))")
    place.fill(1)
    holder = Holder(place, usual())
    (row,) = holder.claim()
    place.run("insert into audit values (1)")
    assert holder.one(Verb.RELEASE, row)


def test_a_start_names_a_trigger_that_keeps_acked_rows(open_place: Opener) -> None:
    """C95, A5: its acks would look lost, and the rows run again and again; one that lets rows go is not named."""
    place = open_place("postgres")
    place.create_usual(processed_at="time")
    run_script(
        place,
        """
        create function keeps() returns trigger language plpgsql as $$ begin
          update q set priority = 9 where id = old.id; return null; end $$;
        create function archives() returns trigger language plpgsql as $$ begin return old; end $$;
        create trigger "Soft" before delete or update on q for each row execute function keeps();
        create trigger archives before delete on q for each row execute function archives();
        create trigger later after delete on q for each row execute function keeps();
        create trigger off before delete on q for each row execute function keeps();
        alter table q disable trigger off;
        create index on q (priority, retry_after nulls first, id);
        create index on q (priority, retry_after nulls first, id) where processed_at is null""",
    )
    deletes, marks = usual(), usual(processed_at="processed_at")
    assert place.database.warnings(place.own, subscribe(deletes)) == [
        "q: trigger Soft, before delete, can return NULL. A row whose deletion it swallows counts as lost when it ends, "
        "and runs again and again. Have it return OLD, or let finished rows stay: processed_at=."
    ]
    assert place.database.warnings(place.own, subscribe(marks)) == []
    assert len(place.database.warnings(place.own, subscribe(marks, dead_letter="q_dead"))) == 1
