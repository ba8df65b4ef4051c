"""Say once why nothing happens: the first time that a claim took nothing and no row is in hand, what the table holds."""

from __future__ import annotations

from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Service
from shardrun.db.store import WAITING_LIMIT, Waiting
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError
from shardrun.queue import Form, Subscription
from shardrun.summary import counted, duration


def explain(replica: Replica) -> None:
    """Ask each subscription that has met an empty table, once; a run until empty ends there, and says so."""
    if replica.until_empty or replica.life is not Life.SERVING or replica.outage:
        return
    for service in replica.services:
        if service.full_lanes:
            continue  # it took nothing because there was no room
        if not service.explained and service.pacing.claims and service.pacing.drought and not len(service.book):
            service.explained = True
            _ask(replica, service)


def _ask(replica: Replica, service: Service) -> None:
    def done(result: Waiting | ShardrunError) -> None:
        if isinstance(result, Waiting):
            fields = {"queue": service.name, **result._asdict()}
            log.info(
                "%s: %s",
                service.name,
                reason(result, service.subscription),
                extra={"fields": fields},
            )
        elif isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)

    replica.threads.submit(service.store.waiting, done)


def reason(found: Waiting, subscription: Subscription) -> str:
    """Write why nothing is done, as one or two sentences; without a lease, due rows that were not taken are others'."""
    form = subscription.queue.form
    if not found.rows:
        return _no_row(found, subscription.group)
    more = "+" if found.rows >= WAITING_LIMIT else ""
    waiting = f"{found.later:,}{more} {'row waits' if found.later == 1 else 'rows wait'}"
    if found.first is not None:
        waiting += f", the first until {_moment(found)}"
    said = f"nothing is due. {waiting}"
    if form is Form.LEASE:
        said += f"; {found.leased:,}{more} leased"
    elif not found.free:
        said += f"; 0{more} locked by others"
    return f"{said}.{_not_taken(found.free, subscription) if found.free else ''}"


def _not_taken(free: int, subscription: Subscription) -> str:
    form = subscription.queue.form
    if subscription.has_strands:
        strand = "group" if subscription.queue.fifo else "key"
        waits = "row waits" if free == 1 else "rows wait"
        return (
            f" {free:,} {waits} behind others of the same {strand}, which are in work or put off: shardrun status names those "
            "put off."
        )
    it, it_is, its_key = ("it", "it is", "its key") if free == 1 else ("them", "they are", "their keys")
    who = f"someone else has locked {its_key}" if form is Form.ADVISORY else f"another transaction has locked {it}"
    return f" {counted(free, 'row')} could not be taken: {who}, or {it_is} only just there."


def _no_row(found: Waiting, group: str | None) -> str:
    none = "the table has no unfinished row" + ("" if group is None else f" of group {group!r}")
    if found.elsewhere is not None:
        return f"{none}, but it has some of group {found.elsewhere}."
    return f"{none} (a transaction that has not committed yet is not seen)."


def _moment(found: Waiting) -> str:
    """Write a due time: the hour alone where it is within a day."""
    first, seconds = str(found.first)[:19], found.seconds or 0.0
    if not 0 <= seconds < 365_000 * 86_400:
        return first
    return f"{first[11:] if seconds < 86_400 else first} UTC (in {duration(seconds)})"
