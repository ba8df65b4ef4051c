"""Rows in transactions of children (R3): what was settled there, and what became of those whose child died."""

from __future__ import annotations

from collections.abc import Callable

from shardrun.coordinator import keeper, offers, route, settle
from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.service import Ended, Service
from shardrun.db.store import Connection, Verb
from shardrun.db.taking import Fate
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError
from shardrun.policy.leases import Held, Stage
from shardrun.policy.restarts import FIRST

WORDS = {Verb.ACK: "it is done", Verb.RETRY: "it is put off", Verb.BURY: "it is among the dead letters"}


def end(replica: Replica, service: Service, ended: Ended) -> None:
    """Note what a child has settled and committed."""
    held = ended.held
    if ended.verb in settle.PUT_OFF:
        settle.turn_back(service, held)
    settle.took_effect(replica, service, ended, adopted=held.token != held.handed_token)
    settle.freed(replica, service)


def missed(replica: Replica, service: Service, held: Held, why: str | None) -> None:
    """Put back a row that a child could not take; it counts nothing, and is not handed out before it is known to be ours.

    One that was only offered is forgotten.
    """
    if service.is_offered:
        offers.rest(replica, service, held, why)
        return
    log.info("%s row %s could not be taken for now: %s", service.name, held.id, why)
    if service.book.missed(held):
        route.put_back(service, held)
        keeper.look_soon(replica, service)
    else:
        service.counts.lost += 1


def lost(replica: Replica, service: Service, held: Held, why: str | None) -> None:
    """Forget a row of which a child has found that it is another's; one that was claimed again meanwhile is ours."""
    if held.token != held.handed_token:
        missed(replica, service, held, why)
        return
    service.leave_line(held)
    service.book.forget(held)
    service.counts.lost += 1
    settle.turn_back(service, held)
    log.warning("%s row %s: lost (%s); another replica holds it", service.name, held.id, why)


def look_first(replica: Replica, held: Held, then: Callable[[], None]) -> None:
    """Before a row of a dead child is treated as one that had not ended (`then`), look whether its transaction had committed.

    Its sessions are gone, so nothing is being committed any more. The row stands at the head of its line meanwhile.
    """
    service: Service = held.lane.service
    if held.stage is not Stage.TAKEN:
        then()
        return
    route.put_back(service, held)
    taking = replica.database.taking(service.store.layout)

    def work(connection: Connection) -> Fate:
        return taking.fate(connection, held.id, held.handed_token)

    def done(result: Fate | ShardrunError) -> None:
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)
        if isinstance(result, Conflict) and service.is_offered:  # whoever has locked it now, its child has not
            lost(replica, service, held, "its child died, and another has taken it")
            return
        if isinstance(result, ConnectionLost | DatabaseUnreachable | Conflict):
            replica.later(FIRST, lambda: replica.threads.submit(work, done, urgent=True))
            return
        service.leave_line(held)
        if isinstance(result, ShardrunError) or result is Fate.HELD or held.token != held.handed_token:
            then()
        elif result is Fate.LOST:
            lost(replica, service, held, "its child died in its transaction")
        else:
            verb = Verb(result.value)
            log.info("%s row %s: its transaction had committed: %s", service.name, held.id, WORDS[verb])
            end(replica, service, Ended(held, verb))

    replica.threads.submit(work, done, urgent=True)
