"""Hold rows by what they carry (a lease): write many settlements in one statement, each only under the row's own token.

Where one process alone writes and keeps the locks itself, rows are settled in this way, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from shardrun.coordinator import clock, settle
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import MOST_SETTLED, Batch, DoneClaiming, Ended, Service
from shardrun.coordinator.threads import Done, Pin, Work
from shardrun.db.store import Acked, Connection, Settlement, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.policy.leases import Held, Hold

T = TypeVar("T")

ENOUGH = 100
"""Rows that are worth a statement at once. Larger: cheaper per row, later acks."""

HOLD = 0.02
"""Seconds that fewer rows wait for company, while others are in work. Larger: fewer statements; more finished rows run
again when the coordinator dies."""

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


class Batched:
    """How leases are held: by nothing but what the rows carry, so that any connection will do."""

    pins = False

    def __init__(self, reads_ahead: bool = True) -> None:
        self.reads_ahead = reads_ahead

    def spare(self, replica: Replica, service: Service) -> int:  # noqa: ARG002
        """Count the connections that a claim may take now."""
        return replica.threads.spare_for_claims

    def is_without(self, service: Service) -> bool:  # noqa: ARG002
        """Tell that it has no connection for itself: it needs one now and then."""
        return True

    def claim(self, replica: Replica, service: Service, limit: int, full_keys: list[Any], done: DoneClaiming) -> None:
        """Claim on any connection."""
        replica.threads.submit(service.claim_of(limit, full_keys), lambda result: done(result, None))

    def hold(self, replica: Replica, service: Service, rows: Iterable[Held], pin: Pin) -> None:
        """Do nothing: no connection holds these rows."""

    def write(self, replica: Replica, service: Service, held: Held, work: Work[T], done: Done[T]) -> None:  # noqa: ARG002
        """Run a statement about a row."""
        replica.threads.submit(work, done, urgent=True)

    def settle(self, replica: Replica, service: Service) -> None:
        """Send what has ended, one batch at a time; what ends meanwhile makes the next batch."""
        if not replica.outage and service.settling is None and _is_time(replica, service):
            service.settle_by = None
            if batch := _next_batch(service):
                _send(replica, service, batch)

    def repeat(self, replica: Replica, service: Service) -> None:
        """Send the batch in doubt again: each statement changes its row only if it has not yet (R1)."""
        if service.in_doubt is not None and service.settling is None:
            batch, service.in_doubt = service.in_doubt, None
            _send(replica, service, batch, repeated=True)


ADOPTION = 5.0
"""Seconds since a settlement was sent in which a row that it did not find may turn out to be adopted by a claim that is under
way. Larger: later settlements wait for longer behind one that is lost. Smaller: a row that a slow claim took is run again."""


def _is_time(replica: Replica, service: Service) -> bool:
    """Tell whether to write what has ended: enough rows, or the first has waited, or nothing else is in hand or may come."""
    count = len(service.acked) + len(service.ended)
    if count >= ENOUGH or service.releasing or replica.life is not Life.SERVING or count == len(service.book):
        return True
    if service.settle_by is None:
        service.settle_by = clock.now() + HOLD
        replica.later(HOLD, lambda: None)
    return clock.now() >= service.settle_by


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
    settlements = [settle.settlement(ended) for ended in batch.ended]
    sent = clock.now()

    def done(result: _Answer | ShardrunError) -> None:
        if isinstance(result, _Answer) and result.lost and service.pacing.under_way and clock.now() < sent + ADOPTION:
            replica.later(
                AGAIN, lambda: done(result)
            )  # a claim of ours may have taken the row, and not have answered (R2)
            return
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


def _written(batch: Batch, answer: _Answer) -> Iterator[Verb]:
    """Go through what took effect."""
    failed = answer.lost.union(answer.refused)
    yield from (Verb.ACK for held in batch.acked if held.id not in failed)
    yield from (each.verb for each in batch.ended if each.held.id not in failed)


def _settled(replica: Replica, service: Service, batch: Batch, answer: _Answer) -> None:
    settle.freed(replica, service, _written(batch, answer))
    service.batch_most = min(MOST_SETTLED, 2 * service.batch_most)
    doubtful = answer.lost or answer.refused
    for held in batch.acked:
        if doubtful and held.id in answer.lost:
            settle.not_ours(service, Ended(held, Verb.ACK), batch.was_adopted(held))
        elif doubtful and held.id in answer.refused:
            settle.refused(replica, service, Ended(held, Verb.ACK), answer.refused[held.id])
        else:
            service.book.forget(held)
            service.counts.acked += 1
    for ended in batch.ended:
        if ended.held.id in answer.lost:
            settle.not_ours(service, ended, batch.was_adopted(ended.held))
        elif ended.held.id in answer.refused:
            settle.refused(replica, service, ended, answer.refused[ended.held.id])
        else:
            settle.took_effect(replica, service, ended, batch.was_adopted(ended.held))
