"""Take turns where one connection of a database writes at a time: a child's transaction keeps all others waiting."""

from __future__ import annotations

from shardrun.coordinator.replica import Replica


def is_taken(replica: Replica) -> bool:
    """Tell whether a row is with a child that holds, or waits for, the only place to write: a claim would only wait."""
    return replica.database.one_writer and any(
        lane.handed for service in replica.services if service.subscription.transactional for lane in service.lanes
    )


def may_begin(replica: Replica) -> bool:
    """Tell whether a child may begin a transaction now.

    One beside another would only wait. One after another would keep the coordinator from extending leases: it goes first.
    """
    return not replica.database.one_writer or not (replica.threads.is_busy or is_taken(replica))
