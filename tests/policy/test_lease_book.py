"""The lease book against a model of the database: every interleaving of claims, extensions, settlements, deaths and outages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shardrun.policy.leases import Held, Hold, LeaseBook, Stage

LEASE = 1000
ROWS = 2
REPLICAS = 2


class Row(NamedTuple):
    """A claimed row, as much of it as the book looks at."""

    id: int
    token: str
    attempt: int = 1


@dataclass
class Table:
    """The database: rows by id, each with the expiry that it carries (the token) or None; acked rows are gone.

    Its clock moves on with every statement. (Where tokens are whole seconds, an extension in doubt and another replica's
    claim in the same second can be mistaken for each other.)
    """

    now: int = 0
    leases: dict[int, int | None] = field(default_factory=lambda: dict.fromkeys(range(ROWS)))
    last: dict[int, int] = field(default_factory=dict)
    acked: list[int] = field(default_factory=list)
    holder: dict[int, object] = field(default_factory=dict)

    def clock(self) -> int:
        self.now += 1
        return self.now

    def claim(self, limit: int, holder: object) -> list[Row]:
        self.clock()
        free = [id for id, expiry in self.leases.items() if expiry is None or expiry <= self.now][:limit]
        for id in free:
            self.leases[id] = self.last[id] = max(self.now + LEASE, self.last.get(id, 0) + 1)
        self.holder.update(dict.fromkeys(free, holder))
        return [Row(id, str(self.leases[id])) for id in free]

    def extend(self, groups: dict[str, list[int]], new: str) -> set[int]:
        extended = {id for token, ids in groups.items() for id in ids if str(self.leases.get(id)) == token}
        for id in extended:
            self.leases[id] = self.last[id] = int(new)
        return extended

    def settle(self, acks: dict[int, str], repeated: bool) -> set[int]:
        mine = {id for id, token in acks.items() if str(self.leases.get(id)) == token}
        for id in mine:
            del self.leases[id]
            self.acked.append(id)
        return mine | ({id for id in acks if id not in self.leases} if repeated else set())

    def release(self, releases: dict[int, str]) -> set[int]:
        mine = {id for id, token in releases.items() if str(self.leases.get(id)) == token}
        for id in mine:
            self.leases[id] = None
        return mine


@dataclass
class Statement:
    """Something sent to the database; `execute` runs it there, `answer` and `breaks` tell the book."""

    execute: Callable[[], None]
    answer: Callable[[], None]
    breaks: Callable[[bool], None]


class Replica:
    """A book and what its coordinator does with it, as `coordinator/` does."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.book = LeaseBook(LEASE)
        self.running: dict[int, Held] = {}
        self.starts: list[int] = []
        self.in_doubt: list[Held] = []
        self.outage = False

    def claim(self, limit: int) -> Statement:
        sent, rows = self.table.now, list[Row]()

        def answer() -> None:
            for held in self.book.take(rows, sent)[0]:
                assert held.id not in self.running, "delivered while it runs here"

        return Statement(
            lambda: rows.extend(self.table.claim(limit, self)), answer, lambda _executed: self.lost_connection()
        )

    def extend(self, everything: bool) -> Statement | None:
        rows = self.book.extendable(self.table.now, everything)
        if not rows:
            self.outage = self.outage and not everything
            return None
        groups: dict[str, list[int]] = {}
        for held in rows:
            for token in held.tokens:
                groups.setdefault(token, []).append(held.id)
        deadline = self.table.now + LEASE
        new = str(max(self.table.clock() + LEASE, *(int(token) + 1 for token in groups)))
        self.book.extending(rows)
        extended: set[int] = set()

        def answer() -> None:
            self.book.extended(rows, new, deadline, extended, set())
            self.outage = self.outage and not everything

        def breaks(_executed: bool) -> None:
            self.book.extension_broke(rows, new)
            self.lost_connection()

        return Statement(lambda: extended.update(self.table.extend(groups, new)), answer, breaks)

    def settle(self, release: bool, repeated: bool) -> Statement | None:
        rows = self.in_doubt if repeated else [held for held in self.book if self.book.may_settle(held)]
        if not rows:
            return None
        self.in_doubt = [] if repeated else self.in_doubt
        tokens = {held.id: held.token for held in rows}
        for held in rows:
            self.book.settle(held)
        effective: set[int] = set()

        def execute() -> None:
            done = self.table.release(tokens) if release else self.table.settle(tokens, repeated)
            effective.update(done)

        def answer() -> None:
            for held in rows:
                if held.id not in effective and held.token != tokens[held.id]:
                    self.book.unsettled(held)
                else:
                    assert held.id in effective or self.table.holder[held.id] is not self, "lost to nobody"
                    self.book.forget(held)

        def breaks(_executed: bool) -> None:
            if release:
                for held in rows:
                    self.book.forget(held)
            else:
                self.in_doubt = rows
            self.lost_connection()

        return Statement(execute, answer, breaks)

    def lost_connection(self) -> None:
        self.outage = True

    def start(self, held: Held) -> None:
        self.book.hand_out(held)
        self.running[held.id] = held


FATES = ("answered", "answered", "answered", "slow", "breaks before", "breaks after")


