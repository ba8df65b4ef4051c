"""Hold rows by connections (row lock, advisory lock): a connection for each, pinned from the claim to the settlement.

While nothing runs on such a connection its socket is watched: when the session ends, the row is lost at once. A settlement
whose connection broke may have been committed or not; it is reported as lost and never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

from shardrun.coordinator import clock, route, settle
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import DoneClaiming, Ended, Service
from shardrun.coordinator.threads import Done, Pin, Work
from shardrun.db.locks import LockStore
from shardrun.db.store import Claimed, Connection, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.policy.leases import Held, Hold, Stage
from shardrun.queue import Form

T = TypeVar("T")

AGAIN = 0.02
"""Seconds until a settlement that met a conflict is repeated."""

LOOK = 20.0
"""Seconds between looks for such transactions. Smaller: they are named sooner, at the cost of waking up."""

LONG = 60.0
"""Seconds after which a transaction that holds a row is named in the log: what it keeps from being cleaned up costs everyone."""


class Grip:
    """A pinned connection with the rows that it holds; `lost` is called when the session is found to have ended."""

    def __init__(
        self, replica: Replica, pin: Pin, rows: list[Held], lost: Callable[[Grip, ShardrunError], None]
    ) -> None:
        self.rows = rows  # those that it still holds
        self.ended: list[Ended] = []  # rows that are settled together with the others of their batch
        self.is_apart = False  # that was refused: each is settled by itself
        self.pin = pin
        self.since = clock.now()
        self.is_named = False  # as one that is held for long
        self._replica = replica
        self._lost = lost
        self._pending = 0
        self._is_broken = False
        self._is_watched = False

    def run(self, work: Work[T], done: Done[T]) -> None:
        """Run a statement on the connection."""
        self._look_away()
        self._pending += 1

        def then(result: T | ShardrunError) -> None:
            self._pending -= 1
            self._is_broken = self._is_broken or isinstance(result, ConnectionLost)
            done(result)
            self.look()

        self.pin.submit(work, then)

    def has_let_go(self, held: Held) -> bool:
        """Note that a row is not held any more, and tell whether that was the last."""
        if held in self.rows:
            self.rows.remove(held)
        return not self.rows

    def look(self) -> None:
        """Watch the socket while nothing runs."""
        idle = not (self._pending or self._is_broken or self._is_watched or self.pin.is_released)
        if idle and self.pin.descriptor is not None:
            self._is_watched = True
            self._replica.events.watch(self.pin.descriptor, self._stirred)

    def release(self) -> None:
        """Give the connection back, which holds nothing any more."""
        self._look_away()
        self.pin.release()

    def _look_away(self) -> None:
        if self._is_watched and self.pin.descriptor is not None:
            self._is_watched = False
            self._replica.events.unwatch(self.pin.descriptor)

    def _stirred(self) -> None:
        """See what the server has said unasked: mostly that the session has ended."""
        is_alive = self._replica.database.is_alive

        def work(connection: Connection) -> None:
            if not is_alive(connection):
                raise ConnectionLost("the server has ended the session that held a row")

        self.run(work, lambda result: self._lost(self, result) if isinstance(result, ShardrunError) else None)


class Pinned:
    """How locks are held: a connection is kept for each row or batch, and only there can it be settled.

    The rows of a batch under row locks share a transaction: they are settled together when the last of them has ended.
    """

    reads_ahead = False
    pins = True

    def __init__(self) -> None:
        self.grips: set[Grip] = set()

    def spare(self, replica: Replica, service: Service) -> int:
        """Count the connections that claims may pin now: other subscriptions that have none find one when they need it (C2)."""
        others = [each for each in replica.services if each is not service]
        locks = sum(each.holding.pins and each.holding.is_without(each) for each in others)
        leases = any(not each.holding.pins for each in others)  # which need one for a moment only, in turn
        return replica.threads.spare_for_claims - locks - leases

    def is_without(self, service: Service) -> bool:
        """Tell whether it has no connection and asks for none."""
        return not (self.grips or service.pacing.under_way)

    def claim(self, replica: Replica, service: Service, limit: int, full_keys: list[Any], done: DoneClaiming) -> None:
        """Claim on a connection, and keep that where it took a row."""
        one_lanes = route.one_lanes_rows(service) if service.holds_one_lane else None

        def work(connection: Connection) -> list[Claimed]:
            if one_lanes is None:
                return service.store.claim(connection, limit, full_keys)
            return service.locks.claim(connection, limit, full_keys, one_lanes)

        replica.threads.submit_pinning(work, done)

    def hold(self, replica: Replica, service: Service, rows: Iterable[Held], pin: Pin) -> None:
        """Note which connection holds rows; one that held a row before has lost it."""
        grip = Grip(replica, pin, list(rows), partial(self._lost, replica, service))
        self.grips.add(grip)
        for held in grip.rows:
            before, held.pin = held.pin, grip
            if before is not None and held.stage is not Stage.SETTLING:
                before.has_let_go(held)
                service.ended += [each for each in before.ended if each.held is held]
                before.ended = [each for each in before.ended if each.held is not held]
                self._lose(service, before)
        grip.look()

    def write(self, replica: Replica, held: Held, work: Work[T], done: Done[T]) -> None:  # noqa: ARG002
        """Run a statement about a row on the connection that holds it."""
        _grip(held).run(work, done)

    def settle(self, replica: Replica, service: Service) -> None:
        """Send what has ended, each on its own connection."""
        ended = [*(Ended(held, Verb.ACK) for held in service.acked), *service.ended]
        service.acked, service.ended = [], []
        apart = service.subscription.queue.form is not Form.ROW_LOCK
        for each in ended:
            grip = _grip(each.held)
            if apart or grip.is_apart or each.verb is Verb.RECOUNT or len(grip.rows) == 1:
                self._send(replica, service, grip, [each])
                continue
            grip.ended.append(each)
            if len(grip.ended) == len(grip.rows):
                together, grip.ended = grip.ended, []
                self._send(replica, service, grip, together)

    def repeat(self, replica: Replica, service: Service) -> None:
        """Do nothing: what a broken connection left in doubt is lost."""

    def _send(self, replica: Replica, service: Service, grip: Grip, ended: list[Ended]) -> None:
        store = service.store
        for each in ended:
            if each.held.hold is Hold.LOST:  # since it ended, and counted then
                service.releasing -= each.verb is Verb.RELEASE
        ours = [each for each in ended if each.held.hold is not Hold.LOST]
        for each in ours:
            service.book.settle(each.held)
        settlements = [settle.settlement(each) for each in ours]
        if ours:
            grip.run(
                lambda connection: store.settle(connection, settlements),
                lambda result: self._settled(replica, service, ours, grip, result),
            )

    def _send_again(self, replica: Replica, service: Service, ended: list[Ended]) -> None:
        service.ended += ended
        self.settle(replica, service)

    def _settled(
        self, replica: Replica, service: Service, ended: list[Ended], grip: Grip, result: set[Any] | ShardrunError
    ) -> None:
        match result:
            case ConnectionLost() | DatabaseUnreachable():
                self._drop(grip)
                for each in ended:
                    self._broke(service, each, each.held.pin is not grip)
                replica.connection_lost(result)
            case Conflict():
                about = f"settle {service.label}"
                replica.complain(about, "%s: settlements are refused for now: %s", service.name, result)
                replica.later(AGAIN, lambda: self._send_again(replica, service, ended))
            case StatementFailed() if len(ended) > 1:  # one by one, so that it fails no other row
                grip.is_apart = True
                for each in ended:
                    self._send(replica, service, grip, [each])
            case StatementFailed():
                settle.refused(replica, service, ended[0], result)
                if ended[0].held.id not in service.book:
                    self._let_go(service, grip, ended[0].held)
            case ShardrunError():
                raise result
            case effective:
                settle.freed(replica, service)
                for each in ended:
                    self._answered(replica, service, each, grip, each.held.id in effective)

    def _answered(self, replica: Replica, service: Service, ended: Ended, grip: Grip, was_written: bool) -> None:
        held = ended.held
        adopted = held.pin is not grip
        if not was_written:
            settle.not_ours(service, ended, adopted)
            self._let_go(service, grip, held)
            return
        settle.took_effect(replica, service, ended, adopted)
        if ended.verb is not Verb.RECOUNT and grip.has_let_go(held):
            self._drop(grip)

    def _broke(self, service: Service, ended: Ended, adopted: bool) -> None:
        """Note that the connection broke under a settlement; whoever claimed the row again meanwhile settles it anew."""
        held = ended.held
        if adopted:
            settle.not_ours(service, ended, adopted)
            return
        service.book.forget(held)
        service.leave_line(held)
        if ended.verb is Verb.RELEASE:  # it is free now, which is all that was wanted
            service.releasing -= 1
            return
        service.counts.lost += 1
        log.warning(
            "%s row %s: lost; its connection broke while it was settled. It may run again", service.name, held.id
        )

    def _lost(self, replica: Replica, service: Service, grip: Grip, error: ShardrunError) -> None:
        """Note that a session has ended: its rows are free, and what runs of them is told so."""
        self._lose(service, grip)
        replica.connection_lost(error)

    def _lose(self, service: Service, grip: Grip) -> None:
        self._drop(grip)
        ended, grip.ended = grip.ended, []
        service.releasing -= sum(each.verb is Verb.RELEASE for each in ended)
        for held in grip.rows:
            if held.pin is not grip or held.stage is Stage.SETTLING:
                continue
            log.warning("%s row %s: the lock is lost, another may hold the row", service.name, held.id)
            service.book.lose(held)
            if held.stage is Stage.RUNNING:
                held.lane.child.tell_lost(held)
            else:
                service.counts.lost += 1
                service.leave_line(held)

    def _let_go(self, service: Service, grip: Grip, held: Held) -> None:
        """Free a connection that may still hold what nothing will be written to any more."""
        store = cast(LockStore, service.store)
        if grip.has_let_go(held):
            grip.run(store.let_go, lambda _: self._drop(grip))

    def _drop(self, grip: Grip) -> None:
        self.grips.discard(grip)
        grip.release()


def _grip(held: Held) -> Grip:
    grip: Grip = held.pin
    return grip


def watch_long_ones(replica: Replica) -> None:
    """Log from now on, once for each, which rows have been held by an open transaction for long."""
    locking = [each for each in replica.services if each.subscription.queue.form is Form.ROW_LOCK]
    if replica.life is Life.ENDED or not locking:
        return
    for service in locking:
        name_long_ones(service, clock.now())
    replica.later(LOOK, lambda: watch_long_ones(replica))


def name_long_ones(service: Service, now: float) -> None:
    """Log which rows have been held for long by then, each once."""
    grips = {_grip(held) for held in service.book if held.pin is not None and held.hold is not Hold.LOST}
    for grip in grips:
        if grip.is_named or now - grip.since < LONG:
            continue
        grip.is_named = True
        log.warning(
            "%s row %s: its transaction has been open for %.0f s, and until it ends the server can clean up no table. Where "
            "handlers take minutes, give the queue a lease column (locked_until=).",
            service.name, grip.rows[0].id, now - grip.since,
        )  # fmt: skip
