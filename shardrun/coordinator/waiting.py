"""Wait for events: file descriptors, timers, and what other threads post. Nothing here polls."""

from __future__ import annotations

import heapq
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from shardrun.coordinator import clock

Callback = Callable[[], None]


class Events:
    """The one place where the coordinator waits. Callbacks run in the thread that calls `wait`, one after another."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._count = 0
        self._posted: deque[Callback] = deque()
        self._open = threading.Lock()
        self._closed = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self.watch(self._wake_reader, self._run_posted)

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; must be called before it is closed."""
        self._selector.unregister(descriptor)

    def at(self, time: float, callback: Callback) -> None:
        """Call back once, at a time of `clock.now`."""
        self._count += 1
        heapq.heappush(self._timers, (time, self._count, callback))

    def post(self, callback: Callback) -> None:
        """Call back soon; the only method that other threads may use."""
        with self._open:
            if self._closed:
                return  # a thread that a database kept waiting beyond the end: nobody is left to hear it
            self._posted.append(callback)
            with suppress(BlockingIOError):  # the pipe is full of wake-ups: one of them will do
                os.write(self._wake_writer, b"\0")

    def wait(self, until: float) -> None:
        """Block until something happens or the time has come, and run the callbacks of what happened."""
        if self._timers:
            until = min(until, self._timers[0][0])
        timeout = None if until == float("inf") else max(0.0, until - clock.now())
        for key, _ in self._selector.select(timeout):
            watched = self._selector.get_map().get(key.fd)
            if watched is not None and watched.data is key.data:  # no callback before it has unwatched this one
                key.data()
        now = clock.now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Close the descriptors of its own."""
        with self._open:
            self._closed = True
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _run_posted(self) -> None:
        os.read(self._wake_reader, 4096)
        while self._posted:
            self._posted.popleft()()
