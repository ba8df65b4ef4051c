"""Choose the statements that a declared queue needs; each database writes them in its own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardrun.db.table import Column, Index, Layout, Table, lay
from shardrun.queue import Queue, Subscription, split_name

Reader = Callable[[Sequence[str]], Table | None]
"""Reads a table's description by the parts of its name; None where there is no such table."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How one database's statements are written."""

    types: Mapping[str, str]  # of the columns that play roles
    imagine: Callable[[str, str], Column]  # describes the column that would be made, of its name and type
    order_by_id: bool  # tells whether the primary key's index serves a claim in the order of ids
    table: Callable[[Sequence[str], dict[str, str]], str]
    index: Callable[[Layout], str | None]  # None where a claim is served already, or cannot be
    copied: Callable[[Column, bool], str]  # a dead letter's column; told whether that is its id
    lease: str | None  # the type of the lease that dead letters have though the rows' is not copied


def statements(queue: Queue[Any], subscriptions: Sequence[Subscription], read: Reader, writing: Writing) -> list[str]:
    """Write the statements for what `read` does not find, in the order in which they must run."""
    parts = split_name(queue.table)
    table = read(parts)
    written = [] if table else [writing.table(parts, _columns(queue, writing))]
    table = table or _imagined(parts, queue, writing)
    if all(name in table.columns for name in queue.roles.values()):
        roles = {role: table.columns[name] for role, name in queue.roles.items()}
        layouts = [lay(table, subscription) for subscription in subscriptions] or [Layout(table, roles)]
        wanted = [index for layout in layouts if (index := writing.index(layout))]
        written += list(dict.fromkeys(wanted))
    for name in dict.fromkeys(one.dead_letter for one in subscriptions if one.dead_letter):
        dead = split_name(name)
        if read(dead) is None and dead != parts:
            written.append(writing.table(dead, _dead_columns(queue, table, writing)))
    return written


def _columns(queue: Queue[Any], writing: Writing) -> dict[str, str]:
    """Map each column of a declared queue to its type."""
    columns: dict[str, str] = {}
    for role, name in queue.roles.items():
        columns.setdefault(name, writing.types[role])
    return columns


def _imagined(parts: tuple[str, ...], queue: Queue[Any], writing: Writing) -> Table:
    """Describe the table that would be made."""
    columns = {name: writing.imagine(name, kind) for name, kind in _columns(queue, writing).items()}
    by_id = (Index("by id", ((queue.id, False, None),)),) if writing.order_by_id else ()
    return Table(parts=parts, columns=columns, indexes=by_id)


def _dead_columns(queue: Queue[Any], table: Table, writing: Writing) -> dict[str, str]:
    """Copy a table's columns for dead letters: any value that the row had fits."""
    kept = {name: column for name, column in table.columns.items() if not column.generated}
    columns = {name: writing.copied(column, name == queue.id) for name, column in kept.items()}
    if queue.locked_until is not None and writing.lease is not None:
        columns.setdefault(queue.locked_until, writing.lease)
    return columns
