"""Values that the driver, or Python, cannot hold: they concern their own row."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import IntLoader

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
