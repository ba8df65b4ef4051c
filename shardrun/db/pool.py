"""Keep a few connections open for those who borrow them, with any driver alike.

A connection that lay idle is tried before it is lent, and one that has grown old is replaced. That is all that is ever tried
again: what a borrower runs, runs once, and where it fails the borrower sees the driver's own error.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardrun.db.store import Connection, Database
from shardrun.errors import DatabaseUnreachable

FRESH = 1.0
"""Seconds. A connection that was idle for longer is tried before it is lent. Larger: more borrowers meet a dead one.
Smaller: a round trip more for each loan."""

LIFETIME = 3600.0
"""Seconds that a connection is used for, less up to `SPREAD`. Larger: what a session gathers (plans, memory, a server that
has moved) stays for longer. Smaller: more often the time that it takes to connect."""

SPREAD = 0.1
"""Share of the lifetime by which it differs, so that not all connections go at once."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between attempts to connect, doubling. Larger: later back after an outage. Smaller: more load on a server
that is just coming up."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a pool has, and what it has done since it was made."""

    size: int  # the most that may be open at once
    open: int  # idle and lent
    idle: int
    lent: int
    waiting: int  # who waits for a connection now
    waits: int  # loans that found none free, those that never got one included
    opened: int
    outlived: int  # closed for their age
    broken: int  # found broken before they were lent, or came back so


@dataclass(slots=True, eq=False)
class Held:
    """An open connection: its server session's name, and what decides when it is closed (times of the monotonic clock)."""

    connection: Connection
    session: str | None
    expires: float
    drains: int  # how often the pool had been drained when this was opened
    idle_since: float = 0.0


def lifetime(longest: float = LIFETIME) -> float:
    """Choose how long one connection is used for, in seconds."""
    return longest * (1 - SPREAD * random.random())


class ConnectionPool:
    """Up to `size` connections, opened when they are first needed; safe to use from several threads.

    `announce` is told the name of each server session before anything runs in it, `forget` when it was closed in good order.
    """

    def __init__(
        self,
        dsn: str,
        size: int,
        part: str,
        announce: Callable[[str], None],
        forget: Callable[[str], None] | None = None,
        lifetime: float = LIFETIME,
    ) -> None:
        self._dsn, self._size, self._part = dsn, size, part
        self._announce, self._forget = announce, forget
        self._lifetime = lifetime
        self._database: Database | None = None
        self._changed = threading.Condition()
        self._idle: list[Held] = []
        self._places = (
            0  # of connections that are lent, being opened or being closed; with the idle ones at most `size`
        )
        self._trusted_from = 0.0  # when a connection was last found broken: those that lay idle then may be, too
        self._drains = self._open = self._waiting = self._waits = self._opened = self._outlived = self._broken = 0

    @property
    def database(self) -> Database:
        """Speak the DSN's dialect."""
        if self._database is None:
            from shardrun.db.connect import database  # drivers take memory that a pool without connections saves

            self._database = database(self._dsn)
        return self._database

    def take(self, timeout: float, refusal: Callable[[], Exception]) -> Held:
        """Lend a connection, with nothing open on it, until `give_back`.

        Raises `refusal` where none came free within `timeout` seconds, and `DatabaseUnreachable` where none could be opened.
        """
        deadline = time.monotonic() + timeout
        held = self._wait_for_place(deadline, refusal)
        try:
            if held is not None and self._is_good(held):
                return held
            return self.open(deadline)
        except BaseException:
            self.free()
            raise

    def give_back(self, held: Held) -> None:
        """Take a connection back, with whatever its borrower left on it."""
        for old in self._seize(only_old=True) if self._idle else ():
            self.discard(old)
            self.free()
        if not self.database.reset(held.connection):
            self.discard(held, is_broken=True)
            self.free()
        elif self._is_over(held):
            self.discard(held)
            self.free()
        else:
            self.free(held)

    def check(self) -> None:
        """Try every idle connection now, and close those that are old or do not answer."""
        for held in self._seize():
            held.idle_since = 0.0
            self.free(held if self._is_good(held) else None)

    def drain(self) -> None:
        """Close every connection: idle ones now, lent ones when they come back. Who borrows later gets a fresh one."""
        with self._changed:
            self._drains += 1
        for held in self._seize():
            self.discard(held)
            self.free()

    def close(self) -> None:
        """Close what is idle, and say nothing of it any more: the process ends, and whoever was told looks after the rest."""
        self._forget = None
        self.drain()

    def stats(self) -> Stats:
        """Count connections and loans."""
        with self._changed:
            idle = len(self._idle)
            return Stats(
                size=self._size,
                open=self._open,
                idle=idle,
                lent=self._open - idle,
                waiting=self._waiting,
                waits=self._waits,
                opened=self._opened,
                outlived=self._outlived,
                broken=self._broken,
            )

    def open(self, deadline: float) -> Held:
        """Connect, in a place that the caller has, with back-off while the server is away."""
        pause = FIRST_PAUSE
        while True:
            try:
                connection = self.connect()
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
        with self._changed:
            self._opened += 1
            self._open += 1
            return Held(connection, session, time.monotonic() + lifetime(self._lifetime), self._drains)

    def connect(self) -> Connection:
        """Open a connection to lend."""
        return self.database.connect_child(self._part)

    def discard(self, held: Held, is_broken: bool = False) -> None:
        """Close a connection whose place the caller has."""
        self.database.close(held.connection)
        if not is_broken and held.session is not None and self._forget is not None:
            self._forget(held.session)
        with self._changed:
            self._open -= 1
            if is_broken:
                self._broken += 1
                self._trusted_from = time.monotonic()
            elif held.expires <= time.monotonic():
                self._outlived += 1

    def free(self, held: Held | None = None) -> None:
        """Give up a place, and leave the connection that was in it to the next borrower."""
        with self._changed:
            self._places -= 1
            if held is not None:
                held.idle_since = time.monotonic()
                self._idle.append(held)
            self._changed.notify()

    def _wait_for_place(self, deadline: float, refusal: Callable[[], Exception]) -> Held | None:
        """Take an idle connection, or the place for a new one (None)."""
        with self._changed:
            if self._places >= self._size:
                self._waits += 1
                self._wait(deadline, refusal)
            self._places += 1
            return self._idle.pop() if self._idle else None

    def _wait(self, deadline: float, refusal: Callable[[], Exception]) -> None:
        self._waiting += 1
        try:
            while self._places >= self._size:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise refusal()
                self._changed.wait(left)
        finally:
            self._waiting -= 1

    def _is_good(self, held: Held) -> bool:
        """Tell whether a connection that was idle may be lent; one that may not is closed."""
        if self._is_over(held):
            self.discard(held)
            return False
        is_fresh = time.monotonic() - held.idle_since < FRESH and held.idle_since > self._trusted_from
        if is_fresh or self.database.is_usable(held.connection):
            return True
        self.discard(held, is_broken=True)
        return False

    def _is_over(self, held: Held) -> bool:
        return held.drains != self._drains or held.expires <= time.monotonic()

    def _seize(self, only_old: bool = False) -> list[Held]:
        """Take idle connections out of the pool, with their places."""
        with self._changed:
            seized = [held for held in self._idle if not only_old or self._is_over(held)]
            self._idle = [held for held in self._idle if held not in seized]
            self._places += len(seized)
        return seized
