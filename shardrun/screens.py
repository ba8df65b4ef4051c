"""What people read while a replica runs: the banner, the periodic line, the answers of `check`."""

from __future__ import annotations

import logging
import platform
from dataclasses import asdict, dataclass, field
from typing import Any

from shardrun.boot import Opened
from shardrun.coordinator import clock
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Service
from shardrun.db import forms
from shardrun.db.insert import channel
from shardrun.policy import transactions
from shardrun.queue import Form, Subscription
from shardrun.summary import Summary, counted

log = logging.getLogger("shardrun")

EVERY = 10.0
"""Seconds between periodic lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line for people, and what it says as the fields of a JSON log."""

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    level: int = logging.INFO


def banner(opened: Opened, name: str) -> list[Line]:
    """Say what is about to run, and on what."""
    settings, where = opened.settings, opened.database.describe()
    versions = {"version": _version(), "replica": name, "python": platform.python_version()}
    first = f"shardrun {_version()}   replica {name}   Python {platform.python_version()}   {where}"
    lines = [Line(f"{first} ({settings.dsn_source})", {**versions, "database": where, "source": settings.dsn_source})]
    subscriptions = _effective(opened)
    aligned = _aligned([_cells(each, settings.processes) for each in subscriptions])
    lines += [Line(text, _fields(each, settings.processes)) for text, each in zip(aligned, subscriptions, strict=True)]
    server = f"       server: {opened.server[0]}, {opened.server[1]} in use" if opened.server else ""
    limit = f" of {settings.connection_limit}" if settings.connection_limit else ""
    connections = {"connections": opened.budget.total, "limit": settings.connection_limit, **asdict(opened.budget)}
    lines.append(Line(f"  connections  at most {opened.budget.total}{limit}: {opened.budget}{server}", connections))
    return lines + [Line(f"  warning: {warning}", level=logging.WARNING) for warning in opened.warnings]


def _effective(opened: Opened) -> list[Subscription]:
    """List the subscriptions with the timeouts that they run under."""
    return transactions.with_timeouts(opened.declared.subscriptions, opened.database.one_writer)


def _cells(subscription: Subscription, children: int) -> list[str]:
    queue, lanes = subscription.queue, subscription.lanes(children)
    by = f" by {queue.partition_key}" if subscription.by_key else ""
    on = f" on {counted(children, 'child', 'children')}" if lanes >= children > 1 else ""
    attempts = "no limit of attempts"
    if subscription.max_attempts:
        attempts = f"{counted(subscription.max_attempts, 'attempt')}, then {_grave(subscription)}"
    group = f" group {subscription.group}" if subscription.group else ""
    return [
        queue.name,
        queue.table + group,
        forms.described(subscription),
        counted(lanes, "lane") + by + on,
        attempts,
    ]


def _fields(subscription: Subscription, children: int) -> dict[str, Any]:
    return {
        "queue": subscription.queue.name,
        "table": subscription.queue.table,
        "group": subscription.group,
        "handler": subscription.name,
        "form": subscription.queue.form.value,
        "lease": subscription.lease if subscription.queue.form is Form.LEASE else None,
        "lanes": subscription.lanes(children),
        "by_key": subscription.by_key,
        "transactional": subscription.transactional,
        "batch": subscription.batch,
        "timeout": subscription.timeout,
        "max_attempts": subscription.max_attempts,
    }


def _grave(subscription: Subscription) -> str:
    return subscription.dead_letter or f"group {subscription.dead_letter_group}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _version() -> str:
    from shardrun import __version__

    return __version__


def checked(opened: Opened) -> list[tuple[str, str]]:
    """Say what `check` found: pairs of how it is (`ok`, `warn`, or nothing) and the sentence."""
    subscriptions, limit = _effective(opened), opened.settings.connection_limit
    queues = counted(len({id(each.queue) for each in subscriptions}), "queue")
    lines = [("ok", f"{', '.join(opened.settings.handlers)}: {queues}, {counted(len(subscriptions), 'handler')}")]
    for each, statements in zip(subscriptions, opened.prepared, strict=True):
        group = f" group {each.group}" if each.group else ""
        columns = counted(len(each.queue.roles), "column")
        prepared = f"{counted(statements, 'statement')} prepared"
        lines.append(
            ("ok", f"{each.queue.name}: {each.queue.table}{group}, {columns}, {forms.described(each)}, {prepared}")
        )
    lines += [("ok", sentence) for sentence in _channels(opened)]
    lines += [("warn", warning) for warning in opened.warnings]
    of = f"limit {limit}" if limit else "no limit"
    lines.append(("ok", f"connections: at most {opened.budget.total} a replica, {of}"))
    found = f"{counted(len(opened.warnings), 'warning')}, " if opened.warnings else ""
    return [*lines, ("", f"{found}nothing that stops a start")]


def _channels(opened: Opened) -> list[str]:
    """Name the channels that are listened on under another name than their tables'."""
    if not opened.settings.listen_notify:
        return []
    tables = dict.fromkeys(each.queue.table for each in opened.declared.subscriptions)
    channels = {table: channel(table) for table in tables}
    return [
        f"{table}: NOTIFY on channel {name}, as the whole name is too long"
        for table, name in channels.items()
        if not name.endswith(table)
    ]


def say_stopped(summary: Summary) -> None:
    """Write the last line of a run that a signal ended."""
    log.info("stopped: %s", summary.stopped, extra={"fields": asdict(summary)})


class Ticker:
    """Writes the periodic line, where rows moved, from the coordinator's own counters."""

    def __init__(self) -> None:
        self._next: float | None = None
        self._moved: dict[str, tuple[int, int]] = {}

    def tick(self, replica: Replica) -> None:
        """Write the line when it is due."""
        now = clock.now()
        if self._next is None:
            self._next = now + EVERY
        if now < self._next or replica.life is not Life.SERVING:
            return
        seconds = EVERY + now - self._next
        self._next = now + EVERY
        parts = [part for service in replica.services if (part := self._part(service, seconds))]
        if not parts:
            return
        said = [text for text, _ in parts]
        fields: dict[str, Any] = {"queues": [each for _, each in parts]}
        if not replica.database.one_writer:
            connections = replica.threads.connections + sum(len(child.sessions) for child in replica.children)
            said, fields = [*said, f"connections {connections}"], {**fields, "connections": connections}
        log.info("%s", " | ".join(said), extra={"fields": fields})

    def _part(self, service: Service, seconds: float) -> tuple[str, dict[str, Any]] | None:
        counts = service.counts
        done = counts.acked + counts.dropped + counts.dead
        done_before, retried_before = self._moved.get(service.label, (0, 0))
        self._moved[service.label] = (done, counts.retried)
        if done == done_before and counts.retried == retried_before:
            return None
        rate, in_work = (done - done_before) / seconds, len(service.book)
        fields = {"queue": service.name, "rate": round(rate, 1), "in_work": in_work, **asdict(counts)}
        retried = f"  retried {counts.retried:,}" if counts.retried else ""
        dead = f"  dead {counts.dead:,}" if counts.dead else ""
        shown = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        return f"{service.name} {shown}  in work {in_work:,}{retried}{dead}", fields
