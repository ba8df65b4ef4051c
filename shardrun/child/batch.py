"""Call a handler with a batch of rows: one call, and a report of its own for each row (B6).

    decode each row -> call the handler with those that fit -> one outcome for all, or one for each -> a report for each

An answer of another shape, or an exception, fails every row: no row is acked by its place in a list that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardrun.child import endings, guard
from shardrun.child.call import MICROSECONDS, Call, boot_time
from shardrun.child.endings import Ending
from shardrun.child.logs import running
from shardrun.ring.wire import Frame
from shardrun.ring.words import ACK, EACH


class BatchCall(Call):
    """A handler that takes lists, ready to be called. A batch crosses as (no, lane, rows, 0, deadline)."""

    def run(self, row: Frame, began: float) -> Frame:
        """Decode the rows, call the handler with those that fit, and return the batch's report."""
        running.set(row[0])
        fitting, bodies, misfits = self._decoded(row[2])
        answer: Any = None
        failure: BaseException | None = None
        if fitting:
            try:
                answer = self._function(*self._arguments(row[0], bodies, fitting))
            except BaseException as error:
                failure = error
        return self._report_each(row, began, fitting, misfits, answer, failure)

    async def run_async(self, row: Frame, began: float) -> Frame:
        """Do the same for an `async def` handler, as the body of a task of its own."""
        running.set(row[0])
        fitting, bodies, misfits = self._decoded(row[2])
        answer: Any = None
        failure: BaseException | None = None
        if fitting:
            try:
                answer = await self._function(*self._arguments(row[0], bodies, fitting))
            except BaseException as error:
                failure = error
        return self._report_each(row, began, fitting, misfits, answer, failure)

    def failed(self, row: Frame, error: BaseException) -> Frame:
        """Return the report of a batch whose handler was ended before it began."""
        return self._report_each(row, boot_time(), row[2], {}, None, error)

    def _decoded(self, rows: Sequence[Frame]) -> tuple[Sequence[Frame], list[Any], dict[int, Ending]]:
        """Split rows into those that the handler can take, with their bodies, and how the others end, by number."""
        bodies: list[Any] = []
        misfits: dict[int, Ending] = {}
        for row in rows:
            try:
                bodies.append(self._decode(row[8]))
            except BaseException as error:  # the user's own types decode themselves
                if guard.is_fork:
                    guard.leave_fork(error)
                misfits[row[0]] = self._ending(row[3], None, error)
        return [row for row in rows if row[0] not in misfits] if misfits else rows, bodies, misfits

    def _arguments(self, no: int, bodies: list[Any], rows: Sequence[Frame]) -> tuple[Any, ...]:
        return (bodies, [self._delivery(row, batch=no) for row in rows]) if self._takes_delivery else (bodies,)

    def _report_each(
        self,
        batch: Frame,
        began: float,
        fitting: Sequence[Frame],
        misfits: dict[int, Ending],
        answer: Any,
        failure: BaseException | None,
    ) -> Frame:
        if guard.is_fork:
            guard.leave_fork(failure)
        elapsed = int((boot_time() - began) * MICROSECONDS)
        if answer is None and failure is None and not misfits:
            return (batch[0], ACK, elapsed)
        ended = misfits | self._endings(fitting, answer, failure)
        share = elapsed // len(batch[2])
        return (batch[0], EACH, elapsed, [(row[0], ended[row[0]].code, share, *ended[row[0]][1:]) for row in batch[2]])

    def _endings(self, rows: Sequence[Frame], answer: Any, failure: BaseException | None) -> dict[int, Ending]:
        """Say how each row ended, by number; whatever is wrong fails all of them, and is written out with the first."""
        if failure is None:
            try:
                each = endings.of_answers(answer, len(rows), self._name)
                return {row[0]: ending for row, ending in zip(rows, each, strict=True)}
            except BaseException as error:  # a BadAnswer, or an object that cannot even be looked at
                failure = error
        failed = {row[0]: self._ending(row[3], None, failure) for row in rows}
        for row in rows[1:]:
            failed[row[0]] = failed[row[0]]._replace(trace=None)
        return failed
