"""Claim: ask the database for as many rows as there is room for, and enter them into the lease book."""

from __future__ import annotations

from shardrun.coordinator import clock, one_writer, route, settle
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Ended, Lane, Service
from shardrun.coordinator.threads import Pin
from shardrun.db.store import Claimed, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError
from shardrun.policy.leases import Held

AGAIN = 0.05
"""Seconds until a claim that met a conflict is repeated. Smaller: more of the same conflict."""


def claim(replica: Replica) -> None:
    """Start the claims that are wanted now."""
    if replica.life is not Life.SERVING or replica.outage or one_writer.is_taken(replica):
        return
    now = clock.now()
    wanting = [service for service in replica.services if not (service.releasing or service.in_doubt)]
    while wanting:
        replica.turn += 1  # each subscription is the first in turn, so that none takes every spare connection
        service = wanting[replica.turn % len(wanting)]
        spare, pacing = service.holding.spare(replica, service), service.pacing
        if pacing.may_claim(spare, now) and (limit := pacing.limit(service.demand(), spare, now)):
            _send(replica, service, limit, now)
        else:
            wanting.remove(service)


def next_claim(replica: Replica) -> float:
    """Say when the next claim falls due for its poll interval."""
    if replica.life is not Life.SERVING or replica.outage:
        return float("inf")
    now = clock.now()
    times = (service.pacing.not_before for service in replica.services if not service.pacing.under_way)
    return min((time for time in times if time > now), default=float("inf"))


def _send(replica: Replica, service: Service, limit: int, now: float) -> None:
    service.pacing.claiming(limit)
    full, half = service.full(), service.per_lane // 2
    full_keys = service.keys_left_out(full)

    def done(result: list[Claimed] | ShardrunError, pin: Pin | None) -> None:
        if isinstance(result, ShardrunError):
            _failed(replica, service, limit, result)
        else:
            _took(replica, service, limit, result, now, pin)
            service.full_lanes, service.half_full = full if service.pacing.drought else [], half
            service.look_for_room()  # their rows may have ended while this claim was under way

    service.holding.claim(replica, service, limit, full_keys, done)


def _took(
    replica: Replica, service: Service, limit: int, rows: list[Claimed], claimed_at: float, pin: Pin | None
) -> None:
    new, adopted = service.book.take(rows, claimed_at)
    if pin is not None:
        service.holding.hold(replica, service, [*new, *adopted], pin)
    service.awaited.difference_update(held.id for held in new)
    surplus = _route_all(replica, service, new)
    for held in adopted:  # its claim counted an attempt that is not one (R2)
        settle.recount(replica, service, held)
    for held in surplus:
        settle.release(service, held)
    came_on = len(rows) > len(surplus) or service.pass_over(surplus)
    careful = any(_is_careful(service, held) for held in new)
    service.pacing.claimed(limit, len(rows) if came_on else 0, careful, clock.now(), replica.jitter())
    if service.subscription.has_strands and (due := service.by_strands.strands.next_due) is not None:
        service.pacing.wake(clock.now() + due)


def _route_all(replica: Replica, service: Service, new: list[Held]) -> list[Held]:
    """Put new rows in front of their lanes; returns those that there is no place for now.

    What follows a row that goes back in its lane goes back with it, to keep the order.
    """
    if replica.life is not Life.SERVING:
        return new
    surplus: list[Held] = []
    passed_over = set()
    for held in new:
        lane = held.lane = route.lane_for(service, held)
        if _is_spent(service, held):
            settle.end(service, Ended(held, Verb.BURY, reason=_SPENT.format(held.attempt - 1)))
        elif lane in passed_over or held.row.lane_key in service.turned_back or not _has_place(service, lane, held):
            passed_over.add(lane)
            surplus.append(held)
        else:
            route.put(service, lane, held)
    return surplus


def _has_place(service: Service, lane: Lane | None, held: Held) -> bool:
    """Tell whether a row may wait in front of its lane, or start at once where it must not wait."""
    if _is_careful(service, held) or not service.holding.reads_ahead:
        return route.has_free_lane(service, lane, held)
    return lane is None or lane.load < 2 * service.per_lane_ahead  # of one hot lane's rows, no replica holds more (R16)


def _is_careful(service: Service, held: Held) -> bool:
    """Tell whether a row must not wait in front of a lane, where the death of this replica would spend its attempt (R8).

    That is a row whose last holder may have died before it began, and one at its last attempt: a row that waited in
    replica after replica that died would end among the dead letters without having run.
    """
    most = service.subscription.max_attempts
    return held.row.expired or (most is not None and held.attempt >= most)


_SPENT = "all {} attempts are spent; the last one ended with the death of the replica that ran it"


def _is_spent(service: Service, held: Held) -> bool:
    most = service.subscription.max_attempts
    return most is not None and held.attempt > most


def _failed(replica: Replica, service: Service, limit: int, error: ShardrunError) -> None:
    service.pacing.broke(limit)
    if isinstance(error, ConnectionLost | DatabaseUnreachable):
        replica.connection_lost(error)
    else:
        if isinstance(error, Conflict):
            replica.complain(f"claim {service.label}", "%s: claims are refused for now: %s", service.name, error)
        else:
            log.error("%s: the claim failed: %s", service.name, error)
        service.pacing.not_before = clock.now() + (AGAIN if isinstance(error, Conflict) else service.pacing.poll)
