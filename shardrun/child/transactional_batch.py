"""Run a batch in one transaction of this child: what the handler writes commits with the settlements of all its rows (B5, B6).

A row that is not this replica's any more is left out. The writes are kept where any row is acked or dropped, and undone
where none is; whatever keeps one row from being settled fails the attempts of all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from shardrun.child import guard
from shardrun.child.batch import BatchCall
from shardrun.child.call import MICROSECONDS, boot_time
from shardrun.child.endings import Ending, error_text
from shardrun.child.logs import running
from shardrun.child.pools import Reserved
from shardrun.child.transactional import CHANGED, FATES, NOT_OURS, TransactionalCall, settlement_of
from shardrun.db import inserted
from shardrun.db.store import Connection
from shardrun.db.taking import Fate, TransactionEnded
from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed
from shardrun.policy.endings import Settled
from shardrun.policy.verbs import ACK, DROP, FAILED, UNDECODABLE
from shardrun.ring.wire import Frame
from shardrun.ring.words import EACH, LOST, MISSED

Ends = dict[int, Ending]


class TransactionalBatchCall(TransactionalCall, BatchCall):
    """A transactional handler that takes lists, ready to be called."""

    def run(self, row: Frame, began: float) -> Frame:
        """Take the rows, call the handler, settle the rows, and return the batch's report."""
        running.set(row[0])
        rows: Sequence[Frame] = row[2]
        try:
            place = self._pool.reserve(self._name, self._queue, rows[0][2], row[4] - boot_time())
        except Exception as error:  # whatever the driver says: nothing has begun
            return self._unrun(row, began, MISSED, error_text(error))
        try:
            reports = self._run_all(row, began, place, place.connection)
        finally:
            place.give_back()
        elapsed = int((boot_time() - began) * MICROSECONDS)
        share = elapsed // len(rows)
        return (row[0], EACH, elapsed, [(*each[:2], share, *each[3:]) for each in reports])

    def _run_all(self, batch: Frame, began: float, place: Reserved, connection: Connection) -> list[Frame]:
        try:
            taken = self._take_all(connection, batch[2], batch[4])
        except ShardrunError as error:
            self._taking.abandon(connection)
            return [self._unrun(row, began, MISSED, str(error)) for row in batch[2]]
        missed = [self._unrun(row, began, MISSED, NOT_OURS) for row in batch[2] if row not in taken]
        if not taken:
            return missed
        with inserted.recording(connection) as written:
            ended, keep = self._handle_all(batch[0], taken, connection)
        reports = self._settle_all(taken, began, place, ended, keep)
        if keep and all(report[1] == ended[report[0]].code for report in reports):
            self._wake(written)
        return reports + missed

    def _take_all(self, connection: Connection, rows: Sequence[Frame], deadline: float) -> list[Frame]:
        """Begin with the first row that can be taken, and take what can be had of the others without waiting, in order."""
        patience = min(self._patience, deadline - boot_time())
        while rows:
            row, *rows = rows
            try:
                if self._taking.take(connection, row[2], row[9], patience):
                    also = self._taking.take_also(connection, [(other[2], other[9]) for other in rows])
                    return [row, *self._in_order(rows, also)]
            except Conflict:
                patience = 0.0
                self._taking.abandon(connection)
            rows = self._behind(row, rows)
        return []

    def _in_order(self, rows: Sequence[Frame], had: Collection[Any]) -> list[Frame]:
        """Choose, of rows that could be had, those that do not pass one that could not."""
        kept = []
        while rows:
            row, *rows = rows
            if row[2] in had:
                kept.append(row)
            else:
                rows = self._behind(row, rows)
        return kept

    def _behind(self, missed: Frame, rows: Sequence[Frame]) -> Sequence[Frame]:
        """Leave out what might pass a row that could not be taken: the keys of two rows may be the same (D1)."""
        has_order = self._subscription.by_key and missed[5] is not None
        return [row for row in rows if row[5] is None] if has_order else rows

    def _handle_all(self, no: int, rows: Sequence[Frame], connection: Connection) -> tuple[Ends, bool]:
        """Call the handler, and say how each row ended, by number, and whether what was written is kept."""
        fitting, bodies, misfits = self._decoded(rows)
        if not fitting:
            return misfits, False
        deliveries = [self._delivery(row, connection, no) for row in fitting]
        answer: Any = None
        failure: BaseException | None = None
        self._taking.lend(connection, f"{self._queue} rows {rows[0][2]} and others")
        try:
            answer = self._function(bodies, deliveries) if self._takes_delivery else self._function(bodies)
        except BaseException as error:
            failure = error
        if guard.is_fork:
            guard.leave_fork(failure)
        ended = self._endings(fitting, answer, failure)
        keep = any(ending.code in (ACK, DROP) for ending in ended.values()) and failure is None
        try:
            for end in [end for delivery in deliveries for end in delivery.endings]:
                end(keep)
        except BaseException as error:
            ended, keep = (self._endings(fitting, None, error), False) if keep else (ended, False)
        self._taking.lend(connection, None)
        return misfits | ended, keep

    def _settle_all(self, rows: Sequence[Frame], began: float, place: Reserved, ended: Ends, keep: bool) -> list[Frame]:
        """Settle the rows in their transaction and commit; where that fails all of it is undone."""
        decided = {row[0]: self._decide(row, ended[row[0]]) for row in rows}
        connection = place.connection
        try:
            for number, row in enumerate(rows):
                settlement = settlement_of(row, *decided[row[0]])
                if number == 0:
                    written = self._taking.settle(connection, settlement, keep)
                else:
                    written = self._taking.settle_also(connection, settlement)
                if not written:
                    raise StatementFailed(CHANGED)
            self._taking.commit(connection)
        except ConnectionLost as error:
            return self._look_all(rows, began, place, ended, decided, keep, error)
        except ShardrunError as error:
            return self._all_unsettled(rows, began, place, ended, keep, error)
        return [self._settled(row, began, ended[row[0]], decided[row[0]][0]) for row in rows]

    def _look_all(
        self,
        rows: Sequence[Frame],
        began: float,
        place: Reserved,
        ended: Ends,
        decided: dict[int, tuple[Settled, int]],
        keep: bool,
        error: ConnectionLost,
    ) -> list[Frame]:
        """Find out by one row what became of all: they were committed together, or none was.

        One that was put off may look like another's (`Fate.LOST`), so it is asked for only where there is no other.
        """
        first = next((row for row in rows if FATES[decided[row[0]][0].verb] is not Fate.FREE), rows[0])
        found = self._look(first, began, place, ended[first[0]], decided[first[0]][0], keep)
        if found[1] == LOST:
            return [self._unrun(row, began, LOST, found[4]) for row in rows]
        if found[1] == ACK or len(found) > len(self._unsettled(first, began, place, ended[first[0]])):
            return [self._settled(row, began, ended[row[0]], decided[row[0]][0]) for row in rows]
        return self._all_unsettled(rows, began, place, ended, keep, error)

    def _all_unsettled(
        self, rows: Sequence[Frame], began: float, place: Reserved, ended: Ends, keep: bool, error: ShardrunError
    ) -> list[Frame]:
        """Leave the rows to the coordinator; what was written is undone, so those that it was kept for have failed."""
        reports = []
        for row in rows:
            ending = ended[row[0]]
            spoilt = keep or (isinstance(error, TransactionEnded) and not ending.trace)
            if spoilt and ending.code not in (FAILED, UNDECODABLE):
                ending = self._failed(row, error)
            reports.append(self._unsettled(row, began, place, ending))
        return reports
