"""Wake the subscriptions whose table and group rows were inserted into: they claim before their poll interval is over.

What is in doubt is woken: a claim that finds nothing costs one statement, a row that is not found waits for the poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from shardrun.coordinator.service import Service
from shardrun.queue import split_name

Name = tuple[str, ...]


def wake(services: Iterable[Service], inserted: Iterable[tuple[str, Sequence[str | None]]]) -> None:
    """Let subscriptions claim at once; `inserted` names tables, each with the groups of its rows, none for all groups."""
    told = [(_folded(table), groups) for table, groups in inserted]
    for service in services:
        if any(_is_table(service, name) and _takes(service, groups) for name, groups in told):
            if service.subscription.has_strands:
                service.by_strands.strands.wake()
            service.pacing.committed()


def _is_table(service: Service, name: Name) -> bool:
    """Tell whether a name may be that of a subscription's table, as its queue writes it or as the catalogue has it."""
    resolved = tuple(part.casefold() for part in service.store.layout.table.parts)
    return any(_ends_alike(name, known) for known in (_folded(service.subscription.queue.table), resolved))


def _ends_alike(first: Name, second: Name) -> bool:
    """Compare two names as far as both go: one may leave the schema to the search path."""
    length = min(len(first), len(second))
    return first[-length:] == second[-length:]


def _takes(service: Service, groups: Sequence[str | None]) -> bool:
    mine = service.subscription.group
    if mine is None or not groups:
        return True
    column = service.store.layout.column("group")
    by_default = column is not None and column.has_default  # then a row without a group has one all the same
    exact = column is not None and column.kind == "text" and column.equality == "exact"
    return any(by_default if group is None else _fold(group, exact) == _fold(mine, exact) for group in groups)


def _fold(group: str, exact: bool) -> str:
    """Make equal what the column may call equal: blanks at the end are left out, and case, but for exact collations."""
    return group.rstrip() if exact else group.casefold().rstrip()


@lru_cache(maxsize=1000)
def _folded(table: str) -> Name:
    return tuple(part.casefold() for part in split_name(table))
