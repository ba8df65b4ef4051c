"""Settle: write how rows ended, many in one statement, each only while the row still carries our token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardrun.coordinator import clock, endings
from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.service import Ended, Service
from shardrun.db.store import Connection, Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.outcome import Backoff
from shardrun.policy.leases import Held, Hold
from shardrun.policy.retries import backoff

MOST = 1000
"""Rows per statement. Larger: cheaper per row. Smaller: less work to repeat when one of them is refused."""

AGAIN = 0.02
"""Seconds until a settlement that met a conflict is repeated."""

Answers = Mapping[Any, bool | StatementFailed]
"""Per id: whether the settlement took effect, or why the database refused it."""


def end(service: Service, ended: Ended) -> None:
    """Note how a row ended; `settle` writes it with the others. A row that was lost meanwhile is only reported."""
    if service.book.end(ended.held):
        service.ended.append(ended)
    else:
        _lost(service, ended.held)


def release(service: Service, held: Held) -> None:
    """Give an unstarted row back at once, its attempt not spent."""
    service.releasing += 1
    end(service, Ended(held, Verb.RELEASE))
    if held.hold is Hold.LOST:
        service.releasing -= 1


def recount(replica: Replica, service: Service, held: Held) -> None:
    """Write an adopted row's own count of attempts, beside whatever else happens to the row."""
    if service.subscription.queue.attempt is None:
        return
    settlement = Settlement(Verb.RECOUNT, held.id, held.token, attempt=held.attempt)

    def done(result: set[Any] | ShardrunError) -> None:
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)

    replica.threads.submit(lambda connection: service.store.settle(connection, [settlement]), done, urgent=True)


def settle(replica: Replica) -> None:
    """Send what has ended, one batch per subscription at a time; what ends meanwhile makes the next batch."""
    if replica.outage:
        return
    for service in replica.services:
        if service.ended and not service.settling:
            batch = _next_batch(service)
            if batch:
                _send(replica, service, batch)


def repeat(replica: Replica, service: Service) -> None:
    """Send the batch that a broken connection left in doubt: each statement changes its row only if it has not yet (R1)."""
    if service.in_doubt and not service.settling:
        batch, service.in_doubt = service.in_doubt, []
        _send(replica, service, batch, repeated=True)


def _next_batch(service: Service) -> list[Ended]:
    batch: list[Ended] = []
    rest: list[Ended] = []
    for ended in service.ended:
        held = ended.held
        if held.hold is Hold.SURE and len(batch) < MOST:
            service.book.settle(held)
            batch.append(ended)
        elif held.hold is not Hold.LOST:
            rest.append(ended)
        elif ended.verb is Verb.RELEASE:
            service.releasing -= 1
    service.ended = rest
    return batch


def _send(replica: Replica, service: Service, batch: list[Ended], repeated: bool = False) -> None:
    service.settling = True
    settlements = [_settlement(ended) for ended in batch]

    def work(connection: Connection) -> Answers:
        return _write(service, connection, settlements, repeated)

    def done(result: Answers | ShardrunError) -> None:
        service.settling = False
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            service.in_doubt = batch
            replica.connection_lost(result)
        elif isinstance(result, Conflict):
            service.settling = True
            replica.later(AGAIN, lambda: _send(replica, service, batch, repeated))
        elif isinstance(result, ShardrunError):
            raise result
        else:
            _settled(replica, service, batch, settlements, result)

    replica.threads.submit(work, done, urgent=True)


def _settlement(ended: Ended) -> Settlement:
    held = ended.held
    if ended.verb is Verb.ACK:
        return Settlement(Verb.ACK, held.id, held.tokens[0])
    attempt = held.attempt + 1 if ended.verb is Verb.RECOUNT else held.attempt - 1
    return Settlement(ended.verb, held.id, held.tokens[0], ended.delay, ended.reason, max(0, attempt))


def _write(
    service: Service, connection: Connection, settlements: Sequence[Settlement], repeated: bool
) -> dict[Any, bool | StatementFailed]:
    """Write all at once; where one of them is refused, write them one by one, so that it holds up no other."""
    try:
        effective = service.store.settle(connection, settlements, repeated)
        return {settlement.id: settlement.id in effective for settlement in settlements}
    except StatementFailed as error:
        if len(settlements) == 1:
            return {settlements[0].id: error}
    answers: dict[Any, bool | StatementFailed] = {}
    for settlement in settlements:
        answers |= _write(service, connection, [settlement], repeated)
    return answers


def _settled(
    replica: Replica, service: Service, batch: list[Ended], settlements: Sequence[Settlement], answers: Answers
) -> None:
    for ended, settlement in zip(batch, settlements, strict=True):
        held = ended.held
        answer = answers[held.id]
        if answer is True:
            _took_effect(replica, service, ended)
        elif isinstance(answer, StatementFailed):
            _refused(replica, service, ended, answer)
        elif held.token != settlement.token:  # it was adopted meanwhile: ours again, under another token
            service.book.unsettled(held)
            service.ended.append(ended)
        else:
            if ended.verb is Verb.RELEASE:
                service.releasing -= 1
            service.book.forget(held)
            _lost(service, held)


def _took_effect(replica: Replica, service: Service, ended: Ended) -> None:
    held, counts = ended.held, service.counts
    if ended.verb is Verb.RECOUNT:
        held.attempt += 1
        service.book.put_back(held)  # it stands at the head of its line again
        return
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


def _put_off(replica: Replica, service: Service, ended: Ended) -> None:
    """Claim again when the row falls due, not a poll interval later."""
    if replica.until_empty:
        service.awaited.add(ended.held.id)
    service.pacing.wake(clock.now() + (ended.delay or 0.0))


def _refused(replica: Replica, service: Service, ended: Ended, why: StatementFailed) -> None:
    """Treat a settlement that the database refuses as a failed attempt; if that is refused too, the lease runs out."""
    held = ended.held
    log.error("%s row %s: the database refused to settle it (%s): %s", service.name, held.id, ended.verb.name, why)
    if ended.verb in (Verb.ACK, Verb.DROP):
        service.book.unsettled(held)
        rule = service.subscription.retry
        delay = backoff(rule if isinstance(rule, Backoff) else Backoff(), held.attempt, replica.jitter())
        service.ended.append(endings.failed(service, held, delay, str(why)))
        return
    if ended.verb is Verb.RELEASE:
        service.releasing -= 1
    service.book.forget(held)
    service.leave_line(held)
    service.counts.lost += 1


def _lost(service: Service, held: Held) -> None:
    service.counts.lost += 1
    service.leave_line(held)
    log.warning("%s row %s: lost; another replica holds it, and nothing was changed", service.name, held.id)
