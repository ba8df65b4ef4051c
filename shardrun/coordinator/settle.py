"""Settle: write how rows ended, many in one statement, each only while the row still carries our token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from shardrun.coordinator import clock
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import MOST_SETTLED, Batch, Ended, Service
from shardrun.db.store import Acked, Connection, Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.policy import endings
from shardrun.policy.leases import Held, Hold
from shardrun.policy.retries import unasked

ENOUGH = 100
"""Rows that are worth a statement at once. Larger: cheaper per row, later acks."""

HOLD = 0.02
"""Seconds that fewer rows wait for company, while others are in work. Larger: fewer statements; more finished rows run
again when the coordinator dies."""

RECOUNT_AGAIN = 0.2
"""Seconds until a count that could not be written is tried again; it changes nothing while another holds the row."""

AGAIN = 0.02
"""Seconds until a settlement that met a conflict is repeated."""


class _Answer(NamedTuple):
    """What the database said to a batch: the ids that are lost, and those that it refused to write, with the reason."""

    lost: set[Any]
    refused: dict[Any, StatementFailed]

    def add(self, other: _Answer) -> None:
        """Take another batch's answer in."""
        self.lost.update(other.lost)
        self.refused.update(other.refused)


class _Halfway(Conflict):
    """A conflict met when some rows of the batch had been written one by one: the repeat finds them settled."""


def acknowledge(service: Service, held: Held) -> None:
    """Note that a row is done: the most frequent ending, kept apart from the others for speed."""
    if service.book.end(held):
        service.acked.append(held)
    else:
        _lost(service, held)


def end(service: Service, ended: Ended) -> None:
    """Note how a row ended; `settle` writes it with the others. A row that was lost meanwhile is only reported."""
    if service.book.end(ended.held):
        service.ended.append(ended)
    else:
        _lost(service, ended.held)


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
    settlement = Settlement(Verb.RECOUNT, held.id, held.token, attempt=held.attempt)

    def done(result: set[Any] | ShardrunError) -> None:
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            replica.connection_lost(result)
        if isinstance(result, ConnectionLost | DatabaseUnreachable | Conflict) and held.id in service.book:
            replica.later(RECOUNT_AGAIN, lambda: recount(replica, service, held))

    replica.threads.submit(lambda connection: service.store.settle(connection, [settlement]), done, urgent=True)


def settle(replica: Replica) -> None:
    """Send what has ended, one batch per subscription at a time; what ends meanwhile makes the next batch."""
    if replica.outage:
        return
    for service in replica.services:
        if (service.acked or service.ended) and service.settling is None and _is_time(replica, service):
            service.settle_by = None
            if batch := _next_batch(service):
                _send(replica, service, batch)


def _is_time(replica: Replica, service: Service) -> bool:
    """Tell whether to write what has ended: enough rows, or the first has waited, or nothing else is in hand or may come."""
    count = len(service.acked) + len(service.ended)
    if count >= ENOUGH or service.releasing or replica.life is not Life.SERVING or count == len(service.book):
        return True
    if service.settle_by is None:
        service.settle_by = clock.now() + HOLD
        replica.later(HOLD, lambda: None)
    return clock.now() >= service.settle_by


def repeat(replica: Replica, service: Service) -> None:
    """Send the batch that a broken connection left in doubt: each statement changes its row only if it has not yet (R1)."""
    if service.in_doubt is not None and service.settling is None:
        batch, service.in_doubt = service.in_doubt, None
        _send(replica, service, batch, repeated=True)


def _next_batch(service: Service) -> Batch | None:
    """Take what may be settled now; rows whose extension is under way or in doubt wait for its answer (R1)."""
    acked, ended, most = service.acked, service.ended, service.batch_most
    batch = Batch([held for held in acked[:most] if held.hold is Hold.SURE], [])
    service.acked = acked[most:] + [held for held in acked[:most] if held.hold not in (Hold.SURE, Hold.LOST)]
    service.ended = []
    for each in ended:
        if each.held.hold is Hold.SURE and len(batch.acked) + len(batch.ended) < most:
            batch.ended.append(each)
        elif each.held.hold is not Hold.LOST:
            service.ended.append(each)
        elif each.verb is Verb.RELEASE:
            service.releasing -= 1
    for held in batch.rows():
        service.book.settle(held)
    return batch if batch.acked or batch.ended else None


