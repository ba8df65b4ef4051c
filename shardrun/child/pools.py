"""Lend this child's own connections to handlers, a `with` block at a time.

Connections are opened on first use, never more than the pool's size, and the coordinator hears of each server session
before anything runs in it: when this child dies, it ends those sessions before the rows run again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from shardrun.child import guard
from shardrun.db import inserted
from shardrun.db.inserted import Written
from shardrun.db.store import Connection, Database
from shardrun.errors import DatabaseUnreachable, PoolTimeout

PATIENCE = 10.0
"""Seconds that a handler waits for a connection. Larger: a nested block hangs longer before it is told. Smaller: a
short outage of the database, or a busy pool, costs attempts."""

FRESH = 1.0
"""Seconds. A connection that was idle for longer is tried before it is lent. Larger: more handlers meet a dead one.
Smaller: a round trip more per block."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between attempts to connect, doubling. Larger: later back after an outage. Smaller: more load on a server
that is just coming up."""


class Pool:
    """Up to `size` connections for all lanes of this child; `wake` is told what blocks inserted and committed."""

    def __init__(
        self,
        dsn: str,
        size: int,
        part: str,
        announce: Callable[[str], None],
        wake: Callable[[Written], None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._dsn, self._size, self._part = dsn, size, part
        self._announce = announce
        self._wake = wake
        self._patience = patience
        self._database: Database | None = None
        self._changed = threading.Condition()
        self._idle: list[tuple[Connection, float]] = []
        self._holders: list[int] = []  # The threads that hold a place: a connection that is lent, or being opened.

    def lend(self, handler: str, queue: str, row: Any) -> AbstractContextManager[Connection]:
        """Lend a connection for a `with` block, which commits or rolls back; the names are for `PoolTimeout`."""
        return self._block(lambda waited: PoolTimeout(handler, queue, row, waited, self._size))

    def reserve(self, handler: str, queue: str, row: Any, patience: float) -> Reserved:
        """Lend a connection until it is given back, with nothing open on it; the names are for `PoolTimeout`."""
        thread = threading.get_ident()
        patience = max(0.0, min(patience, self._patience))
        connection = self._take(thread, lambda waited: PoolTimeout(handler, queue, row, waited, self._size), patience)
        return Reserved(self, thread, connection)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self.database.close(self._idle.pop()[0])

    @contextmanager
    def _block(self, timeout: Callable[[float], PoolTimeout]) -> Iterator[Connection]:
        if guard.is_fork:
            raise RuntimeError(
                "a process that a handler forked cannot use its parent's connections; open one of its own"
            )
        thread = threading.get_ident()
        connection = self._take(thread, timeout)
        try:
            with inserted.recording(connection) as written, self.database.transaction(connection):
                yield connection
            if self._wake is not None:
                self._wake(written)
        finally:
            self._give_back(thread, connection)

    @property
    def database(self) -> Database:
        """Speak the DSN's dialect."""
        if self._database is None:
            from shardrun.db.connect import database  # Drivers take memory that children without connections save.

            self._database = database(self._dsn)
        return self._database

    def _take(self, thread: int, timeout: Callable[[float], PoolTimeout], patience: float | None = None) -> Connection:
        patience = self._patience if patience is None else patience
        deadline = time.monotonic() + (0 if _on_event_loop() else patience)
        with self._changed:
            idle = self._wait_for_place(thread, deadline, timeout)
        try:
            if idle is not None:
                connection, since = idle
                if time.monotonic() - since < FRESH or self.database.is_usable(connection):
                    return connection
                self.database.close(connection)
            return self._open(deadline)
        except BaseException:
            self._free(thread, None)
            raise

    def _wait_for_place(
        self, thread: int, deadline: float, timeout: Callable[[float], PoolTimeout]
    ) -> tuple[Connection, float] | None:
        """Take an idle connection, or the place for a new one (None); the lock is held."""
        while len(self._holders) >= self._size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise timeout(self._patience if not _on_event_loop() else 0)
            self._changed.wait(left)
        self._holders.append(thread)
        return self._idle.pop() if self._idle else None

    def _open(self, deadline: float) -> Connection:
        """Connect, with back-off while the server is away; the coordinator knows the session before it is used."""
        guard.fill_standard_descriptors()
        pause = FIRST_PAUSE
        while True:
            try:
                connection = self.database.connect_child(self._part)
                break
            except DatabaseUnreachable:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        try:
            session = self.database.session(connection)
        except BaseException:
            self.database.close(connection)
            raise
        if session is not None:
            self._announce(session)
        return connection

    def _give_back(self, thread: int, connection: Connection) -> None:
        if self.database.reset(connection):
            self._free(thread, connection)
        else:
            self.database.close(connection)
            self._free(thread, None)

    def _free(self, thread: int, connection: Connection | None) -> None:
        with self._changed:
            self._holders.remove(thread)
            if connection is not None:
                self._idle.append((connection, time.monotonic()))
            self._changed.notify()


class Reserved:
    """A place in a pool, and the connection in it."""

    def __init__(self, pool: Pool, thread: int, connection: Connection) -> None:
        self._pool, self._thread = pool, thread
        self.connection: Connection | None = connection

    def renew(self) -> Connection:
        """Close the connection and open another in its place; raises `DatabaseUnreachable`, and may be asked again."""
        if self.connection is not None:
            self._pool.database.close(self.connection)
            self.connection = None
        self.connection = self._pool._open(time.monotonic())
        return self.connection

    def give_back(self) -> None:
        """Let others have the place."""
        if self.connection is None:
            self._pool._free(self._thread, None)
        else:
            self._pool._give_back(self._thread, self.connection)


def _on_event_loop() -> bool:
    """Tell whether this thread runs an event loop: waiting here would keep its other rows from ever giving back."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
