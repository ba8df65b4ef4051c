"""The verbs of a row's journey, over rows: what the coordinator asks of any database.

A `Database` opens connections and reads the catalogue; a `Store` speaks for one subscription. Both are used from
several threads, one connection per thread at a time. Every method raises `ConnectionLost` when the connection broke
(what was under way is in doubt), `Conflict` when nothing was done and a repeat may succeed, and `StatementFailed` when
it never will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shardrun.db.listening import Listening
from shardrun.db.operate import Connection as Connection
from shardrun.db.operate import Counts, DeadLetters, Sessions
from shardrun.db.table import Column, Layout
from shardrun.policy.verbs import Verb as Verb
from shardrun.queue import Queue, Subscription

if TYPE_CHECKING:
    from shardrun.db.taking import Taking

Token = str
"""A lease token: the expiry in `locked_until`, in the database's own spelling. Compared for equality only."""


class Claimed(NamedTuple):
    """One row that a claim took, in claim order."""

    id: Any
    token: Token
    attempt: int  # attempts begun, this one included; 1 where the queue has no attempt column
    expired: bool  # taken from a lease that had run out: its holder may have died before the row began
    key: Any
    lane_key: Any  # str, int, float or bytes, equal exactly where the database calls keys equal; None if not by key
    group: str | None
    headers: Any  # the stored value; JSON as its text
    body: Any  # the payload's stored value, JSON as its text; in row mode a dict of all columns; with fetch= a dict of
    # what it returned, or a str that says why there is none


class Settlement(NamedTuple):
    """One row's settlement; `delay` in seconds, `attempt` the count to write (a lease's claim has written that of an ending)."""

    verb: Verb
    id: Any
    token: Token
    delay: float | None = None
    reason: str | None = None
    attempt: int = 0


Acked = Mapping[Token, Sequence[Any]]

NONE_ACKED: Acked = {}


