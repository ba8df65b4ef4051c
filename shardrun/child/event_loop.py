"""Run the rows of `async def` handlers as tasks of one event loop; imported only by children that have such."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from shardrun.child import guard
from shardrun.child.lanes import Lane
from shardrun.ring.wire import Frame


class EventLoopFeed:
    """Rows that wait for the event loop, by lane.

    The lanes are callbacks and only rows are tasks, so handlers may look at, cancel or wait for all tasks of the loop,
    stop the loop even, and meet nothing but rows.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: defaultdict[Lane, deque[Frame]] = defaultdict(deque)
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._reports: dict[Lane, Frame] = {}
        self._closed = self._done = False
        self._thread = threading.Thread(target=self._serve, name="shardrun-event-loop", daemon=True)
        self._thread.start()

    def put(self, lane: Lane, row: Frame) -> None:
        self._loop.call_soon_threadsafe(_or_die, self._arrive, lane, row)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(_or_die, self._close)

    def join(self) -> None:
        self._thread.join()

    def _arrive(self, lane: Lane, row: Frame) -> None:
        self._waiting[lane].append(row)
        if lane not in self._tasks:
            self._next(lane)

    def _next(self, lane: Lane) -> None:
        """Start the lane's next row that may start."""
        waiting = self._waiting[lane]
        while waiting:
            row = waiting.popleft()
            began = lane.begin(row)
            if began is not None:
                self._start(lane, row, began)
                return
        self._finish()

    def _start(self, lane: Lane, row: Frame, began: float) -> None:
        self._tasks[lane] = task = self._loop.create_task(self._run(lane, row, began))
        task.add_done_callback(lambda _: _or_die(self._end, lane, row))

    async def _run(self, lane: Lane, row: Frame, began: float) -> None:
        self._reports[lane] = await lane.call.run_async(row, began)

    def _end(self, lane: Lane, row: Frame) -> None:
        """Report a row; there is no report where the task was cancelled before its first step."""
        del self._tasks[lane]
        report = self._reports.pop(lane, None)
        lane.end(report or lane.call.failed(row, asyncio.CancelledError()))
        self._next(lane)

    def _close(self) -> None:
        self._closed = True
        self._finish()

    def _finish(self) -> None:
        if self._closed and not self._tasks and not any(self._waiting.values()):
            self._done = True
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._done:  # A handler may stop the loop; its rows and those of others go on.
            _or_die(self._loop.run_forever)

    def shut(self) -> None:
        """Cancel what handlers left running on the loop, as `asyncio.run` does; after `join`."""
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def _or_die(step: Callable[..., None], *arguments: Any) -> None:
    """Run a step of the feed; no handler's error comes here, and the loop would print it and lose the row."""
    try:
        step(*arguments)
    except BaseException:
        guard.die(threading.current_thread().name)
