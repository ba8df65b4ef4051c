"""Offer rows to children, which take them by locks of their own sessions (row lock, advisory lock, in transactions; R3).

Nothing here holds a row: it is read, stands in front of a free lane, alone or with what makes up its batch, and goes to a
child, which finds out whether it can be had. What a child has not settled itself, as when it died, is written here, only
while the row is as it was offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from shardrun.coordinator import clock, settle
from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.service import DoneClaiming, Ended, Resting, Service
from shardrun.coordinator.threads import Done, Pin, Work
from shardrun.db.store import Claimed, Connection, Token, Verb
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed
from shardrun.policy.leases import Held

T = TypeVar("T")

REST = 0.1
"""Seconds until a row that another had taken is offered again. Larger: it may wait in vain. Smaller: more misses while others
are at it."""

REMEMBERED = 10.0
"""Seconds in which another miss of a row counts as one more of the same."""

MANY_MISSES = 20
"""Misses of one row, one soon after the other, that are worth a word: what others have locked is not even offered."""

MOST_RESTING = 1000
"""Rows that rest at a time; more would make every claim slow."""

AGAIN = 0.02
"""Seconds until a settlement that met a conflict is repeated."""


def rest(replica: Replica, service: Service, held: Held, why: str | None) -> None:
    """Forget a row that a child could not take: another has it, or it was changed. It counts nothing."""
    log.debug("%s row %s: taken elsewhere (%s)", service.name, held.id, why)
    service.book.forget(held)
    before = service.resting.pop(held.id, None)
    misses = before.misses + 1 if before else 1
    if misses >= MANY_MISSES:
        about = f"miss {service.label}"
        replica.complain(
            about, "%s row %s: no child could take it, %d times by now: %s", service.name, held.id, misses, why
        )
    while len(service.resting) >= MOST_RESTING:
        del service.resting[next(iter(service.resting))]
    service.resting[held.id] = Resting(clock.now() + REST, held.row.lane_key, misses)
    replica.later(REST, service.pacing.committed)


class Offered:
    """How rows are held that children take themselves: by nothing, so that any connection will do."""

    reads_ahead = False
    pins = False

    def __init__(self) -> None:
        self._doubted: set[Any] = set()  # rows whose settlement may have been written before

    def spare(self, replica: Replica, service: Service) -> int:  # noqa: ARG002
        """Count the connections that a claim may take now."""
        return replica.threads.spare_for_claims

    def is_without(self, service: Service) -> bool:  # noqa: ARG002
        """Tell that it has no connection for itself: it needs one now and then."""
        return True

    def claim(self, replica: Replica, service: Service, limit: int, full_keys: list[Any], done: DoneClaiming) -> None:
        """Look for rows to offer, beside those that are offered now: no two lanes get one row."""
        now = clock.now()
        service.resting = {id: each for id, each in service.resting.items() if each.until + REMEMBERED > now}
        resting = [id for id, each in service.resting.items() if each.until > now]
        keys = [service.resting[id].lane_key for id in resting if service.resting[id].lane_key is not None]
        left_out = list(dict.fromkeys([*full_keys, *keys]))
        offered = [held.id for held in service.book]

        def work(connection: Connection) -> list[Claimed]:
            return service.offers.offer(connection, limit, left_out, offered, resting)

        replica.threads.submit(work, lambda result: done(result, None))

    def hold(self, replica: Replica, service: Service, rows: Iterable[Held], pin: Pin) -> None:
        """Do nothing: no connection holds these rows."""

    def write(self, replica: Replica, service: Service, held: Held, work: Work[T], done: Done[T]) -> None:  # noqa: ARG002
        """Run a statement about a row."""
        replica.threads.submit(work, done, urgent=True)

    def repeat(self, replica: Replica, service: Service) -> None:
        """Do nothing: what a broken connection left in doubt is sent again with the others."""

    def settle(self, replica: Replica, service: Service) -> None:
        """Send what no child has settled, each by itself; what goes back unstarted is forgotten."""
        ended = [*(Ended(held, Verb.ACK) for held in service.acked), *service.ended]
        service.acked, service.ended = [], []
        for each in ended:
            if each.verb is Verb.RELEASE:
                settle.took_effect(replica, service, each, adopted=False)
            elif replica.outage:
                service.ended.append(each)
            else:
                self._send(replica, service, each)

    def _send(self, replica: Replica, service: Service, ended: Ended) -> None:
        held = ended.held
        service.book.settle(held)
        written = settle.settlement(ended)
        if ended.verb is Verb.RECOUNT:
            written = written._replace(attempt=held.attempt)  # none of them was written when the row was offered

        def work(connection: Connection) -> Token | None:
            return service.offers.settle_offered(connection, written)

        def done(result: Token | ShardrunError | None) -> None:
            self._settled(replica, service, ended, result)

        replica.threads.submit(work, done, urgent=True)

    def _settled(self, replica: Replica, service: Service, ended: Ended, result: Token | ShardrunError | None) -> None:
        held = ended.held
        match result:
            case ConnectionLost() | DatabaseUnreachable():
                if isinstance(result, ConnectionLost):
                    self._doubted.add(held.id)
                service.book.unsettled(held)
                service.ended.append(ended)
                replica.connection_lost(result)
            case Conflict():
                about = f"settle {service.label}"
                replica.complain(about, "%s: settlements are refused for now: %s", service.name, result)
                replica.later(AGAIN, lambda: self._again(service, ended))
            case StatementFailed():
                settle.refused(replica, service, ended, result)
            case ShardrunError():
                raise result
            case None:
                self._not_written(replica, service, ended)
            case token:
                self._doubted.discard(held.id)
                settle.freed(replica, service, [ended.verb])
                held.token = token
                settle.took_effect(replica, service, ended, adopted=False)

    def _again(self, service: Service, ended: Ended) -> None:
        service.book.unsettled(ended.held)
        service.ended.append(ended)

    def _not_written(self, replica: Replica, service: Service, ended: Ended) -> None:
        """Leave a row to whoever has it; a settlement in doubt that finds the row changed was written before."""
        held = ended.held
        service.leave_line(held)
        if held.id not in self._doubted:
            settle.not_ours(service, ended, adopted=False)
            return
        self._doubted.discard(held.id)
        service.book.forget(held)
        if ended.verb is not Verb.RECOUNT:
            settle.took_effect(replica, service, ended, adopted=False)