class Extension(NamedTuple):
    """How an extension went: the ids that carry the new token now, and those that still carry the old one.

    The latter are kept locked by someone else's transaction, or the database's clock stepped back: ask again. All
    others are lost.
    """

    extended: Sequence[Any]
    busy: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a table still holds for one subscription."""

    ready: bool  # some unfinished row is due or held, whoever holds it
    later: int  # unfinished rows whose due time lies in the future, counted up to 100,000
    awaited: bool  # some row of the ids that were asked for is still unfinished


class Waiting(NamedTuple):
    """Why a claim took nothing, from the first `WAITING_LIMIT` unfinished rows in claim order.

    `later` rows are not due, `leased` are held, `free` are neither (locked by someone's transaction, or new). `first` is the
    first due time, UTC without zone, `seconds` from now. `elsewhere` names a group, quoted, where only others have rows.
    """

    rows: int
    later: int
    leased: int
    free: int
    first: str | None
    seconds: float | None
    elsewhere: str | None


WAITING_LIMIT = 10_000
"""Rows that `Store.waiting` looks at. Larger: exact for more of them, read by a longer scan."""


class Store(Protocol):
    """The statements of one subscription, built once."""

    layout: Layout
    """The queue over its table, as the catalogue names that."""

    @property
    def payload_kind(self) -> str | None:
        """Say what `Claimed.body` is: "json" (its text), "text", "binary", or None where it is a dict of the row."""

    def prepare(self, connection: Connection) -> int:
        """Have the server prepare every statement that will be run, and count them; raises `DeclarationProblem`."""

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows for this replica, in claim order, except those whose lane key is in `full_keys`."""

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements in one transaction; returns the ids of those that took effect (the others are lost).

        `acked` are the acks, the most frequent by far, as ids by token.
        `repeated` says that the same settlements may have been committed before: those then count as effective.
        """

    def backlog(self, connection: Connection, awaited: Sequence[Any]) -> Backlog:
        """Look at what is left, without a full scan."""

    def waiting(self, connection: Connection) -> Waiting:
        """Look why a claim took nothing, at a bounded number of rows."""


class LeaseStore(Store, Protocol):
    """The statements of one subscription whose rows carry a lease."""

    def lease_end(self, connection: Connection) -> Token:
        """Read the database's clock, plus the lease: the value that an extension started now will write."""

    def extend(self, connection: Connection, ids: Sequence[Any], token: Token, new: Token) -> Extension:
        """Push the expiry of the rows that carry `token` to `new`, in one transaction, waiting for no one."""


class Database(Protocol):
    """One database, as named by a DSN."""

    one_writer: bool
    """True where one connection at a time can write (SQLite): the coordinator then uses one connection."""
    leases_in_turn: bool
    """True where claims of leases side by side cost more than one after another, since all read the same candidates."""

    @property
    def column_kind(self) -> type[Column]:
        """Name the class of the columns that its catalogue gives."""

    @property
    def listening(self) -> Listening | None:
        """Give how it is listened to, or None where it tells nothing of its own accord."""

    def describe(self) -> str:
        """Name the database for the banner, without any secret: `PostgreSQL 15.18 at localhost/app`."""

    def connect(self, part: str) -> Connection:
        """Open the coordinator's own connection; `part` names replica and part to the server.

        Raises `DatabaseUnreachable`.
        """

    def connect_child(self, part: str) -> Connection:
        """Open a connection to lend to handlers: the driver's defaults, no transaction open."""

    def is_usable(self, connection: Connection) -> bool:
        """Tell, in one round trip at most, whether a connection still works; it is left with no transaction."""

    def is_alive(self, connection: Connection) -> bool:
        """Tell, in one round trip, whether a connection that holds rows still works; what it holds stays held."""

    def descriptor(self, connection: Connection) -> int | None:
        """Name the connection's socket, which is readable when the server has ended the session; None where there is none."""

    def only_replica(self, subscription: Subscription) -> AbstractContextManager[None]:
        """Hold, for a block, the right to serve a subscription whose form allows one replica here; most forms allow any number.

        Raises `Unsupported` where another replica has it.
        """

    def reset(self, connection: Connection) -> bool:
        """Undo what a handler may have left on a lent connection; False means that it must be closed instead."""

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """Commit what the block wrote, or roll it back when it raises."""

    def naming_errors(self, connection: Connection) -> AbstractContextManager[None]:
        """Turn the driver's errors that the block meets into this module's."""

    def session(self, connection: Connection) -> str | None:
        """Name the server session behind a fresh connection, for good, or None where there is no server."""

    def end_sessions(self, connection: Connection, sessions: Sequence[str], part: str) -> None:
        """End a dead process's sessions, those of `part`, and wait until they are gone."""

    @property
    def dsn(self) -> str:
        """Give the DSN with nothing in it that depends on the working directory; it may hold a password."""

    def close(self, connection: Connection) -> None:
        """Close quietly, also when it is broken."""

    def store(self, connection: Connection, subscription: Subscription) -> Store:
        """Build a subscription's statements; raises `Problems` where table and declaration do not fit."""

    def taking(self, layout: Layout) -> Taking:
        """Build the statements of a subscription's deliveries in transactions, to be run in children."""

    def warnings(self, connection: Connection, subscription: Subscription) -> list[str]:
        """List what would work badly, one sentence each, with the way out (a claim without an index)."""

    def ddl(
        self, queue: Queue[Any], subscriptions: Sequence[Subscription], connection: Connection | None = None
    ) -> list[str]:
        """Write the CREATE statements of a queue, its claim indexes and its dead letters, each safe to run again.

        With a connection, what is there already is left out, and dead letters copy the columns of the real table.
        """

    def connection_limit(self, connection: Connection) -> tuple[int, int] | None:
        """Read the server's own limit of connections and how many are in use, or None where there is none."""

    def counts(self, connection: Connection, subscription: Subscription) -> Counts:
        """Count what a queue holds for a subscription, within bounds; raises `Problems` where the table does not fit."""

    def sessions(self, connection: Connection) -> Sessions | None:
        """Read the server's limit of connections and who uses them, or None where there is no server."""

    def dead_letters(self, connection: Connection, subscription: Subscription) -> DeadLetters | None:
        """Open a subscription's dead letters, or None where it declares none; raises `Problems`."""
