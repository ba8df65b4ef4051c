"""What claims of strands may return, in plain Python, beside a store that is asked for the same (see `test_strand_model`).

A `Model` knows for each strand its rows in order: which are held and by whom, which have begun, which are put off. A `World` does
to a table what the model is told, and holds each claim of each replica against it, wherever that claim stands when others act.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from shardrun.db.store import Claimed, Connection, Verb
from shardrun.db.strands import Seen, Strands
from shardrun.errors import Conflict
from tests.store.test_strands import Ordered, Replica

FEWEST, MOST = 2, 3
"""Replicas of a story: as many as it takes to find fault, and as there may be."""

STRANDS = "abc"
MOST_OF_ONE = 5
"""Rows of a strand, about: with the few that come whatever is there, no more than one claim takes of a key among others."""

DEAD = -1
"""Holds rows of replicas that have died, until their leases run out."""


@dataclass
class Row:
    """An unfinished row that is committed."""

    id: int
    strand: str
    priority: int
    due: int = 0  # when it fell due, where it has a due time: in the order in which these have passed
    put_off: bool = False
    attempt: int = 0
    holder: int | None = None


@dataclass
class Model:
    """The order of each strand's rows, and what of them may be claimed."""

    fifo: bool
    counts_at_claim: bool
    rows: dict[int, Row] = field(default_factory=dict)
    guarded: dict[str, int] = field(default_factory=dict)  # strands that a claim under way guards, by its replica

    def order(self, strand: str) -> list[Row]:
        """List a strand's rows: those that have begun, then the others, each in the order of claims."""
        rows = [row for row in self.rows.values() if row.strand == strand]
        return sorted(rows, key=lambda row: (row.attempt == 0, row.priority, row.due if self.fifo else 0, row.id))

    def strands(self) -> list[str]:
        """List the strands that have rows, in order."""
        return sorted({row.strand for row in self.rows.values()})

    def lets_go(self, strand: str, replica: int) -> list[int]:
        """Say which rows, in order, a replica may claim now, whoever guards their strand."""
        rows = self.order(strand)
        if self.fifo:
            if any(row.holder is not None or (row.attempt and row.put_off) for row in rows):
                return []
            return [row.id for row in rows if not row.put_off][:1]
        others = [row for row in rows if row.holder != replica]
        if any(row.holder is not None for row in others):
            return []
        stops = next((n for n, row in enumerate(others) if row.put_off), len(others))
        return [row.id for row in others[:stops]]

    def waits(self, strand: str, replica: int) -> bool:
        """Tell whether it is a due time that keeps a strand from letting a row go."""
        rows = [row for row in self.order(strand) if self.fifo or row.holder != replica]
        if self.fifo:
            return any(row.attempt and row.put_off for row in rows)
        return bool(rows) and rows[0].put_off and all(row.holder is None for row in rows)

    def claimable(self, strands: Sequence[str], limit: int, replica: int) -> list[int]:
        """List the rows that a claim of these strands gives: none of a strand that another claim guards."""
        mine = [strand for strand in strands if self.guarded.get(strand, replica) == replica]
        return [id for strand in mine for id in self.lets_go(strand, replica)][:limit]

    def claimed(self, row: Claimed, replica: int) -> None:
        """Note that a row was claimed, and check what is said of it."""
        claimed = self.rows[row.id]
        assert row.attempt == claimed.attempt + 1
        claimed.holder = replica
        claimed.attempt += self.counts_at_claim

    def ended(self, id: int, verb: Verb, delayed: bool) -> None:
        """Note how a row that was held has ended."""
        if verb in (Verb.ACK, Verb.DROP, Verb.BURY):
            del self.rows[id]
            return
        row = self.rows[id]
        row.holder, row.put_off = None, delayed
        taken_back = verb is not Verb.RETRY
        row.attempt += (0 if taken_back else 1) - self.counts_at_claim

    def check(self) -> None:
        """Check what no story may break: one row of a group is in work; one replica has the rows of a key."""
        for strand in self.strands():
            holders = [row.holder for row in self.order(strand) if row.holder is not None]
            assert len(holders if self.fifo else set(holders)) <= 1, f"{strand} is in work twice"


