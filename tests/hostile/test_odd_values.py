"""Values that the driver, or Python, cannot hold: they concern their own row."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import IntLoader

from shardrun.db.sqlite.driver import NotText
from shardrun.db.store import Verb
from shardrun.decoding import DoesNotFit, decoder
from shardrun.errors import Conflict
from shardrun.queue import Queue
from shardrun.ring.wire import Frames, pack
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual

DEEP = "[" * 2000 + "]" * 2000


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("time", "24:00:00"), ("jsonb", "1" + "0" * 5000), ("jsonb", DEEP), ("json", DEEP), ("json[]", "{1}")],
)
def test_a_value_that_python_cannot_hold_arrives_as_its_text(open_place: Opener, kind: str, stored: str) -> None:
    """A2: in row mode, and the rows beside it arrive too."""
    place: Place = open_place("postgres")
    place.create_usual(without=["payload"])
    place.run(f"alter table q add odd {kind}")
    place.run(f"insert into q (odd) values (null), (cast(? as {kind}))", stored)
    rows = Holder(place, usual(without=["payload"])).claim()
    assert [row.body["odd"] for row in rows] == [None, [1] if kind == "json[]" else stored]


@pytest.mark.parametrize("stored", [DEEP, "1" + "0" * 5000])
def test_json_that_python_cannot_parse_stays_text_on_sqlite(open_place: Opener, stored: str) -> None:
    """A2: as above."""
    place: Place = open_place("sqlite")
    place.create_usual(without=["payload"], odd="json")
    place.run("insert into q (odd) values (?), ('[1]')", stored)
    rows = Holder(place, usual(without=["payload"])).claim()
    assert [row.body["odd"] for row in rows] == [stored, [1]]


class Fussy(IntLoader):
    """A loader that fails as none is known to."""

    def load(self, data: Any) -> int:
        if bytes(data) == b"13":
            raise OverflowError("unlucky")
        return super().load(data)


def test_a_value_that_no_loader_takes_costs_its_own_row_only(open_place: Opener) -> None:
    """A2: the claim has committed by then, so its other rows are handed out, and this one says why it cannot be."""
    place: Place = open_place("postgres")
    place.create_usual(without=["payload"], odd="smallint", headers="text")
    place.run("insert into q (odd, headers) values (1, 'h'), (13, 'h'), (2, null)")
    holder = Holder(place, usual(without=["payload"], headers="headers"))
    connection = holder.connection
    assert isinstance(connection, psycopg.Connection)
    connection.adapters.register_loader("int2", Fussy)
    rows = holder.claim()
    assert [row.id for row in rows] == [1, 2, 3]
    assert [row.headers for row in rows] == ["h", "h", None]
    assert rows[1].body == "the row's column odd cannot be read: unlucky"
    assert [rows[0].body["odd"], rows[2].body["odd"]] == [1, 2]


@pytest.mark.parametrize(("dialect", "kind"), [("postgres", "numeric"), ("sqlite", "")])
def test_an_attempt_column_that_is_no_integer_gives_integers(open_place: Opener, dialect: str, kind: str) -> None:
    """R5: back-off computes with the count of attempts."""
    place = open_place(dialect)
    place.create_usual(without=["attempt"], attempt=kind)
    place.fill(1, payload="{}", attempt=0.0)
    (row,) = Holder(place, usual()).claim()
    assert (row.attempt, type(row.attempt)) == (1, int)


BAD = "cast(x'ff' as text)"


def test_text_that_is_not_utf8_on_sqlite_costs_its_own_row_only(open_place: Opener) -> None:
    """A2: in the payload, a key or an id; the handler's decoding refuses the body, an id cannot be named."""
    place = open_place("sqlite")
    place.create("q", id="text primary key", payload="text", partition_key="text", locked_until="time")
    place.run(f"insert into q values ('a', {BAD}, {BAD}, null), ({BAD}, 'p', 'k', null), ('c', 'p', 'k', null)")
    holder = Holder(
        place, Queue("q", id="id", payload="payload", partition_key="partition_key", locked_until="locked_until")
    )
    rows = holder.claim()
    assert {row.id: row.body for row in rows} == {"a": NotText(b"\xff"), "c": "p"}
    with pytest.raises(DoesNotFit, match="does not fit str"):
        decoder(str, holder.store.payload_kind)(pack_and_unpack(rows[0].body))
    assert holder.one(Verb.RETRY, rows[0])