def _send(replica: Replica, service: Service, batch: Batch, repeated: bool = False) -> None:
    service.settling = batch
    batch.present()
    settlements = [_settlement(ended) for ended in batch.ended]

    def done(result: _Answer | ShardrunError) -> None:
        service.settling = None
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            service.in_doubt = batch
            replica.connection_lost(result)
        elif isinstance(result, Conflict):
            replica.complain(f"settle {service.label}", "%s: settlements are refused for now: %s", service.name, result)
            if repeated or isinstance(result, _Halfway):
                service.settling = batch
                replica.later(AGAIN, lambda: _send(replica, service, batch, repeated=True))
            else:
                _take_apart(replica, service, batch)
        elif isinstance(result, ShardrunError):
            raise result
        else:
            _settled(replica, service, batch, result)

    def work(connection: Connection) -> _Answer:
        return _write(service, connection, settlements, batch.tokens, repeated)

    replica.threads.submit(work, done, urgent=True)


def _take_apart(replica: Replica, service: Service, batch: Batch) -> None:
    """Put a batch that met a conflict back in line, behind the others, to be sent in smaller pieces."""
    service.batch_most = max(1, (len(batch.acked) + len(batch.ended)) // 2)
    for held in batch.rows():
        service.book.unsettled(held)
    service.acked += batch.acked
    service.ended += batch.ended
    service.settle_by = clock.now() + AGAIN
    replica.later(AGAIN, lambda: None)


def _settlement(ended: Ended) -> Settlement:
    held = ended.held
    attempt = held.attempt + 1 if ended.verb is Verb.RECOUNT else held.attempt - 1
    return Settlement(ended.verb, held.id, held.token, ended.delay, ended.reason, max(0, attempt))


def _write(
    service: Service, connection: Connection, settlements: list[Settlement], acked: Acked, repeated: bool
) -> _Answer:
    """Write all at once; where one of them is refused, write them one by one, so that it holds up no other."""
    count = len(settlements) + sum(map(len, acked.values()))
    try:
        effective = service.store.settle(connection, settlements, repeated, acked)
    except StatementFailed as error:
        if count == 1:
            return _Answer(set(), dict.fromkeys(_ids(settlements, acked), error))
    else:
        return _Answer(set() if len(effective) == count else _ids(settlements, acked) - effective, {})
    answer = _Answer(set(), {})
    try:
        for settlement in settlements:
            answer.add(_write(service, connection, [settlement], {}, repeated))
        for token, ids in acked.items():
            for id in ids:
                answer.add(_write(service, connection, [], {token: [id]}, repeated))
    except Conflict as error:
        raise _Halfway(str(error)) from error
    return answer


def _ids(settlements: list[Settlement], acked: Acked) -> set[Any]:
    return {each.id for each in settlements}.union(*acked.values())


def _settled(replica: Replica, service: Service, batch: Batch, answer: _Answer) -> None:
    service.batch_most = min(MOST_SETTLED, 2 * service.batch_most)
    doubtful = answer.lost or answer.refused
    for held in batch.acked:
        if doubtful and held.id in answer.lost:
            _not_ours(service, Ended(held, Verb.ACK), batch)
        elif doubtful and held.id in answer.refused:
            _refused(replica, service, Ended(held, Verb.ACK), answer.refused[held.id])
        else:
            service.book.forget(held)
            service.counts.acked += 1
    for ended in batch.ended:
        if ended.held.id in answer.lost:
            _not_ours(service, ended, batch)
        elif ended.held.id in answer.refused:
            _refused(replica, service, ended, answer.refused[ended.held.id])
        else:
            took_effect(replica, service, ended, batch.was_adopted(ended.held))


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
        replica.later(delay, lambda: service.pacing.wake(0.0))


def _not_ours(service: Service, ended: Ended, batch: Batch) -> None:
    """Note that a row no longer carried the token; where it was adopted meanwhile it is ours under another (R2)."""
    held = ended.held
    if batch.was_adopted(held):
        service.book.unsettled(held)
        service.ended.append(ended)
        return
    if ended.verb is Verb.RELEASE:
        service.releasing -= 1
    service.book.forget(held)
    _lost(service, held)


def _refused(replica: Replica, service: Service, ended: Ended, why: StatementFailed) -> None:
    """Treat a settlement that the database refuses as a failed attempt; if that is refused too, the lease runs out."""
    held = ended.held
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
    log.warning("%s row %s: lost; another replica holds it, and nothing was changed", service.name, held.id)


def give_back(service: Service, rows: Iterable[Held]) -> None:
    """Release rows that nothing will start any more."""
    for held in rows:
        service.leave_line(held)
        release(service, held)
