"""End handlers that run past their subscription's timeout: the child is replaced, and the late rows alone spend an attempt."""

from __future__ import annotations

import signal

from shardrun.coordinator import reports
from shardrun.coordinator.child import Child
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Ended, Service
from shardrun.policy import endings, retries
from shardrun.policy.leases import Held
from shardrun.summary import counted


def is_late(child: Child, now: float) -> bool:
    """Look at what a child's lanes run, and tell whether it is to be ended now: once, for rows that are late."""
    if child.late:
        return False
    running = {no: child.handed[no] for no in child.running() if no in child.handed}
    timeouts = {no: timeout for no, held in running.items() if (timeout := _timeout(held)) is not None}
    child.late = child.runs.look(timeouts, now)
    return bool(child.late)


def has_ended(child: Child, code: int) -> bool:
    """Tell whether a dead child was ended for late rows, and did not die of something else first."""
    return bool(child.late) and code == -signal.SIGKILL


def late_rows(replica: Replica, child: Child) -> list[Ended]:
    """Take out of a child's hand the rows that it was ended for, and decide what becomes of them.

    Its reports have been read: a row that ended just before it was ended itself is settled as it ended. An attempt is spent
    on a drain, too; the retry rule cannot be asked where it is a function, since user code runs in children only.
    """
    ended = []
    for no in set(child.running()).intersection(child.late):
        if (held := child.handed.pop(no, None)) is None:
            continue
        held.lane.handed -= 1
        subscription = held.lane.service.subscription
        delay = retries.unasked(subscription.retry, held.attempt, replica.jitter())
        reason = f"ran longer than its timeout of {subscription.timeout:g} s"
        ended.append(Ended(held, *endings.failed(subscription, held.attempt, delay, reason)))
    return ended


def tell(replica: Replica, child: Child, late: list[Ended]) -> None:
    """Log which child was ended for which rows, and what becomes of all that it had."""
    who = {"child": child.index + 1, "pid": child.pid}
    others = len(child.handed)
    go_on = ""
    if others and replica.life is Life.SERVING:
        go_on = f" {counted(others, 'row')} {'goes' if others == 1 else 'go'} on in a new child"
    for each in late:
        held, service = each.held, _service(each.held)
        of = f" of {service.subscription.max_attempts}" if service.subscription.max_attempts else ""
        row = {"queue": service.name, "row": str(held.id), "attempt": held.attempt}
        log.error(
            "child %d (pid %d) was ended: row %s of %s %s and spends attempt %d%s. %s%s",
            child.index + 1, child.pid, held.id, service.name, each.reason, held.attempt, of,
            reports.what_follows(service, each), go_on,
            extra={"fields": who | row},
        )  # fmt: skip
    if not late:
        log.warning(
            "child %d (pid %d) was ended for a row that passed its timeout, and ended just then. No attempt is spent.%s",
            child.index + 1, child.pid, go_on,
            extra={"fields": who},
        )  # fmt: skip


def _timeout(held: Held) -> float | None:
    return _service(held).subscription.timeout


def _service(held: Held) -> Service:
    service: Service = held.lane.service
    return service
