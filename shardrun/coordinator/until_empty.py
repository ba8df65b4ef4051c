"""Decide when a replica that runs until its tables are empty has come to the end."""

from __future__ import annotations

from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Service
from shardrun.db.store import Backlog
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError


def look_whether_empty(replica: Replica) -> None:
    """Ask each subscription that has nothing in hand, after a claim that took nothing, what its table still holds."""
    if not replica.until_empty or replica.life is not Life.SERVING or replica.outage:
        return
    for service in replica.services:
        if service.backlog_asked != service.pacing.claims and service.pacing.drought and not len(service.book):
            _ask(replica, service)
    if all(_is_done(service) for service in replica.services):
        replica.life = Life.DRAINING
        replica.limit_patience()


def _ask(replica: Replica, service: Service) -> None:
    service.backlog_asked = service.pacing.claims
    service.backlog = None
    awaited = list(service.awaited)

    def done(result: Backlog | ShardrunError) -> None:
        if isinstance(result, Backlog):
            service.backlog = result
        elif isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)

    replica.threads.submit(lambda connection: service.store.backlog(connection, awaited), done)


def _is_done(service: Service) -> bool:
    """Tell whether nothing is in work here, nothing is due or held anywhere, and nothing that this run put off is left."""
    backlog = service.backlog
    if backlog is None or len(service.book) or not service.pacing.drought:
        return False
    return not (backlog.ready or backlog.awaited)
