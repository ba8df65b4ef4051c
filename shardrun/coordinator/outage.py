"""Outage: after a connection broke, extend every lease first, then repeat what is in doubt, and only then claim again (R2)."""

from __future__ import annotations

from shardrun.coordinator import clock, keeper, settle
from shardrun.coordinator.replica import AWAY, Outage, Replica, log
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError
from shardrun.policy.retries import backoff


def recover(replica: Replica) -> None:
    """While the database is away: try to extend every lease, again and again with back-off; when it worked, go on."""
    outage = replica.outage
    now = clock.now()
    if outage is None or outage.under_way or now < outage.next_try:
        return
    if outage.repeating:
        _look_at_repeats(replica, outage)
        return
    outage.tries += 1
    outage.failed = False
    holding = [each for each in replica.services if not each.extending and each.book.extendable(now, all_of_them=True)]
    outage.under_way = len(holding) or 1
    for service in holding:
        keeper.extend(replica, service, everything=True, then=lambda error: _answered(replica, outage, error))
    if not holding:
        replica.threads.submit(replica.database.is_usable, lambda result: _pinged(replica, outage, result), urgent=True)


def _pinged(replica: Replica, outage: Outage, result: bool | ShardrunError) -> None:
    error = result if isinstance(result, ShardrunError) else None
    _answered(replica, outage, ConnectionLost("no answer") if result is False else error)


def _answered(replica: Replica, outage: Outage, error: ShardrunError | None) -> None:
    outage.under_way -= 1
    outage.failed = outage.failed or isinstance(error, ConnectionLost | DatabaseUnreachable)
    if outage.under_way:
        return
    if outage.failed:
        _try_later(replica, outage)
        return
    outage.repeating = True
    for service in replica.services:
        settle.repeat(replica, service)


def _look_at_repeats(replica: Replica, outage: Outage) -> None:
    if any(service.settling for service in replica.services):
        return
    outage.repeating = False
    if any(service.in_doubt for service in replica.services):
        _try_later(replica, outage)
        return
    outage.ended = clock.now()
    replica.outage, replica.last_outage = None, outage
    log.warning("the database answers again, after %.1f s", outage.ended - outage.began)


def _try_later(replica: Replica, outage: Outage) -> None:
    wait = backoff(AWAY, outage.tries, 0.0)
    outage.next_try = clock.now() + wait
    replica.later(wait, lambda: None)
