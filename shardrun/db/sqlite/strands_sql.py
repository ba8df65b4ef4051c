"""Write the statements that claim rows strand by strand on SQLite, text only (see `db/strands.py`).

A look walks along the claim's index from one strand to the next, and sees of each no more than its first rows: those that
have begun and those that have not are ranges of the index of their own. Parameters have numbers: ?1 is the group, ?2 a
strand, ?3 says that ?2 are the bytes of what SQLite calls text, ?4 how many strands are looked at.

A row that has no id, or has not begun and has a time that cannot be compared with now, blocks none behind it in a FIFO
group: no claim takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardrun.db.sqlite import sql, times
from shardrun.db.sqlite.sql import NOW, quote, table_name
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout

MOST_LOOKED_AT = 64
"""Rows of a partition key that one claim looks at. Larger: more of one key in a claim; smaller: shorter looks."""

STRAND = "iif(?3, cast(?2 as text), ?2)"


def strand_column(layout: Layout) -> Column:
    """Give the column whose equal values make a strand."""
    return layout.roles[str(layout.strand)]


def walk(layout: Layout, goes_on: bool) -> Statement:
    """Look at the first strands, or at those behind one."""
    column = quote(strand_column(layout).name)

    def first(condition: str) -> str:
        where = conjunction([*sql.unfinished_rows(layout), condition], 11)
        rows = f"select {column}\n            from {table_name(layout.table)}\n           where {where}"
        return f"{rows}\n           order by {column}\n           limit 1"

    text = f"""\
with recursive strands (strand) as (
  select *
    from ({first(f"{column} > {STRAND}" if goes_on else f"{column} is not null")})
  union all
  select ({first(f"{column} > strands.strand")})
    from strands
   where strands.strand is not null
   limit ?4
), {_looked_at(layout)}
 where strand is not null"""
    return Statement(text, ("group", "strand", "is_text", "visits"))


def one(layout: Layout) -> Statement:
    """Look at one strand."""
    text = f"with strands (strand) as (\n  select {STRAND}\n), {_looked_at(layout)}"
    return Statement(text, ("group", "strand", "is_text"))


def line(layout: Layout) -> Statement:
    """Read the first rows of a partition key in order, and which of them are free and due; before them, those that are held.

    Whoever holds one has the key, also where a row has come since that stands before it.
    """
    order = _order(layout)
    begun = (_nobodys(layout), ["part", *order], _begun(layout))
    rows = [
        f"select {part} as part, {_chosen(layout)}, {_free_and_due(layout)} as is_free\n"
        f"              {_rows(layout, STRAND, [condition], 14)}\n"
        f"             order by {', '.join(by)} limit {MOST_LOOKED_AT}"
        for part, by, condition in [begun, *(("2", order, each) for each in _unbegun(layout))]
    ]
    text = f"""\
select k, is_free
  from ({_union(rows, 8)})
 order by part, {", ".join(order)}
 limit {MOST_LOOKED_AT}"""
    return Statement(text, ("group", "strand", "is_text"))


def rows(layout: Layout, length: int) -> Statement:
    """Read what a claim hands out of rows that were just found free; the claim writes a lease on them before anyone else."""
    text = f"""\
select {listing(sql.handed_out(layout), 7)}
  from {table_name(layout.table)}
 where {quote(layout.roles["id"].name)} in ({sql.places(length)})"""
    return Statement(text, sql.many("id", length))


def _looked_at(layout: Layout) -> str:
    """Write the end of a look: each strand with its first row's id, whether that is free and due, and when it will be.

    In a FIFO group the first row is free only if none that has begun is held, or put off.
    """
    name = sql.lane_key(replace(strand_column(layout), name="strand"))
    if layout.is_fifo:
        begun = _rows(layout, "heads.strand", [_begun(layout)], 10)
        is_free = f"not exists (select 1\n          {begun}\n           and {_free_and_due(layout)} is not 1)"
        seconds = f"(select iif(min({_let_go(layout)}), max({_seconds(layout)}), null)\n          {begun})"
    else:
        first = f"from {table_name(layout.table)}\n         where {quote(layout.roles['id'].name)} = heads.head"
        is_free = f"(select {_free_and_due(layout)}\n          {first})"
        seconds = f"(select iif({_let_go(layout)}, {_seconds(layout)}, null)\n          {first})"
    return f"""\