class World:
    """Two replicas, one table, statements that are slow, and connections that break before or after they ran."""

    def __init__(self) -> None:
        self.table = Table()
        self.replicas = [Replica(self.table) for _ in range(REPLICAS)]
        self.sent: list[Statement] = []

    def send(self, statement: Statement | None, fate: str) -> None:
        if statement is None:
            return
        if fate in ("answered", "breaks after"):
            statement.execute()
        match fate:
            case "answered":
                statement.answer()
            case "slow":
                self.sent.append(statement)
            case _:
                statement.breaks(fate == "breaks after")

    def claim(self, replica: Replica, fate: str) -> None:
        if not replica.outage:
            self.send(replica.claim(ROWS), fate)

    def extend(self, replica: Replica, fate: str) -> None:
        self.send(replica.extend(everything=replica.outage), fate)

    def acknowledge(self, replica: Replica, fate: str) -> None:
        if not replica.in_doubt and not replica.outage:
            self.send(replica.settle(release=False, repeated=False), fate)

    def release(self, replica: Replica, fate: str) -> None:
        if not replica.in_doubt and not replica.outage:
            self.send(replica.settle(release=True, repeated=False), fate)

    def repeat(self, replica: Replica, fate: str) -> None:
        if not replica.outage:
            self.send(replica.settle(release=False, repeated=True), fate)

    def start(self, replica: Replica, _fate: str) -> None:
        for held in replica.book:
            if held.stage is Stage.WAITING and held.deadline > self.table.now:
                replica.start(held)
                for other in self.replicas:
                    theirs = other.running.get(held.id)
                    assert other is replica or theirs is None or theirs.deadline <= self.table.now, "two owners"

    def finish(self, replica: Replica, _fate: str) -> None:
        for held in replica.running.values():
            replica.book.end(held)
        replica.running.clear()

    def child_dies(self, replica: Replica, _fate: str) -> None:
        for held in replica.running.values():
            replica.book.put_back(held)
        replica.running.clear()

    def coordinator_dies(self, replica: Replica, _fate: str) -> None:
        self.replicas[self.replicas.index(replica)] = Replica(self.table)

    def half_a_lease_passes(self, _replica: Replica, _fate: str) -> None:
        self.table.now += LEASE // 2

    def a_slow_statement_ends(self, replica: Replica, fate: str) -> None:
        if self.sent:
            self.send(self.sent.pop(self.replicas.index(replica) % len(self.sent)), fate)

    def check(self) -> None:
        assert sorted(self.table.acked + list(self.table.leases)) == list(range(ROWS)), "lost, or acked twice"
        for replica in self.replicas:
            for held in replica.book:
                if held.hold is Hold.SURE and held.stage is not Stage.SETTLING and held.deadline > self.table.now:
                    assert str(self.table.leases.get(held.id)) == held.token, "sure, in time, and not the holder"
            for held in replica.running.values():
                assert [other for other in replica.book if other.id == held.id] == [held], "runs twice, or unknown"

    def at_last_everything_is_acked(self) -> None:
        """Let the database answer and time pass: whatever happened before, each row is acked in the end."""
        for statement in self.sent:
            statement.breaks(False)
        for _ in range(8):
            for replica in self.replicas:
                for step in (self.extend, self.repeat, self.claim, self.start, self.finish, self.acknowledge):
                    step(replica, "answered")
                    self.check()
            self.half_a_lease_passes(self.replicas[0], "")
        assert sorted(self.table.acked) == list(range(ROWS))


ACTIONS = (
    *(World.claim, World.start, World.finish, World.acknowledge, World.extend, World.repeat, World.half_a_lease_passes),
    *(World.claim, World.start, World.release, World.child_dies, World.coordinator_dies, World.a_slow_statement_ends),
)


class LeaseBookMachine(RuleBasedStateMachine):
    """Draws what happens next; hypothesis shrinks a failure to the shortest story."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(action=st.sampled_from(ACTIONS), who=st.integers(0, REPLICAS - 1), fate=st.sampled_from(FATES))
    def act(self, action: Callable[[World, Replica, str], None], who: int, fate: str) -> None:
        action(self.world, self.world.replicas[who], fate)

    @invariant()
    def rows_are_safe(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.at_last_everything_is_acked()


def test_no_interleaving_of_the_lease_book_yields_two_owners_or_a_lost_row() -> None:
    """B2, R1, R2: claims, extensions, settlements, give-backs, deaths and outages in any order."""
    run_state_machine_as_test(
        LeaseBookMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None, database=None)
    )


@pytest.mark.parametrize("seed", range(4))
def test_long_walks_through_the_lease_book_lose_nothing(seed: int) -> None:
    """B2, R1, R2: the same, on many long random walks, which go where short stories do not."""
    random = Random(seed)
    for _ in range(40):
        world = World()
        for _ in range(60):
            random.choice(ACTIONS)(world, random.choice(world.replicas), random.choice(FATES))
            world.check()
        world.at_last_everything_is_acked()


def test_what_connections_hold_is_never_extended_and_may_be_lost_at_any_time() -> None:
    """B1, B4: there is no lease; a row that runs stays in the book, so that it is not delivered a second time (R2)."""
    book = LeaseBook(float("inf"))
    (waiting, running), _ = book.take([Row(1, ""), Row(2, "")], claimed_at=5.0)
    book.hand_out(running)
    assert book.extendable(1e9, all_of_them=True) == []
    book.lose(waiting)
    book.lose(running)
    assert list(book) == [running]
    assert book.take([Row(2, "")], claimed_at=6.0) == ([], [running])
    assert (running.hold, book.end(running)) == (Hold.SURE, True)
