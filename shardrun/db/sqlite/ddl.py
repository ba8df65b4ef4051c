"""Write what a declared queue needs on SQLite: its table, its claim indexes, its dead letters. Alters nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardrun.db import check
from shardrun.db.sqlite.catalogue import kind_of
from shardrun.db.sqlite.sql import quote
from shardrun.db.table import Column, Index, Layout, Table, lay
from shardrun.queue import Queue, Subscription, split_name

TYPES = {
    "id": "integer primary key autoincrement",  # without it, the number of a deleted row is given out again
    "payload": "json text",  # two words: the affinity of text, so that no JSON is turned into a number
    "headers": "json text",
    "group": "text",
    "partition_key": "text",
    "priority": "integer not null default 0",
    "retry_after": "timestamp",
    "attempt": "integer not null default 0",
    "processed_at": "timestamp",
    "locked_until": "timestamp",
    "last_error": "text",
}

Reader = Callable[[Sequence[str]], Table | None]


def statements(queue: Queue[Any], subscriptions: Sequence[Subscription], read: Reader) -> list[str]:
    """Write the statements for what `read` does not find, in the order in which they must run."""
    parts = split_name(queue.table)
    table = read(parts)
    written = [] if table else [create_table(parts, columns_of(queue))]
    table = table or _imagined(parts, queue)
    if all(name in table.columns for name in queue.roles.values()):
        roles = {role: table.columns[name] for role, name in queue.roles.items()}
        layouts = [lay(table, subscription) for subscription in subscriptions] or [Layout(table, roles)]
        wanted = [index_of(layout) for layout in layouts if check.missing_index(layout)]
        written += list(dict.fromkeys(wanted))
    for name in dict.fromkeys(one.dead_letter for one in subscriptions if one.dead_letter):
        dead = split_name(name)
        if read(dead) is None and dead != parts:
            written.append(create_table(dead, _dead_columns(queue, table)))
    return written


def columns_of(queue: Queue[Any]) -> dict[str, str]:
    """Map each column of a declared queue to its type."""
    columns: dict[str, str] = {}
    for role, name in queue.roles.items():
        columns.setdefault(name, TYPES[role])
    return columns


def create_table(parts: Sequence[str], columns: dict[str, str]) -> str:
    """Write a table."""
    lines = ",\n".join(f"  {quote(name)} {kind}" for name, kind in columns.items())
    return f"create table if not exists {_dotted(parts)} (\n{lines}\n);"


def index_of(layout: Layout) -> str:
    """Write the index that gives a claim its order; partial where finished rows stay."""
    columns = ", ".join(quote(layout.roles[role].name) for role in layout.index)
    processed = layout.column("processed_at")
    condition = f" where {quote(processed.name)} is null" if processed else ""
    table = layout.table.parts[-1]
    name = f"{table}_claim_in_group" if layout.group is not None else f"{table}_claim"
    return f"create index if not exists {quote(name)} on {quote(table)} ({columns}){condition};"


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)


def _dead_columns(queue: Queue[Any], table: Table) -> dict[str, str]:
    """Copy a table's columns for dead letters: any value that the row had fits."""
    kept = {name: column for name, column in table.columns.items() if not column.generated}
    return {name: f"{column.type} primary key" if name == queue.id else column.type for name, column in kept.items()}


def _imagined(parts: tuple[str, ...], queue: Queue[Any]) -> Table:
    """Describe the table that `create_table` would make."""
    columns = {}
    for name, kind in columns_of(queue).items():
        plain = kind.partition(" not null")[0].partition(" primary")[0]
        columns[name] = Column(name=name, kind=kind_of(plain), type=plain)
    return Table(parts=parts, columns=columns, indexes=(Index("rowid", ((queue.id, False, None),)),))
