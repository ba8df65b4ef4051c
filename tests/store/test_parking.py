"""Rows of a queue that an operator moves to the dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Verb
from shardrun.errors import StatementFailed
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual
from tests.store.test_requeue import opened


def test_rows_that_no_one_holds_move_as_they_are_and_those_in_work_stay(place: Place) -> None:
    """E3, D3: id, attempts and payload are kept, the reason is written; it is told what stays, and that a look moves nothing."""
    place.create_usual()
    place.fill(3, attempt=2, partition_key="k", payload="{}")
    letters = opened(place)
    holder = Holder(place, usual())
    one, two = holder.claim(2)
    assert holder.one(Verb.RETRY, one, delay=60.0, reason="no", attempt=3)
    assert letters.waiting(place.own, [1, 2, 3, 9]) == [1, 2, 3]
    assert sorted(letters.idle(place.own, [1, 2, 3, 9])) == [1, 3]
    assert letters.park(place.connect(), [1, 2, 3, 9], "in the way") == [1, 3]  # no lock is left from the look
    columns = "id, attempt, partition_key, last_error"
    assert place.run(f"select {columns} from q_dead order by id") == [
        (1, 3, "k", "in the way"),
        (3, 2, "k", "in the way"),
    ]
    assert place.run("select id from q") == [(2,)]
    assert letters.requeue(place.own, [1], None)
    (again,) = Holder(place, usual()).claim()
    assert (again.id, again.attempt) == (1, 1)
    assert again.token > one.token  # R1
    assert holder.one(Verb.ACK, two)


def test_rows_of_other_groups_and_finished_ones_are_none_of_the_queues(place: Place) -> None:
    """E3, B5: a handler of one group parks that group's rows, in a group of the table where it has no other."""
    place.create_usual(group="text", processed_at="time")
    place.fill(2, group="live")
    place.fill(1, group="other")
    place.run(f"update q set processed_at = {place.seconds(-1)} where id = 2")
    place.run(f"update q set locked_until = {place.seconds(-1)} where id = 1")
    letters = opened(place, usual(group="group", processed_at="processed_at"), group="live", dead_letter_group="gone")
    assert letters.park(place.own, [1, 2, 3], "no") == letters.choose(place.own, None, None, 9) == [1]
    assert place.run("select id from q where locked_until < '1900-01-01'") == [(1,)]  # no lease that ran out any more
    assert place.run('select id, "group", last_error from q order by id') == [
        (1, "gone", "no"),
        (2, "live", None),
        (3, "other", None),
    ]


@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_a_row_that_a_transaction_holds_is_in_work(open_place: Opener, dialect: str) -> None:
    """E3, B2: under row locks, and where a child's transaction has taken the row; nobody waits."""
    place = open_place(dialect)
    place.create_usual()
    place.fill(2)
    other = place.child()
    other.execute("select id from q where id = 1 for update")
    letters = opened(place, usual(without=["locked_until"]))
    assert letters.idle(place.own, [1, 2]) == letters.park(place.own, [1, 2], "no") == [2]


def test_nothing_is_moved_where_the_dead_letters_refuse_a_row(place: Place) -> None:
    """E3: all of a batch or nothing; what is refused is said."""
    place.create_usual()
    place.fill(2)
    place.run("insert into q_dead (id) values (2)")
    letters: Any = opened(place)
    with pytest.raises(StatementFailed):
        letters.park(place.own, [1, 2], "no")
    assert place.run("select count(*) from q") == [(2,)]
    assert place.run("select count(*) from q_dead") == [(1,)]
