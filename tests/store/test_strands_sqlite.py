"""Orders over all replicas on SQLite: what a claim of FIFO groups, and of partition keys, takes and leaves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from shardrun.db.store import Verb
from shardrun.db.strands import StrandStore
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import ROLES, Holder, Place, usual


class StrandHolder(Holder):
    """A replica whose claims go by strands; `held` are the ids of the rows that it holds."""

    def __init__(self, place: Place, queue: Queue[Any], **settings: Any) -> None:
        super().__init__(place, queue, **settings)
        self.held: set[Any] = set()

    def claim(self, limit: int = 100, full_keys: Sequence[Any] = (), held: Collection[Any] = ()) -> list[Any]:
        """Claim rows strand by strand."""
        store = cast(StrandStore, self.store)
        rows = list(store.claim_strands(self.connection, limit, full_keys, {*self.held, *held}))
        self.held.update(row.id for row in rows)
        return rows

    def one(self, verb: Verb, row: Any, token: str | None = None, **values: Any) -> bool:
        """Settle one row, which is held no more."""
        self.held.discard(row.id)
        return super().one(verb, row, token, **values)


@pytest.fixture
def file(open_place: Opener) -> Place:
    """Give an empty file."""
    return open_place("sqlite")


def fifo(**more: Any) -> Queue[Any]:
    """Declare a queue whose groups are FIFO."""
    return usual(group="account", fifo=True, **more)


def grouped(place: Place, *accounts: Any, kind: str = "text", **more: Any) -> None:
    """Create a table of accounts, and a row for each of these."""
    place.create_usual(account=kind)
    for account in accounts:
        place.fill(1, account=account, **more)


def keyed(place: Place, *keys: Any) -> StrandHolder:
    """Create a table of keys with a row for each of these, and a replica that keeps their order over all replicas."""
    place.create_usual()
    for key in keys:
        place.fill(1, partition_key=key)
    return in_order(place)


def in_order(place: Place, **settings: Any) -> StrandHolder:
    """Open a replica that keeps the order of keys over all replicas."""
    return StrandHolder(place, usual(), workers_by_key=4, key_scope="cluster", **settings)


def test_one_row_of_a_group_is_in_work_at_a_time_over_all_replicas(file: Place) -> None:
    """D3, R5: the first row of each group; the next when that has ended, whoever asks, and whatever else it claims."""
    grouped(file, "a", "a", "b", "a", "b")
    first, second = StrandHolder(file, fifo()), StrandHolder(file, fifo())
    (head,) = first.claim(1)
    assert head.id == 1
    (other,) = second.claim()
    assert other.id == 3
    assert first.ids() == second.ids() == []
    assert cast(Any, second.store).take(second.connection, ["a", "b"], 9, {3}) == []  # as after a look that is old
    assert first.one(Verb.ACK, head)
    assert second.ids() == [2]
    assert second.one(Verb.RETRY, other, delay=None, reason="no")
    assert [(row.id, row.attempt, row.expired) for row in first.claim()] == [(3, 2, False)]


def test_a_failed_head_blocks_its_group_and_a_row_that_has_not_begun_blocks_nobody(file: Place) -> None:
    """D3, E3: a delayed retry keeps the group waiting; scheduled and snoozed rows let others pass."""
    grouped(file, "a", "a", "b", "b", "c", "c")
    file.run(f"update q set retry_after = {file.seconds(60)} where id = 3")
    holder = StrandHolder(file, fifo())
    failed, scheduled, snoozed = holder.claim()
    assert (failed.id, scheduled.id, snoozed.id) == (1, 4, 5)
    assert holder.one(Verb.RETRY, failed, delay=60.0, reason="no", attempt=1)
    assert holder.one(Verb.SNOOZE, snoozed, delay=60.0, attempt=0)
    assert holder.ids() == [6]
    file.run(f"update q set retry_after = {file.seconds(-1)} where id = 1")
    assert holder.ids() == [1]


def test_a_group_goes_on_by_priority_then_due_time_then_id_but_for_rows_that_have_begun(file: Place) -> None:
    """D3, D2: begun rows come first, then the claim order."""
    grouped(file)
    due = [("null", 1, 0), (file.seconds(-5), 0, 0), (file.seconds(-9), 0, 0), ("null", 0, "null"), ("null", 9, 2)]
    for time, priority, attempt in due:
        file.run(f"insert into q (account, retry_after, priority, attempt) values ('a', {time}, {priority}, {attempt})")
    holder, seen = StrandHolder(file, fifo()), []
    while rows := holder.claim():
        seen.append(rows[0].id)
        assert holder.one(Verb.ACK, rows[0])
    assert seen == [5, 4, 3, 2, 1]


def test_a_lease_that_ran_out_is_the_head_again(file: Place) -> None:
    """D3, R8: its row comes back first, marked, with its attempts counted."""
    grouped(file, "a", "a")
    assert StrandHolder(file, fifo()).ids() == [1]
    file.run(f"update q set locked_until = {file.seconds(-1)} where id = 1")
    assert [(row.id, row.attempt, row.expired) for row in StrandHolder(file, fifo()).claim()] == [(1, 2, True)]


def test_groups_are_the_values_that_sqlite_calls_equal(file: Place) -> None:
    """D3, R16: by the column's collation; a number and its text are two in a column without a type."""
    file.create_usual(account="text collate nocase")
    file.create("mixed", **ROLES, account="")
    for account in ("a", "A", "b"):
        file.fill(1, account=account)
    for value in (5, "5", 5.0, b"5", "5"):
        file.fill(1, "mixed", account=value)
    file.run(
        "insert into mixed (account) values (cast(x'ff61' as text)), (cast(x'ff61' as text)), (x'ff61'), ('\u00ffb')"
    )
    assert StrandHolder(file, fifo()).ids() == [1, 3]
    holder = StrandHolder(file, fifo(table="mixed"))
    assert sorted(holder.ids(1) + holder.ids(1) + holder.ids()) == [1, 2, 4, 6, 8, 9]
    assert holder.ids() == []


