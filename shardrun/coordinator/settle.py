"""Settle: note how rows ended, have it written in the way of their form, and draw the consequences of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.service import Ended, Service
from shardrun.db.store import Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.policy import endings
from shardrun.policy.leases import Held
from shardrun.policy.retries import unasked
from shardrun.queue import Form

RECOUNT_AGAIN = 0.2
"""Seconds until a count that could not be written is tried again; it changes nothing while another holds the row."""


PUT_OFF = (Verb.RETRY, Verb.SNOOZE)


def acknowledge(service: Service, held: Held) -> None:
    """Note that a row is done: the most frequent ending, kept apart from the others for speed."""
    if service.book.end(held):
        service.acked.append(held)
    else:
        _lost(service, held)


def end(service: Service, ended: Ended) -> None:
    """Note how a row ended; `settle` writes it with the others. A row that was lost meanwhile is only reported."""
    if ended.verb in PUT_OFF:
        turn_back(service, ended.held)
    if service.book.end(ended.held):
        service.ended.append(ended)
    else:
        _lost(service, ended.held)


def turn_back(service: Service, held: Held) -> None:
    """Where a row goes back whose key keeps its order over all replicas, give back the rows behind it, and claim none (R6).

    Those that its child has refuse to start, and come back; each is given back then.
    """
    key = held.row.lane_key
    if service.is_clustered and key is not None:
        service.turned_back.add(key)
        give_back(service, [each for each in held.lane.waiting if each.row.lane_key == key and each is not held])


def release(service: Service, held: Held) -> None:
    """Give an unstarted row back at once, its attempt not spent; nothing is claimed past it meanwhile."""
    if service.book.end(held):
        service.releasing += 1
        service.ended.append(Ended(held, Verb.RELEASE))
    else:
        _lost(service, held)


def recount(replica: Replica, service: Service, held: Held) -> None:
    """Write an adopted row's own count of attempts, beside whatever else happens to the row."""
    if service.subscription.queue.attempt is None:
        return
    count = Settlement(Verb.RECOUNT, held.id, held.token, attempt=held.attempt)

    def done(result: set[Any] | ShardrunError) -> None:
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)
        if isinstance(result, ConnectionLost | DatabaseUnreachable | Conflict) and held.id in service.book:
            replica.later(RECOUNT_AGAIN, lambda: recount(replica, service, held))

    service.holding.write(replica, service, held, lambda connection: service.store.settle(connection, [count]), done)


def settle(replica: Replica) -> None:
    """Have written what has ended and can be written now."""
    for service in replica.services:
        if service.acked or service.ended:
            service.holding.settle(replica, service)


def repeat(replica: Replica, service: Service) -> None:
    """Have written again what a broken connection left in doubt."""
    service.holding.repeat(replica, service)


def settlement(ended: Ended) -> Settlement:
    """Write down what a settlement writes; the count is what the row has after it."""
    held = ended.held
    match ended.verb:
        case Verb.RECOUNT:
            attempt = held.attempt + 1
        case Verb.SNOOZE | Verb.RELEASE:
            attempt = held.attempt - 1
        case _:
            attempt = held.attempt
    return Settlement(ended.verb, held.id, held.token, ended.delay, ended.reason, max(0, attempt))


def freed(replica: Replica, service: Service, written: Iterable[Verb] = (Verb.ACK,)) -> None:
    """Claim again at once where rows wait for a key that may be free now, in whichever table.

    A row that goes back unstarted asks for no claim: it would be the first that is taken, and go back again.
    """
    if service.subscription.has_strands:
        service.pacing.committed()
    if service.subscription.queue.form is not Form.ADVISORY or _FREE_NONE.issuperset(written):
        return
    for each in replica.services:
        if each.subscription.queue.form is Form.ADVISORY:
            each.pacing.committed()


_FREE_NONE = frozenset((Verb.RELEASE, Verb.RECOUNT))


def took_effect(replica: Replica, service: Service, ended: Ended, adopted: bool) -> None:
    """Count a settlement that was written; `adopted` says that the row was claimed again before its answer came."""
    held, counts = ended.held, service.counts
    if ended.verb is Verb.RECOUNT:
        held.attempt += 1
        service.book.put_back(held)  # it stands at the head of its line again
        return
    if adopted:
        _release_again(service, ended)
    else:
        service.book.forget(held)
    match ended.verb:
        case Verb.ACK:
            counts.acked += 1
        case Verb.DROP:
            counts.dropped += 1
        case Verb.BURY:
            counts.dead += 1
        case Verb.RELEASE:
            service.releasing -= 1
        case Verb.RETRY | Verb.SNOOZE:
            counts.retried += 1
            _put_off(replica, service, ended)


def _release_again(service: Service, ended: Ended) -> None:
    """Give back a row that went back and was claimed again on another connection before the answer came: it was adopted,
    though it is a new delivery."""
    held = ended.held
    if ended.verb is Verb.RETRY:
        held.attempt += 1  # the one that ended stays spent; the new one is given back
    service.book.unsettled(held)
    service.releasing += 1
    service.ended.append(Ended(held, Verb.RELEASE))


def _put_off(replica: Replica, service: Service, ended: Ended) -> None:
    """Claim again when the row falls due, where the next poll comes too late for that."""
    if replica.until_empty:
        service.awaited.add(ended.held.id)
    delay = ended.delay or 0.0
    if delay < service.pacing.poll:
        replica.later(delay, service.pacing.committed)


def not_ours(service: Service, ended: Ended, adopted: bool) -> None:
    """Note that a row was not held any more; where it was adopted meanwhile it is ours in another way (R2)."""
    held = ended.held
    if adopted:
        service.book.unsettled(held)
        service.ended.append(ended)
        return
    if ended.verb is Verb.RELEASE:
        service.releasing -= 1
    service.book.forget(held)
    _lost(service, held)


def refused(replica: Replica, service: Service, ended: Ended, why: StatementFailed) -> None:
    """Treat a settlement that the database refuses as a failed attempt; if that is refused too, the row is let go of."""
    held = ended.held
    if service.is_clustered and held.lane is not None:  # it goes back, and what follows it is handed out already
        held.lane.child.stop_lane(held.lane)
        turn_back(service, held)
    log.error("%s row %s: the database refused to settle it (%s): %s", service.name, held.id, ended.verb.name, why)
    if ended.verb in (Verb.ACK, Verb.DROP):
        service.book.unsettled(held)
        delay = unasked(service.subscription.retry, held.attempt, replica.jitter())
        service.ended.append(Ended(held, *endings.failed(service.subscription, held.attempt, delay, str(why))))
        return
    if ended.verb is Verb.RELEASE:
        service.releasing -= 1
    service.book.forget(held)
    service.leave_line(held)
    service.counts.lost += 1


def _lost(service: Service, held: Held) -> None:
    service.counts.lost += 1
    service.leave_line(held)
    turn_back(service, held)
    log.warning("%s row %s: lost; another replica holds it, and nothing was changed", service.name, held.id)


def give_back(service: Service, rows: Iterable[Held]) -> None:
    """Release rows that nothing will start any more."""
    for held in rows:
        service.leave_line(held)
        release(service, held)
