"""Keep: extend the leases of all rows in hand, wherever they are, from outside the handlers' processes (B2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardrun.coordinator import clock, settle
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Service
from shardrun.db.store import Connection, Token
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError
from shardrun.policy.leases import Held, Stage

LOOKS_PER_LEASE = 12
"""How often in a lease the keeper looks. Larger: more wake-ups. Smaller: leases are extended later than they want."""

SOON = 0.1
"""Seconds until a row that a child could not take is asked for. Larger: its lane stands still for longer. Smaller: a child
that can take none, as when it cannot connect, is handed the row more often."""


@dataclass(slots=True)
class _Answer:
    """How one extension went. `new` is what it wrote, None when it broke before anything was written."""

    new: Token | None = None
    extended: set[Any] = field(default_factory=set)
    busy: set[Any] = field(default_factory=set)
    error: ShardrunError | None = None


def start(replica: Replica) -> None:
    """Look at each subscription's leases from now on, a dozen times per lease."""
    for service in replica.services:
        if service.book.lease != float("inf"):
            _look(replica, service)


def _look(replica: Replica, service: Service) -> None:
    if replica.life is Life.ENDED:
        return
    if len(service.book) and not service.extending and not _is_away(replica):
        extend(replica, service)
    replica.later(service.book.lease / LOOKS_PER_LEASE, lambda: _look(replica, service))


def look_soon(replica: Replica, service: Service) -> None:
    """Find out soon whether a row in doubt is still ours: it stands at the head of its lane until that is known."""
    replica.later(SOON, lambda: _look_between(replica, service))


def _look_between(replica: Replica, service: Service) -> None:
    if replica.life is Life.ENDED or _is_away(replica):
        return  # after an outage every lease is extended anyway
    if service.extending:
        look_soon(replica, service)  # the one under way may have left the row out
    else:
        extend(replica, service)


def _is_away(replica: Replica) -> bool:
    return replica.outage is not None and not replica.outage.repeating


def extend(
    replica: Replica,
    service: Service,
    everything: bool = False,
    then: Callable[[ShardrunError | None], None] | None = None,
) -> None:
    """Extend the leases that want it (or `everything`); `then` is told how it went."""
    now = clock.now()
    rows = service.book.extendable(now, everything)
    if not rows:
        if then:
            replica.later(0, partial(then, None))
        return
    groups = _by_token(rows)
    service.book.extending(rows)
    service.extending = True
    started = {child: child.started() for child in replica.children}

    def work(connection: Connection) -> _Answer:
        return _extend(service, connection, groups)

    def done(result: _Answer | ShardrunError) -> None:
        answer = result if isinstance(result, _Answer) else _Answer(error=result)
        service.extending = False
        _note(replica, service, rows, answer, now + service.book.lease)
        for child in replica.children:
            child.held_until(started.get(child, ()))
        if then:
            then(answer.error)

    replica.threads.submit(work, done, urgent=True)


def _by_token(rows: Sequence[Held]) -> dict[Token, list[Any]]:
    """Group ids by each token that their rows may carry: a statement changes rows of one token only (R1)."""
    groups: dict[Token, list[Any]] = {}
    for held in rows:
        for token in held.tokens:
            groups.setdefault(token, []).append(held.id)
    return groups


def _extend(service: Service, connection: Connection, groups: dict[Token, list[Any]]) -> _Answer:
    answer = _Answer()
    new = service.leases.lease_end(connection)  # the value is known before it is sent (R1)
    try:
        for token, ids in groups.items():
            extension = service.leases.extend(connection, ids, token, new)
            answer.new = new
            answer.extended.update(extension.extended)
            answer.busy.update(extension.busy)
    except ShardrunError as error:
        if isinstance(error, ConnectionLost):
            raise _Broke(new, error) from error
        answer.error = error
        answer.busy.update(id for ids in groups.values() for id in ids)
    return answer


class _Broke(ConnectionLost):
    """The connection broke under an extension that may have written `new`."""

    def __init__(self, new: Token, error: ShardrunError) -> None:
        super().__init__(str(error))
        self.new = new


def _note(replica: Replica, service: Service, rows: list[Held], answer: _Answer, deadline: float) -> None:
    error = answer.error
    if error is not None and not answer.busy:
        service.book.extension_broke(rows, error.new if isinstance(error, _Broke) else None)
    else:
        for held in service.book.extended(rows, answer.new or "", deadline, answer.extended, answer.busy):
            _lost(service, held)
    if isinstance(error, ConnectionLost | DatabaseUnreachable):
        replica.connection_lost(error)
    elif isinstance(error, Conflict):
        replica.complain(f"extend {service.label}", "%s: leases cannot be extended for now: %s", service.name, error)
    elif error is not None:
        log.error("%s: extending leases failed: %s", service.name, error)


def _lost(service: Service, held: Held) -> None:
    log.warning("%s row %s: the lease is lost, another replica may hold the row", service.name, held.id)
    settle.turn_back(service, held)
    if held.stage is Stage.RUNNING:
        if service.is_clustered:
            held.lane.child.tell_lost(held)  # another may run it by now: nothing of its key follows it here
        return  # it stays in the book until its handler ends, and is counted then
    service.counts.lost += 1
    service.leave_line(held)
