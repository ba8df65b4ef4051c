"""Run a row in a transaction of this child: what the handler writes through it commits with the row's settlement (B5).

    reserve a connection -> take the row -> call the handler -> keep or undo its writes, settle the row -> commit -> report

A row that cannot be taken is reported as missed, and nothing has run. Whatever ends the transaction before its time leaves
the row to the coordinator: it is not acked, and its attempt has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shardrun.child import guard
from shardrun.child.call import MICROSECONDS, Call, Draining, boot_time
from shardrun.child.endings import Ending, error_text
from shardrun.child.logs import running
from shardrun.child.pools import Pool, Reserved
from shardrun.db import inserted
from shardrun.db.inserted import Written
from shardrun.db.store import Connection, Settlement
from shardrun.db.taking import Fate, Taking, TransactionEnded, layout_of
from shardrun.errors import ConnectionLost, ShardrunError, StatementFailed
from shardrun.handler import Plan
from shardrun.policy.endings import Settled, with_charge
from shardrun.policy.verbs import ACK, DROP, FAILED, UNDECODABLE, Verb
from shardrun.queue import Form, Subscription
from shardrun.ring.wire import Frame
from shardrun.ring.words import LOST, MISSED

LOCK_SECONDS = 1.0
"""How long a take waits for whoever has locked the row. Larger: a lane stands still for longer. Smaller: short transactions
of the user's own send the row back."""

OFFERED_SECONDS = 0.1
"""How long that is where a row was only offered: most often whoever has locked it is another replica's child, and keeps it."""

NOT_OURS = "it is not this replica's any more"
CHANGED = "the row was changed or deleted inside its own transaction"

LOOK_AGAIN = 0.1
"""Seconds between looks at what became of a commit, while the database is away. Smaller: more tries to connect."""

FATES = {
    Verb.ACK: Fate.DONE,
    Verb.DROP: Fate.DONE,
    Verb.RETRY: Fate.FREE,
    Verb.SNOOZE: Fate.FREE,
    Verb.BURY: Fate.DEAD,
}
"""What is seen of a row whose settlement was committed."""


