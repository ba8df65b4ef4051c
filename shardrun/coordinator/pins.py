"""Hold rows by connections (row lock, advisory lock): a connection for each, pinned from the claim to the settlement.

While nothing runs on such a connection its socket is watched: when the session ends, the row is lost at once. A settlement
whose connection broke may have been committed or not; it is reported as lost and never written again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, TypeVar

from shardrun.coordinator import clock, route, settle
from shardrun.coordinator.grips import Grip, State
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import DoneClaiming, Ended, Service
from shardrun.coordinator.threads import Done, Pin, Work
from shardrun.db.store import Verb
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


class Pinned:
    """How locks are held: a connection is kept for each row or batch, and only there can it be settled.

    The rows of a batch under row locks share a transaction: they are settled together when the last of them has ended.
    What a grip has parked is not counted as on its way back: it may wait for a handler that runs for long.
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
        work = service.claim_of(limit, full_keys)
        if service.holds_one_lane:
            one_lanes = route.one_lanes_rows(service)
            work = lambda connection: service.locks.claim(connection, limit, full_keys, one_lanes)  # noqa: E731
        replica.threads.submit_pinning(work, done)

    def hold(self, replica: Replica, service: Service, rows: Iterable[Held], pin: Pin) -> None:
        """Note which connection holds rows; one that was thought to hold one of them is sure of none any more."""
        state = State.TOGETHER if _share_transactions(service) else State.APART
        grip = Grip(replica, pin, state, list(rows), partial(self._lost, replica, service))
        self.grips.add(grip)
        doubtful: dict[Grip, None] = {}
        for held in grip.rows:
            before, held.pin = held.pin, grip
            if before is not None and before.is_sure and held in before.rows and held.stage is not Stage.SETTLING:
                before.rows.remove(held)
                service.ended += _unparked(service, before, [held])
                doubtful[before] = None
        for before in doubtful:
            self._leave(replica, service, before)
        grip.look()

    def write(self, replica: Replica, service: Service, held: Held, work: Work[T], done: Done[T]) -> None:
        """Run a statement about a row on the connection that holds it; where that breaks it is lost, and `done` not called."""
        grip = _grip(held)
        if not grip.is_sure or held not in grip.rows:
            return

        def then(result: T | ShardrunError) -> None:
            if isinstance(result, ConnectionLost | DatabaseUnreachable):
                self._lost(replica, service, grip, result)
            elif isinstance(result, ShardrunError) and _share_transactions(service):
                log.warning("%s row %s: its transaction is undone: %s", service.name, held.id, result)
                self._leave(replica, service, grip)
            else:
                done(result)

        grip.run(work, then)

    def settle(self, replica: Replica, service: Service) -> None:
        """Send what has ended, each on its own connection."""
        ended = [*(Ended(held, Verb.ACK) for held in service.acked), *service.ended]
        service.acked, service.ended = [], []
        for each in ended:
            grip = _grip(each.held)
            if each.held.hold is Hold.LOST:  # since it ended
                service.releasing -= each.verb is Verb.RELEASE
                _count_lost(service, each)
            elif not grip.is_sure:
                settle.not_ours(service, each, adopted=False)
            elif grip.state is State.APART or each.verb is Verb.RECOUNT or len(grip.rows) == 1:
                self._send(replica, service, grip, [each])
            else:
                _park(service, grip, each)
                self._send_parked(replica, service, grip)

    def repeat(self, replica: Replica, service: Service) -> None:
        """Do nothing: what a broken connection left in doubt is lost."""

    def _send(self, replica: Replica, service: Service, grip: Grip, ended: list[Ended]) -> None:
        store = service.store
        for each in ended:
            service.book.settle(each.held)
        settlements = [settle.settlement(each) for each in ended]
        grip.run(
            lambda connection: store.settle(connection, settlements),
            lambda result: self._settled(replica, service, ended, grip, result),
        )

    def _send_parked(self, replica: Replica, service: Service, grip: Grip) -> None:
        """Send what a grip has parked, where it belongs together once it is complete; counts go ahead, each by itself."""
        counts = [each.held for each in grip.parked if each.verb is Verb.RECOUNT]
        together = grip.state is State.TOGETHER and not counts
        if together and len(grip.parked) < len(grip.rows):
            return
        ended = _unparked(service, grip, counts if grip.state is State.TOGETHER and counts else grip.rows)
        for some in [ended] if together and ended else [[each] for each in ended]:
            self._send(replica, service, grip, some)

    def _settled(
        self, replica: Replica, service: Service, ended: list[Ended], grip: Grip, result: set[Any] | ShardrunError
    ) -> None:
        if not isinstance(result, ShardrunError):
            settle.freed(replica, service, [each.verb for each in ended if each.held.id in result])
            for each in ended:
                self._answered(replica, service, each, grip, each.held.id in result)
            return
        ours = [each for each in ended if each.held.pin is grip]
        for each in ended:
            if each.held.pin is not grip:  # claimed again meanwhile: it is settled anew, where it is held now
                settle.not_ours(service, each, adopted=True)
                self._part_with(service, grip, each.held)
        if isinstance(result, ConnectionLost | DatabaseUnreachable):
            for each in ours:
                self._broke(service, each)
            self._lose(service, grip)
        elif not isinstance(result, Conflict | StatementFailed):
            raise result
        elif not grip.is_sure:
            for each in ours:
                settle.not_ours(service, each, adopted=False)
        elif ours:
            self._refused(replica, service, ours, grip, result, were_together=len(ended) > 1)

    def _refused(
        self,
        replica: Replica,
        service: Service,
        ended: list[Ended],
        grip: Grip,
        why: Conflict | StatementFailed,
        were_together: bool,
    ) -> None:
        """Try again what was not written. A transaction that held rows is undone: a repeat takes those again that are free."""
        first = ended[0]
        if isinstance(why, Conflict):
            about = f"settle {service.label}"
            replica.complain(about, "%s: settlements are refused for now: %s", service.name, why)
            for each in ended:
                service.book.unsettled(each.held)
                _park(service, grip, each)
            replica.later(AGAIN, lambda: self._send_parked(replica, service, grip))
        elif were_together:  # one by one, so that it fails no other row
            grip.go_down(State.APART)
            for each in ended:
                self._send(replica, service, grip, [each])
        else:
            settle.refused(replica, service, first, why)
        if first.verb is Verb.RECOUNT and _share_transactions(service):
            self._lose_rows(service, [held for held in grip.rows if held is not first.held], grip)
        if first.held.id not in service.book:
            self._part_with(service, grip, first.held)

    def _answered(self, replica: Replica, service: Service, ended: Ended, grip: Grip, was_written: bool) -> None:
        held = ended.held
        adopted = held.pin is not grip
        if not was_written:
            settle.not_ours(service, ended, adopted)
            self._part_with(service, grip, held)
            return
        settle.took_effect(replica, service, ended, adopted)
        if adopted or ended.verb is not Verb.RECOUNT:
            self._part_with(service, grip, held, is_free=ended.verb is not Verb.RECOUNT)

    def _broke(self, service: Service, ended: Ended) -> None:
        """Note that the connection broke under a settlement."""
        held = ended.held
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
        self._lose_rows(service, list(grip.rows), grip)

    def _lose_rows(self, service: Service, rows: list[Held], grip: Grip) -> None:
        """Note that rows are not held any more; those whose settlement is with the database wait for its answer."""
        lost = [held for held in rows if held.pin is grip and held.stage is not Stage.SETTLING]
        for each in _unparked(service, grip, lost):
            service.releasing -= each.verb is Verb.RELEASE
            _count_lost(service, each)
        for held in lost:
            grip.rows.remove(held)
            log.warning("%s row %s: the lock is lost, another may hold the row", service.name, held.id)
            service.book.lose(held)
            if held.stage is Stage.RUNNING:
                held.lane.child.tell_lost(held)
            else:
                service.leave_line(held)

    def _leave(self, replica: Replica, service: Service, grip: Grip) -> None:
        """Give up a connection that may hold nothing: what has ended is written if its row can be had, the others are lost."""
        grip.go_down(State.APART)
        self._send_parked(replica, service, grip)
        self._lose_rows(service, list(grip.rows), grip)
        self._let_go(service, grip)

    def _part_with(self, service: Service, grip: Grip, held: Held, is_free: bool = False) -> None:
        """Note that a grip has nothing to do with a row any more; behind the last one its connection is given back."""
        if held in grip.rows:
            grip.rows.remove(held)
        grip.holds_more = grip.holds_more or not is_free
        if grip.rows or not grip.is_sure:
            return
        if grip.holds_more:
            self._let_go(service, grip)
        else:
            self._drop(grip)

    def _let_go(self, service: Service, grip: Grip) -> None:
        """Free a connection that may still hold what nothing will be written to any more."""
        if grip.go_down(State.LEAVING):
            grip.run(service.locks.let_go, lambda _: self._drop(grip))

    def _drop(self, grip: Grip) -> None:
        self.grips.discard(grip)
        grip.go_down(State.GONE)


def _share_transactions(service: Service) -> bool:
    """Tell whether the rows of one connection are held by one transaction, which an error undoes for all of them."""
    return service.subscription.queue.form is Form.ROW_LOCK


def _park(service: Service, grip: Grip, ended: Ended) -> None:
    service.releasing -= ended.verb is Verb.RELEASE
    grip.parked.append(ended)


def _unparked(service: Service, grip: Grip, rows: Collection[Held]) -> list[Ended]:
    """Take what a grip has parked of some rows."""
    taken = [each for each in grip.parked if each.held in rows]
    grip.parked = [each for each in grip.parked if each.held not in rows]
    service.releasing += sum(each.verb is Verb.RELEASE for each in taken)
    return taken


def _count_lost(service: Service, ended: Ended) -> None:
    """Count a row that was lost after it had ended, unless it had not even started."""
    service.counts.lost += ended.verb is not Verb.RELEASE


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
