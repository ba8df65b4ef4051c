"""Queues that bring their own SELECT for the rows that a claim took."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun import fetching
from shardrun.db.store import Verb
from shardrun.errors import DeclarationProblem
from shardrun.handler import DoesNotFit, plan
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual

JOIN = 'select j.id, j.payload, j.attempt, c.name as "the name" from q j join customers c on c.id = j.customer'
WITH_IDS = JOIN + " where j.id in (:ids); -- not :ids"
WITH = f"/* :ids */ with x as ({JOIN}) select x.* from x where ':ids' <> '%s' and x.id in (:ids)"


def create(place: Place) -> None:
    place.create_usual(customer="integer")
    place.create("customers", id="key", name="text")
    place.run("insert into customers (id, name) values (1, 'Ann 100%'), (2, 'Bob')")
    place.run("""insert into q (payload, customer) values ('{"n": 1}', 1), ('{"n": 2}', 2), ('{"n": 3}', 9)""")


@pytest.mark.parametrize("text", [JOIN, WITH_IDS, WITH], ids=["around", "placed", "with"])
def test_rows_of_the_select_are_the_bodies_of_claimed_rows(place: Place, text: str) -> None:
    """A3: JSON decoded as in row mode, the columns as they are after the claim, in claim order."""
    create(place)
    holder = Holder(place, usual(fetch=text), dead_letter="q_dead")
    rows = holder.claim()
    assert holder.store.payload_kind is None
    assert [row.id for row in rows] == [1, 2, 3]
    assert rows[0].body == {"id": 1, "payload": {"n": 1}, "attempt": 1, "the name": "Ann 100%"}
    assert rows[1].body["the name"] == "Bob"
    assert rows[2].body == "the queue's fetch= returned no row for this id; it must return one"
    assert holder.one(Verb.ACK, rows[0])
    assert holder.one(Verb.BURY, rows[2], reason=rows[2].body)
    assert holder.claim() == []


def test_an_id_that_comes_twice_or_fails_harms_no_other(place: Place) -> None:
    """A3: a join that multiplies a row, and one over which the SELECT fails, are settled alone."""
    create(place)
    place.run("insert into customers (id, name) values (9, 'x')")
    place.create("notes", id="key", row_id="integer", divisor="integer")
    place.run("insert into notes (row_id, divisor) values (1, 1), (1, 1), (2, 0), (3, 1)")
    fails = {
        "postgres": "1 / n.divisor",
        "sqlite": "json(iif(n.divisor = 0, '{', '1'))",
        "mariadb": "(select 1 union select n.divisor)",
    }[place.dialect]
    text = f"select j.id, {fails} as share from q j join notes n on n.row_id = j.id where j.id in (:ids)"
    bodies = [row.body for row in Holder(place, usual(fetch=text)).claim()]
    assert bodies[0] == "the queue's fetch= returned 2 rows for this id; it must return one"
    assert bodies[1].startswith("the queue's fetch= failed for this row: ")
    assert set(bodies[2]) == {"id", "share"}


def test_claims_of_many_rows_and_odd_ids(place: Place) -> None:
    """A3: lists of any length, ids of any type."""
    place.create("odd", id="text primary key", locked_until="time", note="text")
    for number in range(33):
        place.run("insert into odd (id, note) values (?, ?)", f"'{{}}\"\\ % {number}", str(number))
    queue = usual(table="odd", without=[role for role in usual().roles if role not in ("id", "locked_until")])
    queue.fetch = "select note, id from odd where id in (:ids) or id in (:ids)"
    rows = Holder(place, queue).claim()
    assert len(rows) == 33
    assert all(row.body["note"] == row.id.split()[-1] for row in rows)


def test_values_come_as_in_row_mode(open_place: Opener) -> None:
    """A3: what Python or the ring have no type for is text; an id of such a type finds its row."""
    place = open_place("postgres")
    place.run("create type mood as enum ('sad', 'glad')")
    place.create("odd", id="inet primary key", locked_until="time", m="mood", r="int4range", n="numeric", a="text[]")
    place.run("insert into odd values ('::1', null, 'glad', '[1,3)', 1.10, '{x}')")
    queue = usual(table="odd", without=[role for role in usual().roles if role not in ("id", "locked_until")])
    (plain,) = Holder(place, queue).claim()
    queue.fetch = "select m, r, n, a, id from odd"
    place.run("update odd set locked_until = null")
    (fetched,) = Holder(place, queue).claim()
    assert fetched.body == {name: plain.body[name] for name in ("m", "r", "n", "a", "id")}
    assert fetched.body["m"] == "glad"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("select payload from q", r"fetch= returns no column id \(role id\), .* It returns: payload"),
        ("select id, payload, payload from q", "fetch= returns more than one column named payload"),
        ("select cast(id as text) as id from q", "fetch= returns id as .*no row would be found again"),
        ("select id, nowhere.x from q", "fetch= cannot be used: .*nowhere"),
        ("select id from q where attempt = :attempt", "fetch= cannot be used: "),
        ("delete from q where id in (:ids)", "fetch= cannot be used: "),
        ("select id from q; delete from q", "fetch= cannot be used: "),
        ("", "fetch= "),
    ],
)
def test_a_select_that_cannot_serve_is_a_sentence_at_start(place: Place, text: str, says: str) -> None:
    """A3, A5: asked of the server, before anything is claimed."""
    place.create_usual()
    text = text.replace("as text", "as char") if place.dialect == "mariadb" else text
    with pytest.raises(DeclarationProblem, match=rf"^queue q \(tests/.*\): {says}"):
        Holder(place, usual(fetch=text))
    assert place.run("select count(*) from q") == [(0,)]


def test_a_select_is_read_without_writing(place: Place) -> None:
    """A3: a SELECT that changes rows is refused by the database."""
    place.create_usual()
    place.fill(1)
    with pytest.raises(DeclarationProblem, match="fetch= cannot be used"):
        Holder(place, usual(fetch="with gone as (delete from q returning id) select id from gone"))
    assert place.run("select count(*) from q") == [(1,)]


def test_a_handler_takes_what_the_select_returns() -> None:
    """A3, A4: a row by annotation, also beside a payload role; a reason instead of a row does not fit any handler."""
    queue: Any = usual(fetch=JOIN)

    def handle(row: dict[str, Any]) -> None: ...

    queue.handler()(handle)
    for subscription in (queue.subscriptions[0], subscribe(usual(fetch=JOIN))):
        called = plan(subscription, None)
        assert called.decode({"id": 1}) == {"id": 1}
        with pytest.raises(DoesNotFit, match=r"^no row$"):
            called.decode("no row")


def test_the_ids_are_found_only_where_they_are_meant() -> None:
    """A3: not in strings, comments, quoted names or casts."""
    text = """select ':ids', ":ids", e'\\':ids', x::ids, $a$ :ids $a$, id -- :ids
      /* :ids */ from q where id in ( :ids ) ;  -- end"""
    assert fetching.expand(text, "1, 2").endswith("from q where id in ( 1, 2 )")
    assert fetching.expand(text, "1, 2").count(":ids") == 7
    assert not fetching.names_ids("select ':ids'")
