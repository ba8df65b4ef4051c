"""How leases are pushed forward."""

from __future__ import annotations

import pytest

from shardrun.db.store import Verb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


def test_an_extension_gives_rows_the_value_that_was_known_before(place: Place) -> None:
    """R1: the new token is read first, then written, and settles the row."""
    place.create_usual()
    place.fill(2)
    holder = Holder(place, usual(), lease=30)
    one, two = holder.claim()
    new = Holder(place, usual(), lease=60).store.lease_end(holder.connection)
    assert new > one.token
    assert sorted(holder.store.extend(holder.connection, [1, 2], one.token, new).extended) == [1, 2]
    assert not holder.one(Verb.ACK, one)
    assert holder.one(Verb.ACK, two, token=new)


@pytest.mark.parametrize("kind", ["timestamptz(0)", "timestamp(3)"])
def test_the_value_is_spelt_as_the_column_keeps_it(place: Place, kind: str) -> None:
    """R1: a lease's end is rounded before it is promised."""
    place.create_usual(without=["locked_until"], locked_until=kind)
    place.fill(1)
    holder = Holder(place, usual(), lease=60)
    (row,) = holder.claim()
    place.run(f"update q set locked_until = {place.seconds(5)}")
    token = _token(place, holder)
    new = holder.store.lease_end(holder.connection)
    assert holder.store.extend(holder.connection, [row.id], token, new).extended == [row.id]
    assert holder.one(Verb.ACK, row, token=new)


def test_lost_rows_are_neither_extended_nor_busy(place: Place) -> None:
    """R1: what carries another token, or is gone, is lost."""
    place.create_usual()
    place.fill(3)
    holder = Holder(place, usual(), lease=60)
    rows = holder.claim()
    assert holder.one(Verb.ACK, rows[0])
    place.run(f"update q set locked_until = {place.seconds(9000)} where id = 2")
    new = Holder(place, usual(), lease=90).store.lease_end(holder.connection)
    extension = holder.store.extend(holder.connection, [1, 2, 3], rows[0].token, new)
    assert (extension.extended, extension.busy) == ([3], [])


def test_an_extension_never_shortens_a_lease(place: Place) -> None:
    """R1: after the database's clock stepped back the old token stays; the row is asked for again."""
    place.create_usual()
    place.fill(1)
    holder = Holder(place, usual(), lease=60)
    (row,) = holder.claim()
    earlier = Holder(place, usual(), lease=5).store.lease_end(holder.connection)
    extension = holder.store.extend(holder.connection, [1], row.token, earlier)
    assert (extension.extended, extension.busy) == ([], [1])
    assert holder.one(Verb.ACK, row)


@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_a_row_that_a_transaction_keeps_locked_is_busy_and_holds_up_no_other(open_place: Opener, dialect: str) -> None:
    """R3: the extension waits for no one; what it could not lock still carries the old token."""
    place = open_place(dialect)
    place.create_usual()
    place.fill(3)
    holder = Holder(place, usual(), lease=30)
    rows = holder.claim()
    other = place.child()
    other.execute("update q set payload = '1' where id = 2")
    new = Holder(place, usual(), lease=60).store.lease_end(holder.connection)
    extension = holder.store.extend(holder.connection, [1, 2, 3], rows[0].token, new)
    assert (sorted(extension.extended), extension.busy) == ([1, 3], [2])
    other.rollback()
    assert holder.store.extend(holder.connection, [2], rows[0].token, new).extended == [2]


def _token(place: Place, holder: Holder) -> str:
    text = "locked_until::text" if place.dialect == "postgres" else "locked_until"
    return str(holder.connection.execute(f"select {text} from q").fetchone()[0])
