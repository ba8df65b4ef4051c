"""When a run until empty has come to its end, over a real SQLite file."""

from __future__ import annotations

import pytest

from shardrun.coordinator import clock
from shardrun.coordinator.replica import Life
from shardrun.coordinator.until_empty import look_whether_empty
from shardrun.errors import Conflict
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import breaks_before, refuses


def running(make_desk: MakeDesk) -> Desk:
    """Make a desk that runs until empty."""
    desk = make_desk(poll=0.02)
    desk.replica.until_empty = True
    return desk


def ended(desk: Desk) -> bool:
    """Look, as each turn of the loop does."""
    look_whether_empty(desk.replica)
    return desk.replica.life is Life.DRAINING


def works_on(desk: Desk, claims: int = 3) -> None:
    """See that it does not end within some more claims."""
    until = desk.service.pacing.claims + claims
    desk.until(lambda: ended(desk) or desk.service.pacing.claims >= until)
    assert desk.replica.life is Life.SERVING


def test_an_empty_table_ends_it_and_patience_is_limited_from_then_on(make_desk: MakeDesk) -> None:
    """Contract 2: nothing in work here, no unfinished row due."""
    desk = running(make_desk)
    desk.until(lambda: ended(desk))
    assert desk.service.backlog is not None
    assert desk.service.backlog.later == 0
    assert desk.replica.patience_ends < clock.now() + 60


def test_it_never_ends_for_a_replica_that_was_not_asked_to(make_desk: MakeDesk) -> None:
    """Contract 2: nor is the table asked."""
    desk = running(make_desk)
    desk.replica.until_empty = False
    works_on(desk)
    assert desk.store.asked("backlog") == []


def test_a_row_in_hand_keeps_it_running(make_desk: MakeDesk) -> None:
    """Contract 2: until its settlement is written."""
    desk = running(make_desk)
    desk.place.fill(1, payload="{}")
    desk.until(lambda: desk.hand.read())
    assert not ended(desk)
    desk.hand.report(1)
    desk.until(lambda: ended(desk))
    assert desk.rows() == []


def test_a_row_that_another_replica_holds_is_waited_for(make_desk: MakeDesk) -> None:
    """Contract 2: leased rows are, whoever holds them."""
    desk = running(make_desk)
    desk.place.fill(1, payload="{}", locked_until="2999-01-01 00:00:00.000")
    works_on(desk)
    desk.place.run("delete from q")
    desk.until(lambda: ended(desk))


def test_rows_of_the_future_are_counted_and_not_waited_for(make_desk: MakeDesk) -> None:
    """Contract 2: `later`."""
    desk = running(make_desk)
    for _ in range(3):
        desk.place.run(f"insert into q (retry_after) values ({desk.place.seconds(3600)})")
    desk.until(lambda: ended(desk))
    assert desk.service.backlog is not None
    assert desk.service.backlog.later == 3


def test_a_row_that_this_run_put_off_is_waited_for_until_someone_has_finished_it(make_desk: MakeDesk) -> None:
    """Contract 2: no row that this run itself put off is left."""
    desk = running(make_desk)
    desk.place.fill(1, payload="{}")
    desk.until(lambda: desk.hand.read())
    desk.hand.report(1, 1, 3600.0)
    desk.until(lambda: desk.service.counts.retried == 1)
    works_on(desk)
    assert desk.store.asked("backlog")[-1] == [1]
    desk.place.run("delete from q")
    desk.until(lambda: ended(desk))


@pytest.mark.parametrize("fault", [breaks_before, refuses(Conflict("the file is locked"))])
def test_a_look_that_fails_is_taken_again(make_desk: MakeDesk, fault: object) -> None:
    """Contract 2: it ends by what it saw, never by what it could not see."""
    desk = running(make_desk)
    desk.store.fail("backlog", fault)  # type: ignore[arg-type]
    desk.until(lambda: ended(desk))
    assert len(desk.store.asked("backlog")) == 2


def test_a_row_that_ends_after_a_table_was_looked_at_has_it_looked_at_again(make_desk: MakeDesk) -> None:
    """Contract 2: a handler may have fed another queue, whose table was empty a moment ago."""
    desk = running(make_desk)
    desk.service.pacing.poll = 1000.0
    desk.until(lambda: desk.service.pacing.claims == 1)
    look_whether_empty(desk.replica)
    desk.until(lambda: desk.service.backlog is not None)
    desk.service.counts.acked += 1  # as a row of another subscription would
    desk.until(lambda: ended(desk))
    assert len(desk.store.asked("backlog")) == 2
