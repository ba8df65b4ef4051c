"""Lend this child's own connections to handlers, a `with` block at a time.

Connections are opened on first use, never more than the pool's size, and the coordinator hears of each server session
before anything runs in it: when this child dies, it ends those sessions before the rows run again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from shardrun.child import guard
from shardrun.db import inserted
from shardrun.db.inserted import Written
from shardrun.db.pool import LIFETIME, ConnectionPool, Held
from shardrun.db.store import Connection
from shardrun.errors import PoolTimeout

PATIENCE = 10.0
"""Seconds that a handler waits for a connection. Larger: a nested block hangs longer before it is told. Smaller: a
short outage of the database, or a busy pool, costs attempts."""


class Pool(ConnectionPool):
    """The connections of all lanes of this child; `wake` is told what blocks inserted and committed."""

    def __init__(
        self,
        dsn: str,
        size: int,
        part: str,
        announce: Callable[[str], None],
        wake: Callable[[Written], None] | None = None,
        patience: float = PATIENCE,
        lifetime: float = LIFETIME,
        forget: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(dsn, size, part, announce, forget, lifetime)
        self._wake = wake
        self._patience = patience

    def lend(self, handler: str, queue: str, row: Any) -> AbstractContextManager[Connection]:
        """Lend a connection for a `with` block, which commits or rolls back; the names are for `PoolTimeout`."""
        return self._block(handler, queue, row)

    def reserve(self, handler: str, queue: str, row: Any, patience: float) -> Reserved:
        """Lend a connection until it is given back, with nothing open on it; the names are for `PoolTimeout`."""
        return Reserved(self, self._borrow(handler, queue, row, max(0.0, min(patience, self._patience))))

    def prepare(self) -> None:
        """Load the driver now: a first row that is taken on a connection waits for that, and its lease runs meanwhile."""
        self._database = self.database

    def connect(self) -> Connection:
        """Open a connection to lend, not in the place of a standard stream that was closed."""
        guard.fill_standard_descriptors()
        return super().connect()

    @contextmanager
    def _block(self, handler: str, queue: str, row: Any) -> Iterator[Connection]:
        if guard.is_fork:
            raise RuntimeError(
                "a process that a handler forked cannot use its parent's connections; open one of its own"
            )
        held = self._borrow(handler, queue, row, self._patience)
        connection = held.connection
        try:
            with inserted.recording(connection) as written, self.database.transaction(connection):
                yield connection
            if self._wake is not None:
                self._wake(written)
        finally:
            self.give_back(held)

    def _borrow(self, handler: str, queue: str, row: Any, patience: float) -> Held:
        timeout = 0 if _on_event_loop() else patience
        return self.take(timeout, lambda: PoolTimeout(handler, queue, row, timeout, self._size))


class Reserved:
    """A place in a pool, and the connection in it."""

    def __init__(self, pool: Pool, held: Held) -> None:
        self._pool = pool
        self._held: Held | None = held

    @property
    def connection(self) -> Connection | None:
        """Give the connection; None after one could not be renewed."""
        return None if self._held is None else self._held.connection

    def renew(self) -> Connection:
        """Close the connection and open another in its place; raises `DatabaseUnreachable`, and may be asked again."""
        if self._held is not None:
            self._pool.discard(self._held, is_broken=True)
            self._held = None
        self._held = self._pool.open(time.monotonic())
        return self._held.connection

    def give_back(self) -> None:
        """Let others have the place."""
        if self._held is None:
            self._pool.free()
        else:
            self._pool.give_back(self._held)


def _on_event_loop() -> bool:
    """Tell whether this thread runs an event loop: waiting here would keep its other rows from ever giving back."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