def test_rows_without_a_group_are_in_no_order_and_a_fixed_group_is_alone(file: Place) -> None:
    """D3, B5: NULL is no group; a handler of one group takes the head of that one."""
    grouped(file, None, None, "a", "b", "b")
    assert sorted(StrandHolder(file, fifo(), group="b").ids()) == [4]
    assert StrandHolder(file, fifo()).ids() == [3, 1, 2]


def test_a_row_that_cannot_be_claimed_blocks_its_strand_alone(file: Place, caplog: pytest.LogCaptureFixture) -> None:
    """D3, D4, C92: it is named once, and no row of its group or key passes it."""
    grouped(file, "a", "a", "b", "b", partition_key="k")
    file.run("create trigger no before update on q when old.id in (1, 5) begin select raise(abort, 'not me'); end")
    holder = StrandHolder(file, fifo())
    with caplog.at_level(logging.ERROR):
        assert holder.ids() == [3]
        assert holder.ids() == []
    assert len([each for each in caplog.records if "row 1" in each.getMessage()]) == 1
    file.run("delete from q")
    for id, key in [(4, "k"), (5, "k"), (6, "k"), (7, "m"), (8, "m")]:
        file.fill(1, id=id, partition_key=key)
    assert in_order(file).ids() == [4, 7, 8]


def test_a_table_whose_finished_rows_stay_goes_on_group_by_group(file: Place) -> None:
    """D3, A5: finished rows are of no strand."""
    grouped(file, "a", "a")
    file.run("alter table q add column processed_at timestamp")
    holder = StrandHolder(file, fifo(processed_at="processed_at"))
    for id in (1, 2):
        (row,) = holder.claim()
        assert row.id == id
        assert holder.one(Verb.ACK, row)
    assert holder.ids() == []


def test_a_key_goes_on_as_far_as_this_replica_holds_its_rows(file: Place) -> None:
    """D4, R6: a row is claimed if each unfinished row before it is held by this replica, or claimed with it."""
    first = keyed(file, "a", "b", "a", "a")
    second = in_order(file)
    one, two, three = first.claim(3)
    assert (one.id, two.id, three.id) == (1, 3, 4)
    assert second.ids() == [2]
    assert cast(Any, second.store).take(second.connection, ["a"], 9, {2}) == []  # as after a look that is old
    file.fill(1, partition_key="a")
    assert second.ids() == []
    (four,) = first.claim()
    assert four.id == 5
    assert first.one(Verb.ACK, one)
    for row in (two, three, four):
        assert first.one(Verb.RELEASE, row, attempt=0)
    assert second.ids(2) == [3, 4]
    assert first.ids() == []


