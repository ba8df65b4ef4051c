"""Run statements beside the loop: a fixed set of threads, one connection each. They decide nothing and share no state.

A piece of work may pin its thread: what is done with the pin runs on that very connection, and nothing else does, until it is
released. A pinned connection that breaks is not opened again: what it held is gone with it.

A connection that breaks is closed at once and opened again by the next piece of work; the loop paces the tries (`outage.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shardrun.coordinator import clock
from shardrun.db.pool import lifetime
from shardrun.db.store import Connection, Database
from shardrun.errors import ConnectionLost, ShardrunError

FAREWELL = 5.0
"""Seconds that statements under way have when a replica ends. Larger: a database that hangs holds up the exit for longer."""

T = TypeVar("T")
Work = Callable[[Connection], T]
Done = Callable[[T | ShardrunError], None]
DonePinning = Callable[[T | ShardrunError, "Pin | None"], None]


class Pin:
    """A thread kept for what its connection holds; `descriptor` is the connection's socket, if it has one."""

    def __init__(self, threads: DatabaseThreads, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self.is_released = False
        self.pieces: deque[tuple[Work[Any], Done[Any]]] = deque()
        self.wanted = threading.Condition(threads.lock)
        self._threads = threads

    def submit(self, work: Work[T], done: Done[T]) -> None:
        """Run `work` on the pinned connection, then `done` in the loop's thread; where that broke, with `ConnectionLost`."""
        with self.wanted:
            if self.is_released:  # its thread serves others by now
                gone = ConnectionLost("the connection that held the row was let go of")
                self._threads.post(partial(_give, done, gone))
                return
            self.pieces.append((work, done))
            self.wanted.notify()

    def release(self) -> None:
        """Let the thread go on with other work; nothing may be held by its connection any more, or it must have broken."""
        with self.wanted:
            if not self.is_released:
                self.is_released = True
                self._threads.unpinned()
                self.wanted.notify()


_Piece = tuple[Work[Any], Done[Any] | None, DonePinning[Any] | None]


@dataclass(slots=True)
class _Seat:
    """A thread's connection, when it is old, and how often connections had come under suspicion when it was last looked at."""

    connection: Connection | None = None
    expires: float = 0.0
    trusted: int = 0


class DatabaseThreads:
    """`size` threads with a connection each; `post` hands a callback to the loop's thread."""

    def __init__(self, database: Database, size: int, part: str, post: Callable[[Callable[[], None]], None]) -> None:
        self.size = size
        self._database = database
        self._part = part
        self.post = post
        self._urgent: deque[_Piece] = deque()
        self._ordinary: deque[_Piece] = deque()
        self.lock = threading.RLock()
        self._wanted = threading.Condition(self.lock)
        self._busy = 0
        self._closing = False
        self._suspicion = 0
        self._open: set[int] = set()  # the threads that have a connection
        self._pins: set[Pin] = set()
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
            (self._urgent if urgent else self._ordinary).append((work, done, None))
            self._wanted.notify()

    def submit_pinning(self, work: Work[T], done: DonePinning[T]) -> None:
        """Do the same, and pin the thread where the result is true: `done` gets the pin, too, which counts as busy."""
        with self._wanted:
            self._busy += 1
            self._ordinary.append((work, None, done))
            self._wanted.notify()

    def unpinned(self) -> None:
        """Note that a pin was released."""
        self._busy -= 1

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
            for pin in self._pins:
                pin.wanted.notify_all()
        deadline = clock.now() + FAREWELL
        for thread in self._threads:
            thread.join(max(0.0, deadline - clock.now()))

    def _serve(self) -> None:
        seat = _Seat()
        while (piece := self._next()) is not None:
            work, done, done_pinning = piece
            result = self._run(seat, work)
            if done is not None:
                self.post(partial(self._finish, done, result))
                continue
            assert done_pinning is not None
            pin = self._pinned(seat) if result and not isinstance(result, Exception) else None
            self.post(partial(self._finish_pinning, done_pinning, result, pin))
            if pin is not None:
                self._serve_pin(seat, pin)
        self._close(seat)

    def _serve_pin(self, seat: _Seat, pin: Pin) -> None:
        """Run what is done with a pin, until it is released or the replica ends."""
        while (piece := self._next_of(pin)) is not None:
            work, done = piece
            if seat.connection is None:
                result: Any = ConnectionLost("the connection that held the row is gone")
            else:
                result = self._run(seat, work, pinned=True)
            self.post(partial(_give, done, result))
        with self.lock:
            self._pins.discard(pin)

    def _run(self, seat: _Seat, work: Work[Any], pinned: bool = False) -> Any:
        try:
            if not pinned:
                self._make_usable(seat)
            return work(seat.connection)
        except ShardrunError as error:
            if isinstance(error, ConnectionLost):
                self._close(seat)
            return error
        except Exception as error:  # a thread's top frame: the loop raises it, and the rows' leases run out
            return error

    def _make_usable(self, seat: _Seat) -> None:
        is_suspect = seat.connection is not None and seat.trusted != self._suspicion
        if is_suspect and not self._database.is_usable(seat.connection):
            self._close(seat)
        seat.trusted = self._suspicion
        if seat.connection is not None and seat.expires <= clock.now():
            self._close(seat)
        if seat.connection is None:
            seat.connection = self._database.connect(self._part)
            seat.expires = clock.now() + lifetime()
            self._open.add(threading.get_ident())

    def _pinned(self, seat: _Seat) -> Pin:
        pin = Pin(self, self._database.descriptor(seat.connection))
        with self.lock:
            self._pins.add(pin)
        return pin

    def _close(self, seat: _Seat) -> None:
        connection, seat.connection = seat.connection, None
        if connection is not None:
            self._open.discard(threading.get_ident())
            self._database.close(connection)

    def _next(self) -> _Piece | None:
        with self._wanted:
            while not (self._urgent or self._ordinary or self._closing):
                self._wanted.wait()
            if self._urgent:
                return self._urgent.popleft()
            return self._ordinary.popleft() if self._ordinary else None

    def _next_of(self, pin: Pin) -> tuple[Work[Any], Done[Any]] | None:
        with pin.wanted:
            while not (pin.pieces or pin.is_released or self._closing):
                pin.wanted.wait()
            return pin.pieces.popleft() if pin.pieces else None

    def _finish(self, done: Done[Any], result: Any) -> None:
        with self._wanted:
            self._busy -= 1
        _give(done, result)

    def _finish_pinning(self, done: DonePinning[Any], result: Any, pin: Pin | None) -> None:
        if pin is None:
            with self._wanted:
                self._busy -= 1
        _give(lambda given: done(given, pin), result)


def _give(done: Done[Any], result: Any) -> None:
    if isinstance(result, Exception) and not isinstance(result, ShardrunError):
        raise result
    done(result)
