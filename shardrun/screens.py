"""What people read while a replica runs: the banner, the periodic line, the answers of `check`."""

from __future__ import annotations

import logging
import platform

from shardrun.boot import Opened
from shardrun.coordinator import clock
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Service
from shardrun.queue import Subscription

log = logging.getLogger("shardrun")

EVERY = 10.0
"""Seconds between periodic lines."""


def banner(opened: Opened, name: str) -> list[str]:
    """Say what is about to run, and on what."""
    settings = opened.settings
    lines = [
        f"shardrun {_version()}   replica {name}   Python {platform.python_version()}   "
        f"{opened.database.describe()} ({settings.dsn_source})"
    ]
    lines += _aligned([_cells(each, settings.processes) for each in opened.declared.subscriptions])
    server = f"       server: {opened.server[0]}, {opened.server[1]} in use" if opened.server else ""
    limit = f" of {settings.connection_limit}" if settings.connection_limit else ""
    lines.append(f"  connections  at most {opened.budget.total}{limit}: {opened.budget}{server}")
    return lines + [f"  warning: {warning}" for warning in opened.warnings]


def _cells(subscription: Subscription, children: int) -> list[str]:
    queue, lanes = subscription.queue, subscription.lanes(children)
    by = f" by {queue.partition_key}" if subscription.by_key else ""
    on = f" on {_counted(children, 'child', 'children')}" if lanes >= children > 1 else ""
    attempts = "no limit of attempts"
    if subscription.max_attempts:
        place = subscription.dead_letter or f"group {subscription.dead_letter_group}"
        attempts = f"{_counted(subscription.max_attempts, 'attempt')}, then {place}"
    group = f" group {subscription.group}" if subscription.group else ""
    return [
        queue.name,
        queue.table + group,
        f"lease {subscription.lease:g} s",
        _counted(lanes, "lane") + by + on,
        attempts,
    ]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _version() -> str:
    from shardrun import __version__

    return __version__


def checked(opened: Opened) -> list[str]:
    """Say what `check` found."""
    subscriptions, limit = opened.declared.subscriptions, opened.settings.connection_limit
    queues = _counted(len({id(each.queue) for each in subscriptions}), "queue")
    lines = [f"ok    {', '.join(opened.settings.handlers)}: {queues}, {_counted(len(subscriptions), 'handler')}"]
    for each in subscriptions:
        group = f" group {each.group}" if each.group else ""
        lines.append(f"ok    {each.queue.name}: {each.queue.table}{group}, lease {each.lease:g} s, statements prepared")
    lines += [f"warn  {warning}" for warning in opened.warnings]
    of = f"limit {limit}" if limit else "no limit"
    lines.append(f"ok    connections: at most {opened.budget.total} a replica, {of}")
    found = f"{_counted(len(opened.warnings), 'warning')}, " if opened.warnings else ""
    return [*lines, f"{found}nothing that stops a start"]


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


class Ticker:
    """Writes the periodic line, where rows moved, from the coordinator's own counters."""

    def __init__(self) -> None:
        self._next: float | None = None
        self._done: dict[str, int] = {}

    def tick(self, replica: Replica) -> None:
        """Write the line when it is due."""
        now = clock.now()
        if self._next is None:
            self._next = now + EVERY
        if now < self._next or replica.life is not Life.SERVING:
            return
        parts = [part for service in replica.services if (part := self._part(service, EVERY + now - self._next))]
        self._next = now + EVERY
        if parts:
            log.info("%s", " | ".join(parts))

    def _part(self, service: Service, seconds: float) -> str | None:
        counts = service.counts
        done = counts.acked + counts.dropped + counts.dead
        moved = done - self._done.get(service.label, 0)
        self._done[service.label] = done
        if not moved and not len(service.book):
            return None
        rate = f"{moved / seconds:,.0f}/s"
        return f"{service.name} {rate}  in work {len(service.book)}  retried {counts.retried}  dead {counts.dead}"
