"""What settlements write, and that they write it only under the row's own token."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.store import Settlement, Verb
from shardrun.errors import StatementFailed
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual

VERBS = [Verb.ACK, Verb.DROP, Verb.RETRY, Verb.SNOOZE, Verb.BURY, Verb.RELEASE, Verb.RECOUNT]


def claim_one(place: Place, **settings: Any) -> tuple[Holder, Any]:
    """Claim the one row of a usual table."""
    place.create_usual()
    place.fill(1, payload='{"a": 1}', attempt=1)
    holder = Holder(place, usual(), **settings)
    return holder, holder.claim()[0]


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_written_under_another_token(place: Place, verb: Verb) -> None:
    """B2: a settlement whose lease was taken over changes nothing and says so."""
    holder, row = claim_one(place, dead_letter="q_dead")
    place.run(f"update q set locked_until = {place.seconds(-1)}")
    (again,) = Holder(place, usual()).claim()
    before = place.run("select * from q")
    assert again.token > row.token
    assert not holder.one(verb, row, delay=1.0, reason="late", attempt=7)
    assert place.run("select * from q") == before
    assert place.run("select * from q_dead") == []


def test_an_ack_deletes_the_row(place: Place) -> None:
    """E1: without a `processed_at` role a finished row is gone."""
    holder, row = claim_one(place)
    assert holder.one(Verb.ACK, row)
    assert place.run("select * from q") == []


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.DROP])
def test_with_processed_at_a_finished_row_stays_and_is_not_claimed_again(place: Place, verb: Verb) -> None:
    """E1: an ack sets `processed_at`, and a drop its reason too."""
    place.create_usual(processed_at="time")
    place.fill(2)
    holder = Holder(place, usual(processed_at="processed_at"))
    row = holder.claim(1)[0]
    assert holder.one(verb, row, reason="not wanted")
    ((processed, error),) = place.run("select processed_at, last_error from q where id = 1")
    assert processed is not None
    assert error == ("not wanted" if verb is Verb.DROP else None)
    place.run("update q set locked_until = null")
    assert holder.ids() == [2]


def test_a_drop_without_processed_at_deletes_the_row(place: Place) -> None:
    """E1: a drop is settled as an ack is."""
    holder, row = claim_one(place)
    assert holder.one(Verb.DROP, row, reason="not wanted")
    assert place.run("select * from q") == []


def test_a_retry_at_once_is_claimed_again_with_its_count(place: Place) -> None:
    """E1: a retry counts an attempt, and keeps its reason."""
    holder, row = claim_one(place)
    assert holder.one(Verb.RETRY, row, reason="ValueError: no")
    assert place.run("select attempt, last_error from q") == [(2, "ValueError: no")]
    assert [(again.attempt, again.expired) for again in holder.claim()] == [(3, False)]


@pytest.mark.parametrize("without", [[], ["retry_after"]])
def test_a_delayed_row_is_due_after_the_delay(place: Place, without: list[str]) -> None:
    """E1: a delay is written by the database's clock, into the lease's column where there is no other."""
    place.create_usual(without=without)
    place.fill(2)
    holder = Holder(place, usual(without=without))
    now, later = holder.claim()
    assert holder.one(Verb.RETRY, now, delay=0.001)
    assert holder.one(Verb.SNOOZE, later, delay=3600.0, attempt=0)
    column = "locked_until" if without else "retry_after"
    ((ahead,),) = place.run(
        f"select count(*) from q where id = 2 and {column} between {place.seconds(3590)} and {place.seconds(3610)}"
    )
    assert ahead == 1
    place.run(f"update q set {column} = {place.seconds(-1)} where id = 1")
    assert holder.ids() == [1]


def test_a_snooze_takes_its_attempt_back(place: Place) -> None:
    """E1: a snooze counts no attempt."""
    holder, row = claim_one(place)
    assert holder.one(Verb.SNOOZE, row, delay=60.0, attempt=row.attempt - 1)
    assert place.run("select attempt from q") == [(1,)]


def test_released_rows_are_free_at_once_and_uncounted(place: Place) -> None:
    """B2: rows that did not start go back at once, with no attempt spent."""
    place.create_usual()
    place.fill(2)
    place.fill(1, attempt=3)
    holder = Holder(place, usual())
    rows = holder.claim()
    assert holder.settle(*(Settlement(Verb.RELEASE, row.id, row.token, attempt=row.attempt - 1) for row in rows)) == {
        1,
        2,
        3,
    }
    assert place.run("select attempt from q order by id") == [(0,), (0,), (3,)]
    assert [row.attempt for row in holder.claim()] == [1, 1, 4]


def test_a_recount_keeps_the_lease(place: Place) -> None:
    """R7: a count that is put right leaves the row with its holder."""
    holder, row = claim_one(place)
    assert holder.one(Verb.RECOUNT, row, attempt=5, reason="killed by signal 9")
    assert place.run("select attempt, last_error from q") == [(5, "killed by signal 9")]
    assert holder.ids() == []
    assert holder.one(Verb.ACK, row)


def test_a_mixed_batch_settles_at_once_and_names_the_lost(place: Place) -> None:
    """C104: outcomes are per row; one transaction writes them all."""
    place.create_usual()
    place.fill(7)
    holder = Holder(place, usual(), dead_letter="q_dead")
    first, second = holder.claim(4), holder.claim(3)
    lost = Settlement(Verb.ACK, second[2].id, first[0].token if first[0].token != second[2].token else "2001-01-01")
    effective = holder.settle(
        Settlement(Verb.ACK, first[0].id, first[0].token),
        Settlement(Verb.RETRY, first[1].id, first[1].token, delay=1.0),
        Settlement(Verb.ACK, second[0].id, second[0].token),
        Settlement(Verb.BURY, first[2].id, first[2].token, reason="dead"),
        Settlement(Verb.RELEASE, second[1].id, second[1].token),
        Settlement(Verb.DROP, first[3].id, first[3].token),
        lost,
    )
    assert effective == {1, 2, 3, 4, 5, 6}
    assert place.run("select id from q order by id") == [(2,), (6,), (7,)]
    assert place.run("select id from q_dead") == [(3,)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_settlement_that_was_committed_before_counts_as_effective(place: Place, verb: Verb) -> None:
    """R1: after a doubt the same statement is repeated, and a locking look tells the rest."""
    holder, row = claim_one(place, dead_letter="q_dead")
    settlement = Settlement(verb, row.id, row.token, delay=60.0, reason="r", attempt=1)
    assert holder.settle(settlement) == {row.id}
    left = place.run("select * from q")
    assert holder.settle(settlement, repeated=True) == {row.id}
    assert place.run("select * from q") == left


@pytest.mark.parametrize("verb", VERBS)
def test_a_repeated_settlement_of_a_row_that_another_took_is_lost(place: Place, verb: Verb) -> None:
    """R1: the old or the new value is ours, and anything else is lost."""
    holder, row = claim_one(place, dead_letter="q_dead")
    place.run(f"update q set locked_until = {place.seconds(-1)}")
    assert Holder(place, usual()).ids() == [row.id]
    assert holder.settle(Settlement(verb, row.id, row.token, delay=60.0), repeated=True) == set()


def test_a_constraint_that_forbids_one_row_undoes_the_batch(place: Place) -> None:
    """C93: the store says that nothing was done, so that the caller can settle row by row."""
    place.create_usual()
    place.run("create table audit (row_id bigint references q (id))")
    place.fill(3)
    place.run("insert into audit values (2)")
    holder = Holder(place, usual())
    if place.dialect == "sqlite":
        holder.connection.execute("pragma foreign_keys = on")
    rows = holder.claim()
    with pytest.raises(StatementFailed, match=r"(?i)foreign key"):
        holder.settle(*(Settlement(Verb.ACK, row.id, row.token) for row in rows))
    assert place.run("select count(*) from q") == [(3,)]
    assert [holder.settle(Settlement(Verb.ACK, row.id, row.token)) for row in (rows[0], rows[2])] == [{1}, {3}]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_a_constraint_checked_at_commit_is_seen(open_place: Opener, dialect: str) -> None:
    """C93: a deferred foreign key refuses the commit; the row is not reported as settled, and the connection works on."""
    place = open_place(dialect)
    place.create_usual()
    place.run("create table audit (row_id bigint references q (id) deferrable initially deferred)")
    place.fill(3)
    place.run("insert into audit values (2)")
    holder = Holder(place, usual())
    if place.dialect == "sqlite":
        holder.connection.execute("pragma foreign_keys = on")
    one, two, three = holder.claim()
    acks = [Settlement(Verb.ACK, one.id, one.token), Settlement(Verb.ACK, two.id, two.token)]
    with pytest.raises(StatementFailed, match=r"(?i)foreign key"):
        holder.settle(*acks)
    with pytest.raises(StatementFailed, match=r"(?i)foreign key"):
        holder.settle(*acks, Settlement(Verb.RETRY, three.id, three.token))
    assert place.run("select count(*) from q") == [(3,)]
    assert holder.settle(acks[0]) == {1}


@pytest.mark.parametrize(
    "text", ["a\x00b", "a\ud800b", "\udcff", "x" * 100_000, "100% %s %(x)s {0}", "'\"\\", "🧾", ""]
)
@pytest.mark.parametrize("kind", ["text", "varchar(50)"])
def test_any_reason_can_be_stored(place: Place, text: str, kind: str) -> None:
    """C43: failing to store the text never stops the state change."""
    place.create_usual(without=["last_error"], last_error=kind)
    place.fill(1)
    holder = Holder(place, usual(), dead_letter="q_dead")
    (row,) = holder.claim()
    assert holder.one(Verb.RETRY, row, reason=text)
    ((stored,),) = place.run("select last_error from q")
    assert stored[:1] == text[:1].encode("utf-8", "backslashreplace").decode()[:1]
    assert holder.one(Verb.BURY, holder.claim()[0], reason=text)
