"""Outage: after a connection broke, extend every lease first, then repeat what is in doubt, and only then claim again (R2)."""

from __future__ import annotations

from shardrun.coordinator import clock, keeper, settle
from shardrun.coordinator.replica import Outage, Replica, log
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError

FIRST = 0.05
"""Seconds before the second try. Smaller: more tries against a server that is starting."""

LONGEST = 1.0
"""Seconds between tries at most. Larger: slower recovery when the server is back."""


def recover(replica: Replica) -> None:
    """While the database is away: try to extend every lease, again and again with back-off; when it worked, go on."""
    outage = replica.outage
    now = clock.now()
    if outage is None or outage.under_way or now < outage.next_try:
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
        wait = min(FIRST * 2.0 ** min(outage.tries, 10), LONGEST)
        outage.next_try = clock.now() + wait
        replica.later(wait, lambda: None)
        return
    replica.outage = None
    log.warning("the database answers again, after %.1f s", clock.now() - outage.began)
    for service in replica.services:
        settle.repeat(replica, service)