class Watched:
    """A replica whose looks and claims are held against the model as it stands at that moment; a claim can be made to pause."""

    def __init__(self, bench: Bench, number: int, replica: Replica) -> None:
        self.bench, self.number, self.replica = bench, number, replica
        self.store = cast(Any, replica.store)
        self.connections = {id(one): one for one in replica.idle}
        self.seen: list[str] | None = None
        self.pauses: dict[str, Callable[[list[str]], None]] = {}
        self._guards: list[str] = []  # of the transaction that claims
        self._granted: list[str] = []  # to any transaction of the claim
        self._allowed: list[int] = []
        self._take, self._look = self.store.take, self.store.look
        self.store.take, self.store.look = self.take, self.look
        (self._watch_file if bench.ordered.place.dialect == "sqlite" else self._watch_server)()

    @property
    def model(self) -> Model:
        return self.bench.world.model

    def connection(self) -> Connection:
        """Take a connection of the replica's, which holds nothing."""
        if not self.replica.idle:
            self.replica.idle.append(self.replica.place.connect())
        connection = self.replica.idle.pop()
        self.connections[id(connection)] = connection
        return connection

    def start_again(self) -> None:
        """Let go of all that is held, whatever has become of it, and forget all."""
        for connection in self.connections.values():
            connection.rollback()
        self.replica.idle = list(self.connections.values())
        self.forget()

    def forget(self) -> None:
        """Know nothing, as a process that starts."""
        self.replica.held.clear()
        self.store.strands = Strands(self.store)
        self.seen, self.pauses = None, {}
        avoided = self.store._around.avoided if hasattr(self.store, "_around") else self.store._avoided
        avoided._until.clear()

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look, and check that each strand is said to be what it is."""
        left, walked = self._look(connection, these, after, visits, full_keys, held)
        if self.bench.checks_looks:
            behind = [strand for strand in self.model.strands() if after is None or strand > after]
            assert [seen.strand for seen in walked] == behind[:visits]
            assert [seen.strand for seen in left] == list(these)
            for seen in (*left, *walked):
                self._check_seen(seen, {str(key) for key in full_keys})
        return left, walked

    def _check_seen(self, seen: Seen, full: Collection[str]) -> None:
        model, strand = self.model, seen.strand
        is_free = bool(model.lets_go(strand, self.number)) and strand not in full
        if not model.counts_at_claim:  # the guard is all that says that a row is in work
            is_free = is_free and strand not in model.guarded
        assert seen.is_free == is_free, seen
        waits = model.waits(strand, self.number) and strand not in full
        if seen.seconds is not None:
            assert waits
            assert 0 < seen.seconds < 61
        elif waits:
            assert any(row.holder == self.number for row in model.order(strand)), "it is not remembered when it is due"

    def take(self, connection: Connection, strands: Sequence[Any], limit: int, held: Collection[Any]) -> list[Claimed]:
        """Claim, and check that the rows are those that were allowed when they were chosen."""
        self._granted, self._allowed = [], []
        before = {strand for strand in strands if self.model.lets_go(strand, self.number)}
        rows: list[Claimed] = self._take(connection, strands, limit, held)
        assert [row.id for row in rows] == self._allowed
        for row in rows:
            self.model.claimed(row, self.number)
            assert self.store.strand_of(row) == self.model.rows[row.id].strand
        self.model.check()
        if len(rows) < limit:
            passed = before - set(self._granted) - set(self.model.guarded)
            assert not [strand for strand in passed if self.model.lets_go(strand, self.number)], "free, and not tried"
        return rows

    def _choosing(self, strands: list[str], limit: int) -> None:
        """Come by where a claim has its guards and chooses next."""
        self._guards = strands
        self._pause("guarded", strands)
        self._granted += strands
        self._allowed += self.model.claimable(strands, limit, self.number)

    def _pause(self, point: str, strands: list[str]) -> None:
        if pause := self.pauses.pop(point, None):
            mine = dict.fromkeys(strands, self.number)
            self.model.guarded |= mine
            pause(strands)
            for strand in mine:
                del self.model.guarded[strand]

    def _watch_file(self) -> None:
        """Come by in a claim of a file, which nobody else can write from where it has begun."""
        real_take, real_read = self._take, self.store._read

        def take(connection: Connection, strands: Sequence[Any], limit: int, held: Collection[Any]) -> Any:
            self._choosing(list(strands), limit)
            return real_take(connection, strands, limit, held)

        def read(*given: Any) -> Any:
            self._pause("chosen", list(STRANDS))
            return real_read(*given)

        self._take, self.store._read = take, read

    def _watch_server(self) -> None:
        """Come by in a claim where its guards are granted, and where it has chosen rows under them."""
        line, last = self.store._line, "_write" if self.model_counts else "_values"
        real_values, real_last = line.values, getattr(self.store, last)

        def values(held: Collection[Any], avoided: Any, **more: Any) -> Any:
            if "limit" in more:
                self._choosing(re.findall(r"\w+", more["strands"]), more["limit"])
            return real_values(held, avoided, **more)

        def chosen(*given: Any) -> Any:
            self._pause("chosen", self._guards)
            return real_last(*given)

        line.values = values
        setattr(self.store, last, chosen)

    @property
    def model_counts(self) -> bool:
        return self.bench.ordered.form != "row lock"


class Draw(NamedTuple):
    """What an action is told: it makes of it what fits."""

    who: int
    other: int  # another replica, by how many come between
    strand: str
    number: int
    way: bool


class Bench:
    """A database with its replicas, for one story after another."""

    def __init__(self, ordered: Ordered, broken: bool = False, spoil: Callable[[Any], None] | None = None) -> None:
        self.ordered, self.place = ordered, ordered.place
        self.checks_looks = not broken  # what is broken must show in claims
        self.clock = 0.0
        ordered.create()
        order = "priority, id" if ordered.form == "cluster" else "priority, retry_after, id"
        ordered.run(f"create index in_order on q (strand, attempt, {order})")
        replicas = [ordered.replica() for _ in range(FEWEST if broken else MOST)]
        if spoil is not None:
            for replica in replicas:
                spoil(replica.store)
        self.replicas = [Watched(self, number, replica) for number, replica in enumerate(replicas)]
        self.late = [self.place.connect() for _ in range(2)]
        if self.place.dialect == "sqlite":
            for connection in self.place._opened:
                connection.execute("pragma busy_timeout = 0")
                connection.execute("pragma synchronous = off")
        self.world = World(self)

    def new_world(self) -> World:
        """Empty the table, and let the replicas begin anew."""
        for watched in self.replicas:
            watched.start_again()
        for connection in self.late:
            connection.rollback()
        self.ordered.run("delete from q")
        self.ordered.run("delete from q_dead")
        self.world = World(self)
        return self.world

    def monotonic(self) -> float:
        """Stand in for the clock that claims remember strands by: no story depends on how fast it is told."""
        return self.clock


class World:
    """One story: a table, and the model of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.run, self.seconds = bench, bench.ordered.run, bench.place.seconds
        form = bench.ordered.form
        self.row_lock = form == "row lock"
        self.model = Model(fifo=form != "cluster", counts_at_claim=not self.row_lock)
        self.next_id, self.early_id, self.passed = 1000, 999, 0
        self.claimed: list[list[Claimed]] = [[] for _ in bench.replicas]  # and held by each, in the order of its claims
        self.late: dict[int, Row] = {}  # rows that are inserted and not committed, by the connection's number
        self.ever: set[int] = set()
        self.finished: list[int] = []
        self.buried: list[int] = []

    def row(self, strand: str, priority: int, early: bool = False) -> Row:
        """Think of a row: with the next id, or one before all others."""
        self.next_id, self.early_id = self.next_id + (not early), self.early_id - early
        return Row(self.early_id if early else self.next_id, strand, priority)

    def insert(self, row: Row, connection: Connection | None = None) -> None:
        """Insert a row; on a connection with a transaction, it stays open."""
        due = self.seconds(60) if row.put_off else "null"
        values = f"{row.id}, '{row.strand}', {row.priority}, {due}, {'null' if row.id % 2 else '0'}"
        text = f"insert into q (id, strand, priority, retry_after, attempt) values ({values})"
        if connection is None:
            self.run(text)
        else:
            connection.execute("begin")
            connection.execute(text)

    def committed(self, row: Row) -> None:
        self.model.rows[row.id] = row
        self.ever.add(row.id)

    def early_row(self, strand: str) -> None:
        """Insert a row that stands before all others that have not begun."""
        if len(self.model.order(strand)) <= MOST_OF_ONE:
            row = self.row(strand, 0, early=True)
            self.insert(row)
            self.committed(row)

    def another(self, draw: Draw) -> Watched:
        """Choose another replica than the one that acts."""
        return self.bench.replicas[(draw.who + 1 + draw.other) % len(self.bench.replicas)]

    # what can happen

    def new_row(self, draw: Draw) -> None:
        """Insert a row: due, or scheduled; with the next id or, as one whose transaction took long, an early one."""
        if len(self.model.order(draw.strand)) < MOST_OF_ONE:
            row = self.row(draw.strand, draw.number % 2, early=draw.way)
            row.put_off = draw.number == 4
            self.insert(row)
            self.committed(row)

    def late_row(self, draw: Draw) -> None:
        """Insert a row in a transaction that stays open; or commit one."""
        number = draw.number % len(self.bench.late)
        connection = self.bench.late[number]
        if number in self.late:
            row = self.late.pop(number)
            if self.bench.place.dialect == "sqlite":  # whose one writer does not stay in a transaction
                self.insert(row)
            else:
                connection.execute("commit")
            self.committed(row)
        elif len(self.model.order(draw.strand)) < MOST_OF_ONE - 2:
            self.late[number] = self.row(draw.strand, 0)
            if self.bench.place.dialect != "sqlite":
                self.insert(self.late[number], connection)

    def look(self, draw: Draw) -> None:
        """Look, and remember what seemed free for a claim some time later."""
        watched, connection = self.at(draw.who)
        _, walked = watched.look(connection, [], None, 9, [], set(watched.replica.held))
        watched.seen = [seen.strand for seen in walked if seen.is_free]
        self.let_be(watched, connection, [])

    def take(self, draw: Draw) -> None:
        """Claim what seemed free at the last look; or, as after the worst look, everything."""
        watched, connection = self.at(draw.who)
        strands, watched.seen = watched.seen, None
        if strands is None or draw.way:
            strands = list(STRANDS)[draw.number % 2 :]
        limit = 1 if self.row_lock else 1 + draw.number
        rows = watched.take(connection, strands, limit, set(watched.replica.held))
        self.let_be(watched, connection, rows)

    def claim(self, draw: Draw) -> None:
        """Claim as a coordinator does; where a row can be had, one comes."""
        self.claim_of(self.bench.replicas[draw.who], 1 + draw.number)

    def claim_slowly(self, draw: Draw) -> None:
        """Claim, and pause behind the look, behind the guard or behind the choice: an early row comes, another claims."""
        watched, connection = self.at(draw.who)
        on_file = self.bench.place.dialect == "sqlite"
        points = ("looked", "chosen") if on_file else ("looked", "guarded", "chosen")
        point = points[draw.number % len(points)]

        def meanwhile(strands: list[str]) -> None:
            if strands and (point == "looked" or not on_file):
                self.early_row(strands[0])
            with suppress(Conflict):
                self.claim_of(self.another(draw), 9)

        first = STRANDS.index(draw.strand)
        strands = [*STRANDS[first:], *STRANDS[:first]]
        if point == "looked":
            _, walked = watched.look(connection, [], None, 9, [], set(watched.replica.held))
            free = {seen.strand for seen in walked if seen.is_free}
            strands = [strand for strand in strands if strand in free]
            meanwhile(strands)
        else:
            watched.pauses = {point: meanwhile}
        limit = 1 if self.row_lock else 9
        rows = watched.take(connection, strands, limit, set(watched.replica.held)) if strands else []
        watched.pauses.clear()
        self.let_be(watched, connection, rows)

    def finish(self, draw: Draw) -> None:
        """End a row for good."""
        if held := self.held(draw):
            verb = (Verb.ACK, Verb.DROP, Verb.BURY)[draw.number % 3]
            self.end(draw.who, held, verb)

    def give_back(self, draw: Draw) -> None:
        """Give a row back to be tried again, at once or later, or unstarted; of a key, those behind it first (R6)."""
        if not (held := self.held(draw)):
            return
        watched = self.bench.replicas[draw.who]
        if not self.model.fifo:
            strand = self.model.rows[held.id].strand
            behind = [row for row in self.claimed[draw.who] if self.model.rows[row.id].strand == strand]
            for row in reversed(behind[behind.index(held) + 1 :]):
                self.end(draw.who, row, Verb.RELEASE)
            self.claim_of(watched, 9, [held.lane_key])
            self.claim_of(self.another(draw), 9)
        verb = (Verb.RETRY, Verb.RETRY, Verb.SNOOZE, Verb.RELEASE)[draw.number % 4]
        strand = self.model.rows[held.id].strand
        self.end(draw.who, held, verb, delayed=verb is Verb.SNOOZE or (verb is Verb.RETRY and draw.way))
        if draw.number % 2:
            self.early_row(strand)
            self.claim_of(self.another(draw), 9)

    def die(self, draw: Draw) -> None:
        """End a replica, which starts again at once: its sessions end, or its leases will run out."""
        watched = self.bench.replicas[draw.who]
        replica, database = watched.replica, self.bench.place.database
        for key, connection in replica.held.items():
            if self.row_lock:
                session = database.session(connection)
                assert session is not None
                database.end_sessions(self.bench.place.own, [session], "a replica")
                database.close(connection)
                del watched.connections[id(connection)]
            self.model.rows[key].holder = None if self.row_lock else DEAD
        self.claimed[draw.who].clear()
        watched.forget()

    def leases_run_out(self, draw: Draw) -> None:
        """Let the leases of dead replicas run out, all or one of them."""
        dead = [row for row in self.model.rows.values() if row.holder == DEAD]
        for row in dead if draw.way else dead[draw.number :][:1]:
            self.run(f"update q set locked_until = {self.seconds(-1)} where id = {row.id}")
            row.holder = None

    def time_passes(self, _draw: Draw) -> None:
        """Let all fall due that is put off."""
        self.passed += 1
        at = f"(select {self.seconds(self.passed - 1000)})"
        self.run(f"update q set retry_after = {at} where retry_after > {self.seconds(0)}")
        for row in self.model.rows.values():
            if row.put_off:
                row.put_off, row.due = False, self.passed

    def at_last_everything_ends(self) -> None:
        """Let all due times and leases pass and all rows end: nothing is lost, nothing is stuck."""
        draw = Draw(0, 0, "a", 0, True)
        for number in list(self.late):
            self.late_row(draw._replace(number=number))
        for who in range(len(self.bench.replicas)):
            for row in list(self.claimed[who]):
                self.end(who, row, Verb.ACK)
        self.leases_run_out(draw)
        self.time_passes(draw)
        who = 0
        while self.model.rows:
            self.claim_of(self.bench.replicas[who], 100)
            for row in list(self.claimed[who]):
                self.end(who, row, Verb.ACK)
            who = (who + 1) % len(self.bench.replicas)
        assert self.run("select id from q") == []
        assert sorted(self.finished) == sorted(self.ever)
        assert [id for (id,) in self.run("select id from q_dead order by id")] == sorted(self.buried)

    # how it is done

    def at(self, who: int) -> tuple[Watched, Connection]:
        """Give a replica, and a connection of its own to look and claim on."""
        watched = self.bench.replicas[who]
        return watched, watched.connection()

    def let_be(self, watched: Watched, connection: Connection, rows: list[Claimed]) -> None:
        """Note which rows a replica has, and keep its connection if that holds none."""
        if not (self.row_lock and rows):
            watched.replica.idle.append(connection)
        watched.replica.held |= {row.id: connection for row in rows}
        self.claimed[watched.number] += rows

    def claim_of(self, watched: Watched, limit: int, full_keys: Sequence[Any] = ()) -> None:
        """Claim by way of what a replica remembers of strands."""
        self.bench.clock += 1
        number, full = watched.number, {str(key) for key in full_keys}
        free = [strand for strand in STRANDS if strand not in full and self.model.claimable([strand], 1, number)]
        connection = watched.connection()
        rows: list[Claimed] = []
        try:
            rows = watched.store.claim_strands(
                connection, 1 if self.row_lock else limit, list(full_keys), set(watched.replica.held)
            )
        finally:
            self.let_be(watched, connection, rows)
        assert rows or not free, f"{free} let nothing go"
        assert not full & {self.model.rows[row.id].strand for row in rows}

    def held(self, draw: Draw) -> Claimed | None:
        """Choose one of the rows that a replica holds."""
        rows = self.claimed[draw.who]
        return rows[draw.number % len(rows)] if rows else None

    def end(self, who: int, row: Claimed, verb: Verb, delayed: bool = False) -> None:
        """Settle a row, which takes effect."""
        attempt = row.attempt - (verb in (Verb.SNOOZE, Verb.RELEASE))
        delay = 60.0 if delayed else None
        assert self.bench.replicas[who].replica.end(verb, row, attempt=attempt, delay=delay, reason="no")
        self.claimed[who].remove(row)
        self.model.ended(row.id, verb, delayed)
        if verb in (Verb.ACK, Verb.DROP, Verb.BURY):
            self.finished.append(row.id)
        if verb is Verb.BURY:
            self.buried.append(row.id)


ACTIONS = (
    *(World.new_row, World.new_row, World.new_row, World.late_row, World.late_row),
    *(World.look, World.take, World.take, World.claim, World.claim_slowly, World.claim_slowly, World.claim_slowly),
    *(World.finish, World.finish, World.give_back, World.give_back, World.give_back),
    *(World.die, World.leases_run_out, World.time_passes),
)
"""What can happen next, by how often it does."""
