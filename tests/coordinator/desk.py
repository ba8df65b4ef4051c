"""A coordinator put together by hand over a real SQLite file: the test feeds it events and plays the children's part."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from shardrun import ring
from shardrun.coordinator import claim, clock, outage, reports, route, settle
from shardrun.coordinator.batches import Batched
from shardrun.coordinator.child import RING_SIZE, Child, Spec, State
from shardrun.coordinator.offers import Offered
from shardrun.coordinator.pins import Pinned
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Ended, Lane, Service
from shardrun.coordinator.threads import DatabaseThreads
from shardrun.coordinator.waiting import Events
from shardrun.db.store import Database, LeaseStore, Verb
from shardrun.policy.leases import Held, LeaseBook
from shardrun.policy.pacing import LARGEST_CLAIM, Pacing
from shardrun.queue import Form, Queue, Subscription
from shardrun.ring import words
from shardrun.ring.wire import Frame, Frames, pack
from tests.coordinator.faults import FaultyDatabase, FaultyStore
from tests.store.place import Place, subscribe, usual

PATIENCE = 10.0
"""Seconds that a test waits for what must come."""

LONG = 1000.0
"""A poll interval that no test waits for: claims are sent when the test wants them."""


class Hand:
    """The child's side of two rings: takes deliveries, writes reports, as a child would, when the test says so."""

    def __init__(self, child: Child, lanes: int) -> None:
        self.child = child
        self._deliveries = attached(child.deliveries, words.delivery_words(lanes))
        self._reports = attached(child.reports, words.report_words(lanes))
        self._frames = Frames()
        self.rows: list[Frame] = []
        self.orders: list[Frame] = []

    def read(self) -> list[Frame]:
        """Take what was handed over since the last time; rows are remembered, orders too."""
        frames: list[Frame] = []
        while data := self._deliveries.read():
            frames += [tuple(frame) for frame in self._frames.feed(data)]
        self.rows += [frame for frame in frames if frame[0] > 0]
        self.orders += [frame for frame in frames if frame[0] <= 0]
        return [frame for frame in frames if frame[0] > 0]

    def ids(self) -> list[Any]:
        """Name the rows that were handed over since the last time."""
        return [frame[2] for frame in self.read()]

    def no(self, id: Any) -> int:
        """Name the last delivery of a row."""
        self.read()
        return int([frame[0] for frame in self.rows if frame[2] == id][-1])

    def run(self, id: Any, lane: int = 0) -> None:
        """Say that a lane runs a row, as a child does before it starts one."""
        self._reports.words[words.running(lane)] = self.no(id)

    def stop_running(self, lane: int) -> None:
        """Say that a lane runs nothing."""
        self._reports.words[words.running(lane)] = 0

    def report(self, id: Any, code: int = words.ACK, *more: Any, elapsed_us: int = 100) -> None:
        """Report how a row ended."""
        frame: tuple[Any, ...] = (self.no(id), code, elapsed_us)
        if code != words.ACK:
            frame += (*more, None, None, None)[: max(3, len(more))]
        self._reports.write(pack(frame))
        self._reports.publish()

    def say(self, notice: Frame) -> None:
        """Say what is no report of a row."""
        self._reports.write(pack(notice))
        self._reports.publish()

    def close(self) -> None:
        """Close this side."""
        self._deliveries.close()
        self._reports.close()


def attached(mine: ring.Ring, count: int) -> ring.Ring:
    """Open the other side of a ring in this process."""
    return ring.attach([os.dup(descriptor) for descriptor in mine.descriptors()], RING_SIZE, count)


