"""Decide when a replica that runs until its tables are empty has come to the end."""

from __future__ import annotations

from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Service
from shardrun.db.store import Backlog
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError


def look_whether_empty(replica: Replica) -> None:
    """Ask each subscription that has nothing in hand, after a claim that took nothing, what its table still holds."""
    if not replica.until_empty or replica.life is not Life.SERVING or replica.outage:
        return
    endings = sum(service.counts.total for service in replica.services)
    for service in replica.services:
        if service.pacing.drought and not len(service.book) and _is_stale(service, endings):
            _ask(replica, service, endings)
    if all(_is_done(service) for service in replica.services):
        replica.life = Life.DRAINING
        replica.limit_patience()


def _is_stale(service: Service, endings: int) -> bool:
    """Tell whether to ask (again): a claim was answered since, or a row has ended somewhere, which may have added others."""
    answered = service.backlog is not None and service.backlog_endings != endings
    return service.backlog_asked != service.pacing.claims or answered


def _ask(replica: Replica, service: Service, endings: int) -> None:
    service.backlog_asked, service.backlog_endings = service.pacing.claims, endings
    service.backlog = None
    awaited = list(service.awaited)

    def done(result: Backlog | ShardrunError) -> None:
        if isinstance(result, Backlog):
            service.backlog = result
            _say_what_is_awaited(service, result)
        elif isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)

    replica.threads.submit(lambda connection: service.store.backlog(connection, awaited), done)


def _say_what_is_awaited(service: Service, found: Backlog) -> None:
    """Say once that what is due waits for rows that are put off, where rows keep an order over all replicas."""
    if service.subscription.has_strands and found.ready and not service.explained and service.pacing.drought:
        service.explained = True
        strand = "group" if service.subscription.queue.fifo else "key"
        log.info(
            "%s: rows that are due wait behind others of the same %s, which are in work or put off (shardrun status names those "
            "put off); this run ends when they have run", service.name, strand,
        )  # fmt: skip


def _is_done(service: Service) -> bool:
    """Tell whether nothing is in work here, nothing is due or held anywhere, and nothing that this run put off is left.

    An answer from before the last row of any subscription ended was forgotten: a handler may feed another queue.
    """
    backlog = service.backlog
    if backlog is None or len(service.book) or not service.pacing.drought:
        return False
    return not (backlog.ready or backlog.awaited)
