"""The state of one replica. One thread changes it, the loop's; the modules beside this one are its verbs."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shardrun.coordinator import clock
from shardrun.coordinator.child import Child, Spec
from shardrun.coordinator.service import Service
from shardrun.coordinator.threads import DatabaseThreads
from shardrun.coordinator.waiting import Events
from shardrun.db.store import Database
from shardrun.errors import ShardrunError
from shardrun.outcome import Backoff
from shardrun.policy.retries import backoff

log = logging.getLogger("shardrun")

PATIENCE = 5.0
"""Seconds beyond the drain timeout that a stop waits for the last settlements. Larger: slower stops while the database is
away. Smaller: more rows wait for their leases to run out."""

COMPLAINT = 10.0
"""Seconds between log lines about a trouble that goes on. Smaller: a log that drowns in it."""

AWAY = Backoff(first=0.1, factor=2, longest=1.0, jitter=0.0)
"""Between tries to reach the database. Longer: slower recovery. Shorter: more tries against a server that is starting."""

RELAPSE = 5.0
"""Seconds after an outage in which another one goes on with the same back-off. Larger: a server that fails now and then is
tried more slowly; smaller: one that takes some connections and refuses others is tried without rest."""


class Life(enum.Enum):
    """A replica's life; `stop` in `loop.py` is its transition function, and it only goes down this list."""

    STARTING = enum.auto()  # the children import the handler modules; nothing is claimed
    SERVING = enum.auto()
    DRAINING = enum.auto()  # nothing is claimed, nothing starts; what runs may finish
    ENDING = enum.auto()  # nothing runs any more; the last settlements are written
    ENDED = enum.auto()


@dataclass(slots=True)
class Outage:
    """The database is away, or was a moment ago: nothing is claimed until every lease has been extended (R2)."""

    began: float
    next_try: float
    tries: int = 0
    under_way: int = 0  # extensions of this try that have not answered
    failed: bool = False  # one of them has failed
    repeating: bool = False  # leases are extended; what was in doubt is being repeated
    ended: float = float("-inf")


@dataclass(slots=True)
class Replica:
    """One coordinator with its children."""

    name: str
    database: Database
    threads: DatabaseThreads
    events: Events
    services: list[Service]
    spec: Spec
    until_empty: bool = False
    drain_timeout: float = 25.0
    life: Life = Life.STARTING
    children: list[Child] = field(default_factory=list)  # by index; each the newest of its place
    fruitless: list[int] = field(default_factory=list)  # by index; deaths in a row of children that finished no row
    burying: set[Child] = field(default_factory=set)  # dead, and their database sessions not yet gone
    incoming: Child | None = None  # a replacement that imports, while the one it replaces still runs
    to_replace: list[int] = field(default_factory=list)
    outage: Outage | None = None
    last_outage: Outage | None = None
    complaints: dict[str, float] = field(default_factory=dict)  # when each was last logged
    failure: ShardrunError | None = None
    patience_ends: float = float("inf")  # when a stop no longer waits for a database that is away
    made: float = field(default_factory=clock.now)
    began: float | None = None  # when the first claim could be sent
    given_back: int = 0  # rows that a stop gave back unstarted
    stop_told: bool = True  # what a stop found in hand was logged, once what runs was known
    interrupted: bool = False  # handlers were ended before they had finished
    looking: bool = False  # a look at quiet children is due
    random: Random = field(default_factory=Random)
    on_progress: Callable[[Replica], None] | None = None
    next_no: int = 0  # the last delivery number
    turn: int = 0  # counts the subscriptions' turns to claim

    @property
    def in_hand(self) -> int:
        """Count the rows that this replica holds."""
        return sum(len(service.book) for service in self.services)

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing is left to do."""
        return self.life is Life.ENDED

    def connection_lost(self, error: ShardrunError) -> None:
        """Note that a connection broke or could not be opened; `outage.recover` takes it from there."""
        if self.outage is not None:
            return
        now, last = clock.now(), self.last_outage
        if last is not None and now - last.ended < RELAPSE:  # some connections work and others do not
            wait = backoff(AWAY, last.tries, 0.0)
            self.outage = Outage(last.began, now + wait, last.tries)
            self.later(wait, lambda: None)
        else:
            log.warning("the connection to the database is gone: %s", error)
            self.outage = Outage(began=now, next_try=now)
        self.threads.suspect()

    def limit_patience(self, seconds: float | None = None) -> None:
        """From now on, wait for a database that is away no longer than for handlers; leases give back what is left."""
        seconds = self.drain_timeout + PATIENCE if seconds is None else seconds
        self.patience_ends = min(self.patience_ends, clock.now() + seconds)
        self.later(seconds, lambda: None)

    def complain(self, about: str, message: str, *arguments: object) -> None:
        """Log a warning about something that goes on, at most once in `COMPLAINT` seconds for each thing."""
        now = clock.now()
        if now - self.complaints.get(about, float("-inf")) >= COMPLAINT:
            self.complaints[about] = now
            log.warning(message, *arguments)

    def jitter(self) -> float:
        """Draw from [-1, 1]."""
        return self.random.uniform(-1.0, 1.0)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back in the loop after some seconds."""
        self.events.at(clock.now() + seconds, callback)