class Desk:
    """One subscription of one replica. Its children are processes that do nothing; `hands` play their part.

    With a `server`, a database's DSN, its rows are held by connections.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lanes: Sequence[int] = (1,),
        threads: int = 1,
        queue: Queue[Any] | None = None,
        poll: float = LONG,
        columns: Mapping[str, str] | None = None,
        server: str | None = None,
        **handler: Any,
    ) -> None:
        self.place = Place("postgres", server) if server else Place("sqlite", f"sqlite:///{folder}/desk.db")
        self.place.create_usual(**(columns or {}))
        self.subscription: Subscription = subscribe(queue or usual(), **handler)
        self.store = FaultyStore(cast(LeaseStore, self.place.database.store(self.place.own, self.subscription)))
        self.database = FaultyDatabase(self.place.database)
        self.events = Events()
        offered = self.subscription.transactional and self.subscription.queue.form is not Form.LEASE
        together = 1 if self.subscription.by_key or offered else max(1, threads - 1)
        self.service = Service(
            subscription=self.subscription,
            label="q/handle",
            store=self.store,
            pacing=Pacing(poll=poll, together=together, most=1 if server and not offered else LARGEST_CLAIM),
            book=LeaseBook(float("inf") if server else self.subscription.lease),
            children=max(1, len(lanes)),
            holding=Offered() if offered else Pinned() if server else Batched(),
        )
        known = cast(Database, self.database)
        self.replica = Replica(
            name="desk",
            database=known,
            threads=DatabaseThreads(known, threads, "shardrun desk", self.events.post),
            events=self.events,
            services=[self.service],
            spec=Spec([], [], [], [], self.place.dsn, 1, "shardrun desk", "INFO", [], str(folder), {}),
            life=Life.SERVING,
        )
        self.hands = [self._child(index, count) for index, count in enumerate(lanes)]
        self.claims = True

    def _child(self, index: int, lanes: int) -> Hand:
        child = Child(
            index=index,
            process=(process := subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)),
            pidfd=os.pidfd_open(process.pid),
            deliveries=ring.create(RING_SIZE, words.delivery_words(lanes)),
            reports=ring.create(RING_SIZE, words.report_words(lanes)),
            part=f"shardrun desk child {index + 1}",
            events=self.events,
            state=State.READY,
        )
        child.lanes = [Lane(self.service, child, local) for local in range(lanes)]
        self.service.lanes += child.lanes
        self.replica.children.append(child)
        self.events.watch(child.reports.reader_doorbell, lambda: reports.take(self.replica, child, child.receive()))
        self.events.watch(child.pidfd, lambda: None)
        return Hand(child, lanes)

    @property
    def hand(self) -> Hand:
        """Name the only child's."""
        return self.hands[0]

    def step(self) -> None:
        """Take the steps of one turn of the loop."""
        outage.recover(self.replica)
        if self.claims:
            claim.claim(self.replica)
        route.route(self.replica)
        settle.settle(self.replica)

    def send(self) -> None:
        """Send what has ended, without waiting for more to write with it."""
        self.service.settle_by = 0.0
        self.step()

    def until(self, seen: Callable[[], object]) -> None:
        """Turn the loop until something is seen."""
        deadline = clock.now() + PATIENCE
        self.step()
        while not seen():
            assert clock.now() < deadline, f"not within {PATIENCE:g} s: {list(self.service.book)} {self.store.calls}"
            self.events.wait(min(deadline, claim.next_claim(self.replica)))
            self.step()

    def until_idle(self) -> None:
        """Turn the loop until the database has answered everything and nothing waits to be settled."""
        service = self.service

        def idle() -> bool:
            to_settle = service.acked or service.ended or service.settling or service.in_doubt or self.replica.outage
            return not (to_settle or service.extending or self.database_is_busy)

        self.until(idle)

    @property
    def database_is_busy(self) -> bool:
        """Tell whether a statement is under way."""
        threads = self.replica.threads
        return threads.spare_for_claims < threads.size - (1 if threads.size > 1 else 0)

    def claim(self) -> None:
        """Let one claim be sent, whatever the pacing waits for, and take all that follows from what it brings."""
        self.ask()
        self.until_idle()

    def ask(self) -> None:
        """Let one claim be sent, and enter what it brings."""
        pacing = self.service.pacing
        pacing.not_before = 0.0
        claim.claim(self.replica)
        assert pacing.under_way == 1
        self.claims = False
        claims = pacing.claims
        self.until(lambda: pacing.claims > claims)

    def held(self, id: Any) -> Held:
        """Find a row in the book."""
        return next(held for held in self.service.book if held.id == id)

    def taken(self, id: Any) -> Held:
        """Find a row in the book, and take it out of its lane."""
        held = self.held(id)
        self.service.leave_line(held)
        for child in self.replica.children:
            for no in [no for no, each in child.handed.items() if each is held]:
                del child.handed[no]
                held.lane.handed -= 1
        return held

    def end(self, id: Any, verb: Verb, **how: Any) -> None:
        """Note how a row ended, as a report would."""
        settle.end(self.service, Ended(self.taken(id), verb, **how))

    def acknowledge(self, *ids: Any) -> None:
        """Note that rows are done."""
        for id in ids:
            settle.acknowledge(self.service, self.taken(id))

    def release(self, *ids: Any) -> None:
        """Give rows back unstarted."""
        for id in ids:
            settle.release(self.service, self.taken(id))

    def rows(self, columns: str = "id") -> list[Any]:
        """Read the table: values of one column, or tuples of several."""
        found = self.place.run(f"select {columns} from q order by id")
        return [row[0] for row in found] if "," not in columns else found

    def value(self, id: Any, column: str, table: str = "q") -> Any:
        """Read one column of one row."""
        return self.place.run(f"select {column} from {table} where id = ?", id)[0][0]

    def expire(self, *ids: Any) -> None:
        """Let the leases of rows run out, as if the time had passed."""
        for id in ids:
            self.place.run(f"update q set locked_until = {self.place.seconds(-1)} where id = ?", id)

    def is_free(self, id: Any) -> bool:
        """Tell whether a row can be claimed now: it is not leased, and it was not abandoned."""
        return bool(self.value(id, "locked_until is null or locked_until < '1900-01-01'"))

    def close(self) -> None:
        """End everything."""
        self.replica.threads.close()
        for hand in self.hands:
            hand.close()
            hand.child.process.kill()
            hand.child.process.communicate()
            if hand.child.state is not State.DEAD:
                hand.child.release()
        self.events.close()
        self.place.close()
