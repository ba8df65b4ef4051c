"""Call a handler with one row: every ending, an exception of any kind included, becomes a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec

from shardrun.child import endings, guard
from shardrun.child.endings import Ending
from shardrun.child.logs import running
from shardrun.delivery import Delivery
from shardrun.handler import DoesNotFit, Plan
from shardrun.queue import Subscription
from shardrun.ring.wire import Frame
from shardrun.ring.words import ACK

Lend = Callable[[str, str, Any], AbstractContextManager[Any]]
"""Lends a connection to a handler: (handler, queue, row id), the names for messages."""

Draining = Callable[[int, int], bool]
"""Tells, of a delivery and its lane, whether it had better end soon."""

MICROSECONDS = 1_000_000


boot_time: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Reads the clock of deadlines: seconds that go on while the machine sleeps, as leases do."""


class Call:
    """A subscription's handler, ready to be called; makes a Delivery only for handlers that take one."""

    is_transactional = False

    def __init__(self, subscription: Subscription, plan: Plan, lend: Lend, draining: Draining) -> None:
        self._function = plan.function
        self._decode = plan.decode
        self._takes_delivery = plan.takes_delivery
        self._name = subscription.name
        self._queue = subscription.queue.name
        self.keeps_keys = subscription.key_scope == "cluster"
        self._rule = subscription.retry
        self._lend = lend
        self._draining = draining

    def run(self, row: Frame, began: float) -> Frame:
        """Decode a row's body, call the handler, and return the row's report; `began` is a time of `boot_time`."""
        running.set(row[0])
        try:
            body = self._decode(row[8])
            answer = self._function(body, self._delivery(row)) if self._takes_delivery else self._function(body)
        except BaseException as error:
            return self._report(row, began, None, error)
        if answer is None and not guard.is_fork:
            return (row[0], ACK, int((boot_time() - began) * MICROSECONDS))
        return self._report(row, began, answer, None)

    async def run_async(self, row: Frame, began: float) -> Frame:
        """Do the same for an `async def` handler, as the body of a task of its own."""
        running.set(row[0])
        try:
            body = self._decode(row[8])
            answer = await (self._function(body, self._delivery(row)) if self._takes_delivery else self._function(body))
        except BaseException as error:
            return self._report(row, began, None, error)
        return self._report(row, began, answer, None)

    def failed(self, row: Frame, error: BaseException) -> Frame:
        """Return the report of a row whose handler was ended before it began."""
        return self._report(row, boot_time(), None, error)

    def _report(self, row: Frame, began: float, answer: Any, failure: BaseException | None) -> Frame:
        if guard.is_fork:
            guard.leave_fork(failure)
        elapsed = int((boot_time() - began) * MICROSECONDS)
        code, *rest = self._ending(row[3], answer, failure)
        return (row[0], code, elapsed) if code == ACK else (row[0], code, elapsed, *rest)

    def _ending(self, attempt: int, answer: Any, failure: BaseException | None) -> Ending:
        try:
            if isinstance(failure, DoesNotFit):
                return endings.of_misfit(failure, attempt, self._rule)
            if failure is not None:
                return endings.of_error(failure, attempt, self._rule)
            return endings.of_answer(answer, self._name)
        except BaseException as error:  # A BadAnswer, or an object that cannot even be looked at.
            return endings.of_last_resort(failure or error, attempt, self._rule)

    def _delivery(self, row: Frame, transaction: Any = None, batch: int | None = None) -> Delivery:
        _, _, row_id, attempt, _, key, group, headers = row[:8]
        lend = partial(self._lend, self._name, self._queue, row_id)
        about = (row_id, key, attempt, _decoded(headers), group, self._queue, self._name)
        return Delivery(*about, lend, partial(self._draining, batch or row[0], row[1]), transaction)


def _decoded(headers: Any) -> Any:
    """Read headers that are JSON, whatever their column's type; other text stays as it is."""
    if not isinstance(headers, str | bytes):
        return headers
    try:
        return msgspec.json.decode(headers)
    except (msgspec.DecodeError, UnicodeError):
        return headers