class TransactionalCall(Call):
    """A transactional handler, ready to be called."""

    is_transactional = True

    def __init__(
        self,
        subscription: Subscription,
        plan: Plan,
        pool: Pool,
        draining: Draining,
        description: Any,
        wake: Callable[[Written], None],
    ) -> None:
        super().__init__(subscription, plan, pool.lend, draining)
        self._subscription = subscription
        self._pool = pool
        self._description = description
        self._wake = wake
        self._verbs: Taking | None = None
        self._patience = LOCK_SECONDS if subscription.queue.form is Form.LEASE else OFFERED_SECONDS

    def run(self, row: Frame, began: float) -> Frame:
        """Take a row, call the handler, settle the row, and return the row's report."""
        running.set(row[0])
        try:
            place = self._pool.reserve(self._name, self._queue, row[2], row[4] - boot_time())
        except Exception as error:  # whatever the driver says: nothing has begun
            return self._unrun(row, began, MISSED, error_text(error))
        try:
            return self._run(row, began, place, place.connection)
        finally:
            place.give_back()

    def _run(self, row: Frame, began: float, place: Reserved, connection: Connection) -> Frame:
        patience = min(self._patience, row[4] - boot_time())
        try:
            if not self._taking.take(connection, row[2], row[9], patience):
                return self._unrun(row, began, MISSED, NOT_OURS)
        except ShardrunError as error:
            return self._unrun(row, began, MISSED, str(error))
        with inserted.recording(connection) as written:
            ending, keep = self._handle(row, connection)
        report = self._settle(row, began, place, ending, keep)
        if keep and report[1] == ending.code:
            self._wake(written)
        return report

    @property
    def _taking(self) -> Taking:
        if self._verbs is None:
            database = self._pool.database
            self._verbs = database.taking(layout_of(self._description, database.column_kind))
        return self._verbs

    def _handle(self, row: Frame, connection: Connection) -> tuple[Ending, bool]:
        """Call the handler, and say how it ended and whether its writes are kept."""
        delivery = self._delivery(row, connection)
        answer: Any = None
        failure: BaseException | None = None
        self._taking.lend(connection, f"{self._queue} row {row[2]}")
        try:
            body = self._decode(row[8])
            answer = self._function(body, delivery) if self._takes_delivery else self._function(body)
        except BaseException as error:
            failure = error
        if guard.is_fork:
            guard.leave_fork(failure)
        ending = self._ending(row[3], answer, failure)
        keep = failure is None and ending.code in (ACK, DROP)
        try:
            for end in delivery.endings:
                end(keep)
        except BaseException as error:
            ending, keep = (self._ending(row[3], None, error), False) if keep else (ending, False)
        self._taking.lend(connection, None)
        return ending, keep

    def _settle(self, row: Frame, began: float, place: Reserved, ending: Ending, keep: bool) -> Frame:
        """Settle a row in its transaction and commit; where that fails the attempt has, and its writes are undone."""
        settled, attempt = self._decide(row, ending)
        settlement = settlement_of(row, settled, attempt)
        connection = place.connection
        try:
            if not self._taking.settle(connection, settlement, keep):
                raise StatementFailed(CHANGED)
        except ShardrunError as error:
            return self._not_settled(row, began, place, ending, keep, error)
        try:
            self._taking.commit(connection)
        except ConnectionLost:
            return self._look(row, began, place, ending, settled, keep)
        except ShardrunError as error:
            return self._unsettled(row, began, place, self._failed(row, error) if keep else ending)
        return self._settled(row, began, ending, settled)

    def _decide(self, row: Frame, ending: Ending) -> tuple[Settled, int]:
        if ending.code == ACK:
            return Settled(Verb.ACK), row[3]
        return with_charge(self._subscription, row[3], row[10], ending.code, ending.seconds, ending.reason)

    def _not_settled(
        self, row: Frame, began: float, place: Reserved, ending: Ending, keep: bool, error: ShardrunError
    ) -> Frame:
        """Settle a failed attempt in the same transaction where its writes can still be undone; else leave that."""
        if keep:
            failed = self._failed(row, error)
            if isinstance(error, TransactionEnded | ConnectionLost):
                return self._unsettled(row, began, place, failed)
            return self._settle(row, began, place, failed, keep=False)
        if isinstance(error, TransactionEnded) and ending.code not in (FAILED, UNDECODABLE) and not ending.trace:
            ending = self._failed(row, error)
        return self._unsettled(row, began, place, ending)

    def _failed(self, row: Frame, error: BaseException) -> Ending:
        return self._ending(row[3], None, error)._replace(trace=None)

    def _look(self, row: Frame, began: float, place: Reserved, ending: Ending, settled: Settled, keep: bool) -> Frame:
        """Find out, on another connection, whether the commit that was in doubt took effect (R1)."""
        fate: Fate | None = None
        while fate is None:
            try:
                fate = self._taking.fate(place.renew(), row[2], row[9])
            except StatementFailed:
                fate = Fate.LOST
            except Exception:  # the database is away, or the old session is still committing
                time.sleep(LOOK_AGAIN)
        if fate is FATES[settled.verb]:
            return self._settled(row, began, ending, settled)
        if fate is not Fate.HELD:
            return self._unrun(row, began, LOST, "the connection was lost when its transaction was committed")
        lost = ConnectionLost("the connection was lost when the delivery's transaction was committed, and nothing was")
        return self._unsettled(row, began, place, self._failed(row, lost) if keep else ending)

    def _settled(self, row: Frame, began: float, ending: Ending, settled: Settled) -> Frame:
        if ending.code == ACK:
            return (row[0], ACK, _micros(began))
        return (row[0], ending.code, _micros(began), *ending[1:], settled.verb.value, settled.delay)

    def _unsettled(self, row: Frame, began: float, place: Reserved, ending: Ending) -> Frame:
        """Leave a row to the coordinator, which settles it as any other; first its lock is let go."""
        if place.connection is not None:
            self._taking.abandon(place.connection)
        return (row[0], ending.code, _micros(began), *ending[1:])

    def _unrun(self, row: Frame, began: float, code: int, why: str) -> Frame:
        return (row[0], code, _micros(began), None, why, None)


def settlement_of(row: Frame, settled: Settled, attempt: int) -> Settlement:
    """Write down what settles a row; the count is what the row has after it."""
    count = attempt - 1 if settled.verb is Verb.SNOOZE else attempt
    return Settlement(settled.verb, row[2], row[9], settled.delay, settled.reason, max(0, count))


def _micros(began: float) -> int:
    return int((boot_time() - began) * MICROSECONDS)