def test_a_delayed_row_holds_its_key_and_begun_rows_come_first(file: Place) -> None:
    """D4, R6, E3: a row that is put off keeps its place, failed or scheduled, while other keys go on."""
    first = keyed(file, "a", "a", "b", "b", "c", "d", "d", "d")
    file.run(f"update q set retry_after = {file.seconds(60)} where id in (3, 7)")
    rows = first.claim()
    assert [row.id for row in rows] == [1, 2, 5, 6]
    assert first.one(Verb.RELEASE, rows[1], attempt=0)
    assert first.one(Verb.RETRY, rows[0], delay=60.0, reason="no", attempt=1)
    file.fill(1, partition_key="a", priority=-1)
    assert first.ids() == in_order(file).ids() == []
    file.run("update q set retry_after = null")
    assert sorted(in_order(file).ids()) == [1, 2, 3, 4, 9]


def test_a_claim_takes_its_limit_from_keys_in_turn_and_leaves_out_full_ones(file: Place) -> None:
    """D4, R16: a limit is one over all keys; the next claim goes on behind it."""
    first = keyed(file, *"aabbcc")
    assert first.ids(3, full_keys=["a"]) == [3, 4, 5]
    assert first.ids(100, full_keys=["b", "c"]) == [1, 2]
    assert first.ids() == [6]
    for key in [*["d"] * 20, *"efg"]:
        file.fill(1, partition_key=key)
    assert in_order(file).ids(12) == [*range(7, 15), 27, 28, 29]
    assert in_order(file).ids() == []


def test_a_strand_that_waits_says_for_how_long(file: Place) -> None:
    """E3: a retry is claimed when it falls due, without a walk over all strands."""
    grouped(file, "a", "a")
    holder = StrandHolder(file, fifo())
    (row,) = holder.claim()
    assert holder.one(Verb.RETRY, row, delay=60.0, reason="no", attempt=1)
    assert holder.ids() == []
    due = cast(StrandStore, holder.store).strands.next_due
    assert due is not None
    assert 50 < due <= 60


@pytest.mark.parametrize("scope", ["fifo", "cluster"])
def test_the_index_that_ddl_prints_serves_and_a_look_at_long_strands_is_short(file: Place, scope: str) -> None:
    """A7, H3: a few seeks for each strand, however many rows it has; the index has a name of its own."""
    grouped(file)
    file.run(
        "with recursive n (i) as (select 0 union all select i + 1 from n where i < 19999) insert into q (account, "
        "partition_key, attempt) select 'g' || (i % 20), 'k' || (i % 20), iif(i % 3, 0, null) from n"
    )
    queue = fifo() if scope == "fifo" else usual()
    settings: dict[str, Any] = {} if scope == "fifo" else {"workers_by_key": 4, "key_scope": "cluster"}
    holder = StrandHolder(file, queue, **settings)
    (warning,) = file.database.warnings(file.own, queue.subscriptions[-1])
    assert "q_claim_in_order" in warning
    for text in file.database.ddl(queue, queue.subscriptions, file.own):
        file.run(text)
    assert not file.database.warnings(file.own, queue.subscriptions[-1])
    steps: list[int] = []
    holder.connection.set_progress_handler(lambda: steps.append(1), 100)
    assert len(holder.claim(20)) == 20
    assert len(steps) < 1000


def test_a_replica_has_a_key_while_it_holds_any_row_of_it(file: Place) -> None:
    """D4, R6: also where the row that came late, and stands before that one, has lost its lease first."""
    first = keyed(file)
    second = in_order(file)
    file.run("insert into q (id, partition_key) values (2, 'a')")
    assert first.ids() == [2]
    file.run("insert into q (id, partition_key) values (1, 'a')")
    assert first.ids() == [1]
    file.run(f"update q set locked_until = {file.seconds(-1)} where id = 1")
    assert second.ids() == []
    file.run(f"update q set locked_until = {file.seconds(-1)} where id = 2")
    assert second.ids() == [1, 2]