heads as materialized (
  select strand,
         {name} as name,
         {_head(layout)} as head
    from strands
)
select name, head,
       {is_free},
       {seconds}
  from heads"""


def _head(layout: Layout) -> str:
    """Write the id of a strand's first row: one that has begun, else one that has not, and is due in a FIFO group."""
    order = ", ".join(_order(layout))
    held_first = "" if layout.is_fifo else f"{_nobodys(layout)}, "
    begun = (
        f"(select k from (select {_chosen(layout)}\n                     "
        f"{_rows(layout, 'strands.strand', [_begun(layout)], 21)}\n"
        f"                    order by {held_first}{order} limit 1))"
    )
    unbegun = [
        f"select {_chosen(layout)}\n                              {_rows(layout, 'strands.strand', [each, *due], 30)}\n"
        f"                             order by {order} limit 1"
        for each in _unbegun(layout)
        for due in (_due(layout) if layout.is_fifo else [[]])
    ]
    return f"""\
coalesce({begun},
                  (select k
                     from ({_union(unbegun, 24)})
                    order by {order} limit 1))"""


def _chosen(layout: Layout) -> str:
    """Name the columns of the order within a strand."""
    roles = layout.strand_order
    names = [f"{quote(layout.roles[role].name)} as o{number}" for number, role in enumerate(roles)]
    return ", ".join([f"{quote(layout.roles['id'].name)} as k", *names])


def _order(layout: Layout) -> list[str]:
    return [f"o{number}" for number in range(len(layout.strand_order))]


def _rows(layout: Layout, strand: str, conditions: Sequence[str], indent: int) -> str:
    """Write which rows of a strand are meant."""
    mine = [*sql.unfinished_rows(layout), f"{quote(strand_column(layout).name)} = {strand}", *conditions]
    if layout.roles["id"].nullable:
        mine.append(f"{quote(layout.roles['id'].name)} is not null")
    return f"from {table_name(layout.table)}\n{' ' * (indent - 1)}where {conjunction(mine, indent - 1)}"


def _begun(layout: Layout) -> str:
    return f"{quote(layout.roles['attempt'].name)} > 0"


def _unbegun(layout: Layout) -> list[str]:
    """Write which rows have not begun, in ranges of the index that each are in order, but for counts that none should have."""
    attempt = layout.roles["attempt"]
    name = quote(attempt.name)
    return [f"{name} = 0", f"{name} < 0", *([f"{name} is null"] if attempt.nullable else [])]


def _due(layout: Layout) -> list[list[str]]:
    """Write which rows are due and free, where the due times are in order in parts of their own."""
    due, held = layout.column("retry_after"), quote(layout.roles["locked_until"].name)
    free = [times.passed(held, NOW), times.sorts(held, "locked_until")]
    if due is None:
        return [free]
    at = quote(due.name)
    if "priority" in layout.roles:
        return [[times.passed(at, NOW), times.in_order(at), *free]]
    return [*([[f"{at} is null", *free]] if due.nullable else []), [f"{at} <= {NOW}", times.in_order(at), *free]]


def _free_and_due(layout: Layout) -> str:
    """Write whether a claim may take a row: 1, or else 0 or NULL."""
    columns = [(role, quote(column.name)) for role, column in times.columns_of(layout).items()]
    conditions = [times.passed(column, NOW) for _, column in columns]
    conditions += [times.sorts(column, role) for role, column in columns]
    return f"({' and '.join(conditions)})"


def _let_go(layout: Layout) -> str:
    """Write whether nobody holds a row, so that its due time is what it waits for; without such a column, it may be."""
    return _nobodys(layout) if "retry_after" in layout.roles else "1"


def _nobodys(layout: Layout) -> str:
    """Write whether no lease stands in the way of a row: 0 sorts before 1."""
    return times.passed(quote(layout.roles["locked_until"].name), NOW)


def _seconds(layout: Layout) -> str:
    """Write in how many seconds a row falls due."""
    due = layout.column("retry_after") or layout.roles["locked_until"]
    return f"(julianday({quote(due.name)}) - julianday('now')) * 86400.0"


def _union(parts: Sequence[str], indent: int) -> str:
    pad = "\n" + " " * indent
    return f"{pad}union all{pad}".join(f"select * from ({part})" for part in parts)