def pack_and_unpack(value: Any) -> Any:
    return Frames().feed(pack((value,)))[0][0]


def test_a_due_time_that_is_not_utf8_costs_its_own_row_only(
    open_place: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """A2, C90: it is named, and the rows that were claimed before are handed out."""
    place = open_place("sqlite")
    place.create_usual()
    place.run(f"insert into q (retry_after) values ({BAD}), (null)")
    assert Holder(place, usual()).ids() == [2]
    assert "q row 1: retry_after is" in caplog.text


def test_a_look_that_fails_after_a_claim_loses_no_row(open_place: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the claim has committed; what it took is handed out, and the failure is logged."""
    place = open_place("sqlite")
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual())

    def fail(connection: object) -> None:
        raise Conflict("SQLite refused for now: database is locked")

    monkeypatch.setattr(holder.store, "name_misspelt", fail)
    assert holder.ids() == [1]


def test_rows_that_were_taken_before_a_conflict_are_handed_out(open_place: Opener) -> None:
    """R1: after a refused claim PostgreSQL's halves commit one by one, and a conflict in the second loses not the first."""
    place = open_place("postgres")
    place.create_usual()
    place.fill(2)
    place.own.execute("""
        create sequence times;
        create function odd() returns trigger language plpgsql as $$ begin
          if old.id = 2 and nextval('times') < 3 then raise exception 'refused'; end if;
          if old.id = 2 then raise exception 'conflict' using errcode = '40001'; end if;
          return new; end $$;
        create trigger odd before update on q for each row execute function odd()""")
    assert Holder(place, usual()).ids() == [1]


@pytest.mark.parametrize("kind", ["numeric", "double precision", "real"])
def test_a_row_whose_id_is_nan_is_found_again(open_place: Opener, kind: str) -> None:
    """C99: PostgreSQL takes NaN for equal to itself, and so do claims and settlements."""
    place = open_place("postgres")
    place.create_usual(without=["id"], id=f"{kind} primary key")
    for value in ("1", "NaN", "2"):
        place.fill(1, id=value)
    holder = Holder(place, usual())
    rows = holder.claim()
    assert str(rows[2].id).lower() == "nan"
    new = Holder(place, usual(), lease=90).store.lease_end(holder.connection)
    assert rows[2].id in holder.store.extend(holder.connection, [row.id for row in rows], rows[0].token, new).extended
    place.run("delete from q where id = 1")
    acked = {new: [row.id for row in rows]}
    assert holder.store.settle(holder.connection, [], acked=acked) == {rows[1].id, rows[2].id}


@pytest.mark.parametrize(("kind", "most"), [("smallint", 32767), ("integer", 2**31 - 1), ("numeric(3,0)", 999)])
def test_a_count_of_attempts_that_its_column_cannot_pass_stays(open_place: Opener, kind: str, most: int) -> None:
    """R5: the row is claimed all the same."""
    place = open_place("postgres")
    place.create_usual(without=["attempt"], attempt=kind)
    place.fill(1, attempt=most)
    place.fill(1, attempt=most - 1)
    place.fill(1)
    assert [row.attempt for row in Holder(place, usual()).claim()] == [most, most, 1]


def test_types_detected_by_the_driver_are_not_the_coordinators(tmp_path: Path) -> None:
    """F2: `?detect_types=` is for handlers; tokens would not be found again."""
    place = Place("sqlite", f"sqlite:///{tmp_path}/queue.db?detect_types=1")
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual())
    (row,) = holder.claim()
    assert holder.one(Verb.ACK, row)
    place.run("insert into q_dead (locked_until) values ('2026-01-01 00:00:00')")
    assert place.child().execute("select locked_until from q_dead").fetchone() == (datetime(2026, 1, 1),)
    place.close()
