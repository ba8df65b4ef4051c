"""Listen: wake subscriptions at once when NOTIFY tells of their table, on a connection of the listener's own (G2).

The loop watches the connection's socket. Nothing rests on it: what is not heard is found by the poll. A session that has
ended makes its socket readable; one that has gone silent is found by asking it now and then. It is opened by a thread that
ends with that, since opening waits. Whatever was missed meanwhile is made up for by waking every subscription once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shardrun.coordinator import clock
from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.wake import wake
from shardrun.db.insert import channel
from shardrun.db.listening import Ear, Listening
from shardrun.errors import ConnectionLost
from shardrun.outcome import Backoff
from shardrun.policy.retries import backoff

LOOK = 10.0
"""Seconds between questions whether the session is there, each to be answered before the next. Smaller: one that has gone
silent is found sooner, at the cost of waking up."""

AGAIN = Backoff(first=0.1, factor=2, longest=10.0, jitter=0.2)
"""Between tries to listen again. Longer: rows wait for the poll. Shorter: more tries against a server that refuses."""


@contextmanager
def listening(replica: Replica, to: Listening | None) -> Iterator[None]:
    """Listen for a block, where there is something to listen to."""
    if to is None:
        yield
        return
    listener = Listener(replica, to)
    listener.open()
    try:
        yield
    finally:
        listener.close()


class Listener:
    """The listener of one replica. Methods run in the loop's thread, but for `_connect`."""

    def __init__(self, replica: Replica, to: Listening) -> None:
        self._replica = replica
        self._to = to
        self._tables = {channel(table): table for table in (each.subscription.queue.table for each in replica.services)}
        self._ear: Ear | None = None
        self._hears = False  # the server has said that it listens
        self._tries = 0  # since it last answered a question
        self._deaf_since: float | None = None
        self._handing_over = threading.Lock()
        self._opened: Ear | None = None  # the newest, from the moment that it is open
        self._closed = False

    def open(self) -> None:
        """Begin to listen; returns at once."""
        if not self._closed:
            threading.Thread(target=self._connect, name="shardrun-listener", daemon=True).start()

    def close(self) -> None:
        """Stop listening; a connection that is being opened is closed as soon as it is open."""
        with self._handing_over:
            self._closed = True
        if self._ear is not None:
            self._replica.events.unwatch(self._ear.descriptor)
        if self._opened is not None:
            self._opened.close()
        self._ear = self._opened = None

    def _connect(self) -> None:
        try:
            ear = self._to.open(f"shardrun {self._replica.name} listener", list(self._tables))
        except Exception as error:  # a thread's top frame: no row depends on it
            self._replica.events.post(partial(self._deaf, error))
            return
        with self._handing_over:
            if not self._closed:
                self._opened = ear
                self._replica.events.post(partial(self._watch, ear))
                return
        ear.close()

    def _watch(self, ear: Ear) -> None:
        if self._closed:
            return
        self._ear, self._hears = ear, False
        self._replica.events.watch(ear.descriptor, self._hear)
        self._replica.later(LOOK, partial(self._look, ear))

    def _hear(self) -> None:
        ear = self._ear
        assert ear is not None
        was_asked = ear.awaits_answer
        try:
            told = ear.heard()
        except ConnectionLost as error:
            self._lose(error)
            return
        if was_asked and not ear.awaits_answer:
            self._answered()
        groups: dict[str, list[str]] = {}
        for name, group in dict.fromkeys(told):  # of a thousand that say the same, one will do
            groups.setdefault(self._tables.get(name, name), []).append(group)
        wake(self._replica.services, [(table, named if all(named) else []) for table, named in groups.items()])

    def _answered(self) -> None:
        """Note that the server is there; the first answer says that from now on nothing is missed."""
        if self._hears:
            self._tries = 0
            return
        self._hears = True
        if self._deaf_since is not None:
            log.warning("NOTIFY is listened for again, after %.1f s", clock.now() - self._deaf_since)
            self._deaf_since = None
        for service in self._replica.services:
            service.pacing.committed()

    def _look(self, ear: Ear) -> None:
        """Ask whether the session is there, unless it has not answered the last time."""
        if ear is not self._ear:
            return
        try:
            if ear.awaits_answer:
                raise ConnectionLost(f"no answer within {LOOK:g} s")
            ear.ask()
        except ConnectionLost as error:
            self._lose(error)
        else:
            self._replica.later(LOOK, partial(self._look, ear))

    def _lose(self, error: ConnectionLost) -> None:
        if self._ear is not None:
            self._replica.events.unwatch(self._ear.descriptor)
            self._ear.close()
        self._ear = self._opened = None
        self._deaf(error)

    def _deaf(self, error: Exception) -> None:
        """Say once that nothing listens, and try again after a while."""
        if self._deaf_since is None:
            self._deaf_since = clock.now()
            log.warning("nothing listens for NOTIFY, rows are found by the poll meanwhile: %s", error)
        self._tries += 1
        self._replica.later(backoff(AGAIN, self._tries, self._replica.jitter()), self.open)
