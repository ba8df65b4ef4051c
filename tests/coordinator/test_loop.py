"""How a replica goes down, step by step."""

from __future__ import annotations

from shardrun.coordinator import clock, loop, supervisor
from shardrun.coordinator.replica import Life
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.faults import Held


def test_a_replica_does_not_end_while_a_claim_is_under_way(make_desk: MakeDesk) -> None:
    """H5, R8: what it brings goes back uncounted; else its rows would be leased, and an attempt spent that never ran."""
    desk = make_desk()
    held = Held()
    desk.store.fail("claim", held)
    desk.place.fill(1, payload="{}")
    desk.step()
    replica = desk.replica
    replica.life, replica.patience_ends = Life.ENDING, clock.now() + 60
    children, replica.children = replica.children, []
    assert supervisor.all_dead(replica)
    loop._go_down(replica)
    assert not replica.has_ended
    held.go()
    desk.until(lambda: not desk.service.pacing.under_way)
    desk.until_idle()
    loop._go_down(replica)
    assert replica.has_ended
    assert desk.rows("attempt") == [0]
    replica.children = children


def test_rows_that_the_database_did_not_let_it_settle_are_named_at_the_end(make_desk: MakeDesk) -> None:
    """H5: the exit code says that something is left."""
    desk = make_desk()
    desk.place.fill(1, payload="{}")
    desk.claim()
    replica = desk.replica
    replica.life, replica.patience_ends = Life.ENDING, clock.now() - 1
    children, replica.children = replica.children, []
    loop._go_down(replica)
    assert (replica.has_ended, replica.interrupted) == (True, True)
    replica.children = children
