"""The state of one subscription in this replica: its lanes, the rows in front of them, its leases and its counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from shardrun.db.locks import LockStore
from shardrun.db.offers import OfferStore
from shardrun.db.store import Backlog, Claimed, LeaseStore, Store, Verb
from shardrun.db.strands import StrandStore
from shardrun.errors import ShardrunError
from shardrun.policy.leases import Held, LeaseBook
from shardrun.policy.pacing import Demand, Pacing, read_ahead
from shardrun.queue import Form, Subscription

if TYPE_CHECKING:
    from shardrun.coordinator.child import Child
    from shardrun.coordinator.replica import Replica
    from shardrun.coordinator.threads import Done, Pin, Work


MOST_SETTLED = 1000
"""Rows settled in one transaction. Larger: cheaper per row. Smaller: less to repeat when one of them is refused."""

MOST_LEFT_OUT = 64
"""Keys that a claim leaves out. Larger: a longer list to compare each row with. Smaller: more of what has no room is claimed."""


class Lane:
    """An ordered sequence of deliveries inside a child. `waiting` holds rows in front of it, `handed` counts rows in the child.

    Its place in `Service.lanes` is what the hash of a key names; `local`, its place in the child, is what crosses the ring.
    """

    __slots__ = ("child", "handed", "local", "refused", "service", "waiting")

    def __init__(self, service: Service, child: Child, local: int) -> None:
        self.service = service
        self.child = child
        self.local = local
        self.waiting: deque[Held] = deque()
        self.handed = 0
        self.refused = False  # the child refused a row: nothing follows until all of them are back

    @property
    def load(self) -> int:
        """Count the rows in the lane and in front of it."""
        return self.handed + len(self.waiting)

    @property
    def is_free(self) -> bool:
        """Tell whether the lane has nothing to run."""
        return not self.handed and not self.waiting


def place(waiting: deque[Held], held: Held) -> None:
    """Insert a row into a waiting line that is in claim order."""
    at = 0
    while at < len(waiting) and waiting[at].order < held.order:
        at += 1
    waiting.insert(at, held)


class Ended(NamedTuple):
    """A row that waits for its settlement."""

    held: Held
    verb: Verb
    delay: float | None = None
    reason: str | None = None


@dataclass(slots=True)
class Batch:
    """Rows whose settlements are with the database together, and the tokens that were presented."""

    acked: list[Held]
    ended: list[Ended]
    tokens: dict[str, list[Any]] = field(default_factory=dict)  # of the acks: ids by the token presented
    presented: dict[Any, str] = field(default_factory=dict)  # of the others: tokens by id

    def rows(self) -> Iterator[Held]:
        """Go through all rows."""
        yield from self.acked
        for ended in self.ended:
            yield ended.held

    def present(self) -> None:
        """Note the tokens that go to the database now."""
        self.tokens = {}
        for held in self.acked:
            self.tokens.setdefault(held.token, []).append(held.id)
        self.presented = {ended.held.id: ended.held.token for ended in self.ended}

    def was_adopted(self, held: Held) -> bool:
        """Tell whether a row was claimed again by this replica since its token was presented."""
        if held.id in self.presented:
            return self.presented[held.id] != held.token
        return held.id not in self.tokens.get(held.token, ())


class Resting(NamedTuple):
    """A row that is not offered for a moment, nor what follows it in its lane."""

    until: float
    lane_key: Any
    misses: int = 1  # one soon after the other


@dataclass(slots=True)
class Counts:
    """Rows by outcome since the start; `lost` rows were held by another when they ended."""

    acked: int = 0
    retried: int = 0
    dropped: int = 0
    dead: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        """Count the deliveries that have ended."""
        return self.acked + self.retried + self.dropped + self.dead + self.lost


DoneClaiming = Callable[[list[Claimed] | ShardrunError, "Pin | None"], None]


class Holding(Protocol):
    """How a subscription's rows are held: by what they carry (batches.py), by the connections that claimed them (pins.py), or
    not at all, until a child takes them (offers.py)."""

    reads_ahead: bool
    """Whether rows may wait in front of busy lanes."""
    pins: bool
    """Whether each row keeps a connection."""

    def spare(self, replica: Replica, service: Service) -> int:
        """Count the connections that claims may take now (C2)."""

    def is_without(self, service: Service) -> bool:
        """Tell whether it has no connection for itself."""

    def claim(self, replica: Replica, service: Service, limit: int, full_keys: list[Any], done: DoneClaiming) -> None:
        """Claim up to `limit` rows; `done` gets what it took, and the connection that was pinned for that."""

    def hold(self, replica: Replica, service: Service, rows: Iterable[Held], pin: Pin) -> None:
        """Note which connection holds rows that were claimed on it."""

    def write(self, replica: Replica, service: Service, held: Held, work: Work[Any], done: Done[Any]) -> None:
        """Run a statement about a row that is held; `done` is not called where the row is lost by that."""

    def settle(self, replica: Replica, service: Service) -> None:
        """Have written what has ended and can be written now."""

    def repeat(self, replica: Replica, service: Service) -> None:
        """Have written again what a broken connection left in doubt."""


@dataclass(slots=True, eq=False)
class Service:
    """One subscription being served."""

    subscription: Subscription
    label: str
    store: Store
    pacing: Pacing
    book: LeaseBook
    children: int
    holding: Holding
    lanes: list[Lane] = field(default_factory=list)
    waiting: deque[Held] = field(default_factory=deque)  # rows that any lane may take
    acked: list[Held] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    settling: Batch | None = None
    batch_most: int = (
        MOST_SETTLED  # rows of the next batch; fewer after a conflict, so that one locked row holds up no other
    )
    settle_by: float | None = None  # when what has ended waits no longer for more to write with it
    in_doubt: Batch | None = None  # sent, and the connection broke: repeated before all else
    extending: bool = False
    average: float | None = None  # seconds that a handler takes
    timed_rows: int = 0  # reported since `average` was brought up to date
    timed_micros: int = 0
    counts: Counts = field(default_factory=Counts)
    full_lanes: list[Lane] = field(default_factory=list)  # left out by the last claim, which took nothing
    passed_over: dict[Any, Lane] = field(
        default_factory=dict
    )  # keys of rows that went back, and the lanes they wait for
    half_full: int = 0  # rows in a lane that was half full by the measure of that claim
    backlog: Backlog | None = None  # what the table held when it was last asked
    backlog_asked: int = 0  # after how many claims that was
    backlog_endings: int = 0  # after how many endings of rows of this replica that was
    awaited: set[Any] = field(default_factory=set)  # rows that this run put off, while it runs until empty
    explained: bool = False  # why a claim took nothing was asked for
    turned_back: set[Any] = field(default_factory=set)  # keys over all replicas of which a row goes back (R6)
    resting: dict[Any, Resting] = field(default_factory=dict)  # rows that another had just taken
    releasing: int = 0  # rows on their way back to the queue: nothing is claimed past them

    @property
    def name(self) -> str:
        """Name the queue, as messages do."""
        return self.subscription.queue.name

    @property
    def is_clustered(self) -> bool:
        """Tell whether its keys keep their order over all replicas (D4)."""
        return self.subscription.key_scope == "cluster"

    @property
    def by_strands(self) -> StrandStore:
        """Give the store of a subscription whose claims go by strands."""
        return cast(StrandStore, self.store)

    def claim_of(self, limit: int, full_keys: list[Any]) -> Work[list[Claimed]]:
        """Write a claim of some rows, to be run on a connection: by strands where rows keep an order over all replicas."""
        if not self.subscription.has_strands:
            return lambda connection: self.store.claim(connection, limit, full_keys)
        ids = frozenset(held.id for held in self.book)
        return lambda connection: self.by_strands.claim_strands(connection, limit, full_keys, ids)

    @property
    def leases(self) -> LeaseStore:
        """Give the store of a subscription whose rows carry a lease."""
        return cast(LeaseStore, self.store)

    @property
    def locks(self) -> LockStore:
        """Give the store of a subscription whose rows are held by connections."""
        return cast(LockStore, self.store)

    @property
    def is_offered(self) -> bool:
        """Tell whether nothing holds a row before a child has taken it by a lock of its own (R3)."""
        return self.subscription.transactional and self.subscription.queue.form is not Form.LEASE

    @property
    def offers(self) -> OfferStore:
        """Give the store of a subscription whose rows are taken by children."""
        return cast(OfferStore, self.store)

    @property
    def holds_one_lane(self) -> bool:
        """Tell whether rows that one connection has claimed are settled together, and so belong to one lane."""
        return self.batch > 1 and self.subscription.by_key and self.subscription.queue.form is Form.ROW_LOCK

    @property
    def batch(self) -> int:
        """Say how many rows a delivery may have."""
        return self.subscription.batch or 1

    @property
    def per_lane_ahead(self) -> int:
        """Say how many rows a lane may have, running ones included."""
        return self.batch + self.ahead

    @property
    def ahead(self) -> int:
        """Say how many rows may wait in front of each lane: whole batches of them."""
        if self.average is None or not self.holding.reads_ahead:
            return 0
        return self.batch * read_ahead(self.average * self.batch, -(-len(self.lanes) // self.children) * self.batch)

    def leave_line(self, held: Held) -> None:
        """Take a row out of its waiting line, where it stands in one."""
        line = self.waiting if held.lane is None else held.lane.waiting
        if held in line:
            line.remove(held)

    def demand(self) -> Demand:
        """Count the room for more rows."""
        per_lane = self.per_lane_ahead
        rooms = [max(0, self.room_in(lane, per_lane)) for lane in self.lanes]
        free = self.batch * sum(lane.is_free for lane in self.lanes) - len(self.waiting)
        return Demand(room=sum(rooms) - len(self.waiting), capacity=per_lane * len(self.lanes), free=max(0, free))

    def full(self) -> list[Lane]:
        """List lanes that have no room, where rows are bound to lanes by key."""
        if not self.subscription.by_key:
            return []
        per_lane = self.per_lane
        return [lane for lane in self.lanes if self.room_in(lane, per_lane) <= 0]

    def room_in(self, lane: Lane, per_lane: int) -> int:
        """Count the rows that a lane has room for; what a running batch could have had besides is no room."""
        running = max(lane.handed, self.batch) if lane.handed else 0
        return per_lane - running - len(lane.waiting)

    @property
    def per_lane(self) -> int:
        """Say how many rows a lane may have, running ones included, as the next claim sees it."""
        return self.batch if self.pacing.one_by_one else self.per_lane_ahead

    def keys_left_out(self, full: list[Lane]) -> list[Any]:
        """List the keys that a claim leaves out, so that one hot key cannot fill all read-ahead (R16).

        Those are the keys in hand whose lanes are full, and those passed over whose lanes are still busy.
        """
        half = self.per_lane // 2
        self.passed_over = {key: lane for key, lane in self.passed_over.items() if lane.load > half}
        keys: dict[Any, Any] = dict(self.passed_over)
        if full:
            wanted = set(full)
            keys.update(
                (held.row.lane_key, 0) for held in self.book if held.lane in wanted and held.row.lane_key is not None
            )
        return [*self._keys_turned_back(), *list(keys)[:MOST_LEFT_OUT]]

    def _keys_turned_back(self) -> set[Any]:
        """Give the keys of which nothing is claimed until all their rows have gone back."""
        if self.turned_back:
            self.turned_back &= {held.row.lane_key for held in self.book}
        return self.turned_back

    def pass_over(self, rows: list[Held]) -> bool:
        """Leave the keys of rows that go back out of the next claims; False where that would not change them."""
        before = len(self.passed_over)
        if before >= MOST_LEFT_OUT:
            return False
        self.passed_over.update((held.row.lane_key, held.lane) for held in rows if held.lane is not None)
        return len(self.passed_over) > before

    def look_for_room(self) -> None:
        """Claim at once when a lane that had no room for the last claim, which took nothing, is half empty by now."""
        if any(lane.load <= self.half_full for lane in self.full_lanes):
            self.full_lanes = []
            self.pacing.wake(0.0)
