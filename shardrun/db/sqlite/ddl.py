"""Write what a declared queue needs on SQLite: its table, its claim indexes, its dead letters. Alters nothing."""

from __future__ import annotations

from collections.abc import Sequence

from shardrun.db import check, needed
from shardrun.db.sqlite.catalogue import kind_of
from shardrun.db.sqlite.sql import quote
from shardrun.db.table import Column, Layout

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
    purpose = "claim" if layout.group is None else "claim_in_group"
    name = f"{table}_{purpose if layout.strand is None else 'claim_in_order'}"
    return f"create index if not exists {quote(name)} on {quote(table)} ({columns}){condition};"


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)


def _copied(column: Column, is_id: bool) -> str:
    return f"{column.type} primary key" if is_id else column.type


def _imagined(name: str, kind: str) -> Column:
    plain = kind.partition(" not null")[0].partition(" primary")[0]
    return Column(name=name, kind=kind_of(plain), type=plain)


WRITING = needed.Writing(
    types=TYPES,
    imagine=_imagined,
    order_by_id=True,
    table=create_table,
    index=lambda layout: index_of(layout) if check.missing_index(layout) else None,
    copied=_copied,
    lease=None,
)
