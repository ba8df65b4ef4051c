"""Run statements beside the loop: a fixed set of threads, one connection each. They decide nothing and share no state.

A connection that breaks is closed at once and opened again by the next piece of work; the loop paces the tries (`outage.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from shardrun.coordinator import clock
from shardrun.db.store import Connection, Database
from shardrun.errors import ConnectionLost, ShardrunError

FAREWELL = 5.0
"""Seconds that statements under way have when a replica ends. Larger: a database that hangs holds up the exit for longer."""

T = TypeVar("T")
Work = Callable[[Connection], T]
Done = Callable[[T | ShardrunError], None]


class DatabaseThreads:
    """`size` threads with a connection each; `post` hands a callback to the loop's thread."""

    def __init__(self, database: Database, size: int, part: str, post: Callable[[Callable[[], None]], None]) -> None:
        self.size = size
        self._database = database
        self._part = part
        self._post = post
        self._urgent: deque[tuple[Work[Any], Done[Any]]] = deque()
        self._ordinary: deque[tuple[Work[Any], Done[Any]]] = deque()
        self._wanted = threading.Condition()
        self._busy = 0
        self._closing = False
        self._suspicion = 0
        self._open: set[int] = set()  # the threads that have a connection
        self._threads = [
            threading.Thread(target=self._serve, name=f"shardrun-database-{n}", daemon=True) for n in range(size)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def spare_for_claims(self) -> int:
        """Count the connections that claims may take now: the last one is kept for settlements and extensions (C2).

        Where there is only one (SQLite has one writer), claims take it while nothing else wants it.
        """
        return self.size - self._busy - (1 if self.size > 1 else 0)

    @property
    def is_busy(self) -> bool:
        """Tell whether anything waits for a connection, or is under way."""
        return self._busy > 0

    @property
    def connections(self) -> int:
        """Count the connections that are open."""
        return len(self._open)

    def submit(self, work: Work[T], done: Done[T], urgent: bool = False) -> None:
        """Run `work` on some connection, then `done` in the loop's thread with its result or its `ShardrunError`.

        Urgent work (settlements, extensions) goes before claims.
        """
        with self._wanted:
            self._busy += 1
            (self._urgent if urgent else self._ordinary).append((work, done))
            self._wanted.notify()

    def suspect(self) -> None:
        """Look at every connection before it is used again: one of them broke, and the others may have."""
        self._suspicion += 1

    def close(self) -> None:
        """End the threads when what was submitted is done, and close their connections.

        A thread that a database keeps waiting for longer than `FAREWELL` is left to end with the process.
        """
        with self._wanted:
            self._closing = True
            self._wanted.notify_all()
        deadline = clock.now() + FAREWELL
        for thread in self._threads:
            thread.join(max(0.0, deadline - clock.now()))

    def _serve(self) -> None:
        connection: Connection | None = None
        trusted = 0
        while (piece := self._next()) is not None:
            work, done = piece
            result: Any
            try:
                if connection is not None and trusted != self._suspicion and not self._database.is_usable(connection):
                    self._close(connection)
                    connection = None
                trusted = self._suspicion
                if connection is None:
                    connection = self._database.connect(self._part)
                    self._open.add(threading.get_ident())
                result = work(connection)
            except ShardrunError as error:
                result = error
                if isinstance(error, ConnectionLost) and connection is not None:
                    self._close(connection)
                    connection = None
            except Exception as error:  # a thread's top frame: the loop raises it, and the rows' leases run out
                result = error
            self._post(lambda done=done, result=result: self._finish(done, result))  # type: ignore[misc]
        if connection is not None:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._open.discard(threading.get_ident())
        self._database.close(connection)

    def _next(self) -> tuple[Work[Any], Done[Any]] | None:
        with self._wanted:
            while not (self._urgent or self._ordinary or self._closing):
                self._wanted.wait()
            if self._urgent:
                return self._urgent.popleft()
            return self._ordinary.popleft() if self._ordinary else None

    def _finish(self, done: Done[Any], result: Any) -> None:
        with self._wanted:
            self._busy -= 1
        if isinstance(result, Exception) and not isinstance(result, ShardrunError):
            raise result
        done(result)
