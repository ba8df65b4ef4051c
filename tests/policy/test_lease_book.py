"""The lease book against a model of the database: every interleaving of claims, extensions, settlements, deaths and outages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from shardrun.policy.leases import Held, Hold, LeaseBook, Stage

LEASE = 10
ROWS = 4
REPLICAS = 2


class Row(NamedTuple):
    """A claimed row, as much of it as the book looks at."""

    id: int
    token: str
    attempt: int = 1


@dataclass
class Table:
    """The database: rows by id, each with the expiry that it carries (the token) or None; acked rows are gone."""

    now: int = 0
    leases: dict[int, int | None] = field(default_factory=lambda: dict.fromkeys(range(ROWS)))
    last: dict[int, int] = field(default_factory=dict)
    acked: list[int] = field(default_factory=list)

    def claim(self, limit: int) -> list[Row]:
        free = [id for id, expiry in self.leases.items() if expiry is None or expiry <= self.now][:limit]
        for id in free:
            self.leases[id] = self.last[id] = max(self.now + LEASE, self.last.get(id, 0) + 1)
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
    executed: bool = False


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

        return Statement(lambda: rows.extend(self.table.claim(limit)), answer, lambda _executed: self.lost_connection())

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
        new = str(max(deadline, *(int(token) + 1 for token in groups)))
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


class LeaseBookMachine(RuleBasedStateMachine):
    """Two replicas, one table, statements that are slow, and connections that break before or after they ran."""

    statements = Bundle("statements")

    @initialize()
    def begin(self) -> None:
        self.table = Table()
        self.replicas = [Replica(self.table) for _ in range(REPLICAS)]
        self.sent: list[Statement] = []

    def send(self, statement: Statement | None) -> None:
        if statement:
            self.sent.append(statement)

    @rule(who=st.integers(0, REPLICAS - 1), limit=st.integers(1, ROWS))
    def claim(self, who: int, limit: int) -> None:
        if not self.replicas[who].outage:
            self.send(self.replicas[who].claim(limit))

    @rule(who=st.integers(0, REPLICAS - 1))
    def extend(self, who: int) -> None:
        self.send(self.replicas[who].extend(everything=self.replicas[who].outage))

    @rule(who=st.integers(0, REPLICAS - 1), release=st.booleans())
    def settle(self, who: int, release: bool) -> None:
        replica = self.replicas[who]
        if not replica.in_doubt:
            self.send(replica.settle(release, repeated=False))

    @rule(who=st.integers(0, REPLICAS - 1))
    def repeat(self, who: int) -> None:
        if not self.replicas[who].outage:
            self.send(self.replicas[who].settle(release=False, repeated=True))

    @rule(who=st.integers(0, REPLICAS - 1), pick=st.randoms())
    def start(self, who: int, pick: object) -> None:
        replica = self.replicas[who]
        for held in [held for held in replica.book if held.stage is Stage.WAITING and held.deadline > self.table.now]:
            replica.start(held)
            for other in self.replicas:
                again = other.running.get(held.id)
                assert other is replica or again is None or again.deadline <= self.table.now, "two owners run one row"
            break

    @rule(who=st.integers(0, REPLICAS - 1), unstarted=st.booleans())
    def finish(self, who: int, unstarted: bool) -> None:
        replica = self.replicas[who]
        for held in list(replica.running.values())[:1]:
            del replica.running[held.id]
            _ = replica.book.put_back(held) if unstarted else replica.book.end(held)

    @rule(who=st.integers(0, REPLICAS - 1))
    def child_dies(self, who: int) -> None:
        replica = self.replicas[who]
        for held in replica.running.values():
            replica.book.put_back(held)
        replica.running.clear()

    @rule(who=st.integers(0, REPLICAS - 1))
    def coordinator_dies(self, who: int) -> None:
        self.replicas[who] = Replica(self.table)

    @rule(seconds=st.integers(1, LEASE))
    def time_passes(self, seconds: int) -> None:
        self.table.now += seconds

    @rule(at=st.integers(0, 5))
    def execute(self, at: int) -> None:
        waiting = [statement for statement in self.sent if not statement.executed]
        if waiting:
            statement = waiting[at % len(waiting)]
            statement.executed = True
            statement.execute()

    @rule(at=st.integers(0, 5))
    def answer(self, at: int) -> None:
        executed = [statement for statement in self.sent if statement.executed]
        if executed:
            statement = executed[at % len(executed)]
            self.sent.remove(statement)
            statement.answer()

    @rule(at=st.integers(0, 5))
    def connection_breaks(self, at: int) -> None:
        if self.sent:
            statement = self.sent.pop(at % len(self.sent))
            statement.breaks(statement.executed)

    @invariant()
    def no_row_is_lost_or_acked_twice(self) -> None:
        table = self.table
        assert sorted(table.acked + list(table.leases)) == list(range(ROWS))

    @invariant()
    def whoever_is_sure_and_in_time_holds_the_row(self) -> None:
        for replica in self.replicas:
            for held in replica.book:
                if held.hold is Hold.SURE and held.stage is not Stage.SETTLING and held.deadline > self.table.now:
                    assert str(self.table.leases.get(held.id)) == held.token


LeaseBookMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestNoInterleavingOfTheLeaseBookYieldsTwoOwnersOrALostRow(LeaseBookMachine.TestCase):
    """B2, R1, R2: claims, extensions, settlements, give-backs, deaths and outages in any order."""
