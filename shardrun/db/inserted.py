"""Note what `Queue.insert` writes in a transaction that this process runs, so that it can wake whoever reads that (G1).

    with inserted.recording(connection) as written:
        ...                                     # user code, which may insert
    if committed: reports.wake(written)

Inserts on other connections are noted nowhere: what becomes of them, only their owners know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from shardrun.queue import Queue

MOST_GROUPS = 100
"""Groups of one table that are told apart. Larger: fewer subscriptions are woken for nothing. Smaller: shorter frames."""

Written: TypeAlias = dict[str, set[str | None]]
"""The groups of the rows that were inserted, by table as its queue declares it; None is a row without a group."""

_recorded: dict[int, Written] = {}  # by the identity of the driver's connection


@contextmanager
def recording(connection: Any) -> Iterator[Written]:
    """Note what is inserted on a driver's connection during the block; whether it is committed is the caller's to know."""
    written: Written = {}
    _recorded[id(connection)] = written
    try:
        yield written
    finally:
        del _recorded[id(connection)]


def note(given: Any, queue: Queue[Any], row: Mapping[str, Any]) -> None:
    """Note a row that goes into a queue on a driver's connection or cursor; `row` has the keywords of `Queue.insert`."""
    if not _recorded:
        return
    written = _recorded.get(id(getattr(given, "connection", given)))
    if written is not None:
        group = row.get("group", row.get(queue.group) if queue.group else None)
        written.setdefault(queue.table, set()).add(None if group is None else str(group))


def listed(written: Written) -> list[tuple[str, list[str | None]]]:
    """Write down tables and their groups; no groups stand for all, where there are too many to tell apart."""
    return [(table, list(groups) if len(groups) <= MOST_GROUPS else []) for table, groups in written.items()]
