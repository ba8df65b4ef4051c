"""Write the statements that offer rows, and take those that are still as they were offered (R3)."""

from __future__ import annotations

from shardrun.db.postgres.locks_sql import free_rows, held_fields, key_text, left_out, one_row
from shardrun.db.postgres.parts import (
    claim_order,
    claimed_order,
    due_rows,
    group_parameter,
    handed_out,
    identity,
    quote,
    table_name,
    type_of,
    unfinished_rows,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Layout


def stamp(alias: str) -> str:
    """Write what is another after each change of a row: the version that the server keeps of it."""
    return f"({alias}.xmin::text || {alias}.ctid::text)"


def offer(layout: Layout, these: bool) -> Statement:
    """Read due rows in claim order: `these`, or those that nobody has locked at this moment."""
    key, free = layout.roles["id"], free_rows(layout)
    if these:
        free.append(f"c.{quote(key.name)} = any(%(ids)s::{type_of(key)}[])")
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select {listing(held_fields(layout, "c", counted=False, token=stamp("c")), 9)}
    from {table_name(layout.table)} as c
   where {conjunction(free, 3)}
   order by {claim_order(layout)}
   limit %(limit)s{"" if these else locking("skip locked", 5)}
)
select {listing(handed_out(layout), 7)}
  from claimed
 order by {claimed_order(layout)}"""
    ids = ("ids",) if these else ()
    return Statement(text, ("limit", *left_out(layout), "avoided", *ids, *group_parameter(layout)))


def free_keys(layout: Layout) -> Statement:
    """Look which keys of due rows nobody holds; the first row of each, in claim order, up to `limit` that are free.

    A free key is locked until the statement's own transaction ends: that is how it shows. The last column says how many rows
    were looked at.
    """
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c.{quote(layout.roles["id"].name)} as id, {key_text(layout, "c")} as key
    from {table_name(layout.table)} as c
   where {conjunction([*free_rows(layout), f"{key_text(layout, 'c')} <> all (%(busy)s::text[])"], 3)}
   order by {claim_order(layout)}
   limit %(page)s
), numbered as materialized (
  select id, key, row_number() over () as place from seen
), firsts as materialized (
  select n.id, n.key, n.place
    from numbered as n
   where not exists (select from numbered as e where e.key = n.key and e.place < n.place)
   order by n.place
), free as materialized (
  select key from firsts where pg_try_advisory_xact_lock(hashtextextended(key, 0)) limit %(limit)s
)
select {identity("firsts.id", layout)}, firsts.key, free.key is not null, (select count(*) from seen)
  from firsts
  left join free on free.key = firsts.key
 order by firsts.place"""
    return Statement(text, ("limit", "page", *left_out(layout), "avoided", "busy", *group_parameter(layout)))


def take(layout: Layout, where_locked: str) -> Statement:
    """Lock one row that is still as it was offered, and still due."""
    conditions = [one_row(layout, "c"), f"{stamp('c')} = %(token)s", *unfinished_rows(layout, "c"), *due_rows(layout)]
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
)
select 1
  from {table_name(layout.table)} as c
 where {conjunction(conditions, 1)}{locking(where_locked, 3)}"""
    return Statement(text, ("id", "token", *group_parameter(layout)))


def key_number(layout: Layout) -> Statement:
    """Read by which number the key of one row is locked."""
    text = f"""\
select hashtextextended({key_text(layout, "c")}, 0)
  from {table_name(layout.table)} as c
 where {one_row(layout, "c")}"""
    return Statement(text, ("id",))


def key_numbers(layout: Layout) -> Statement:
    """Read by which numbers the keys of several rows are locked; beside each the row's place in the list of ids."""
    key = layout.roles["id"]
    text = f"""\
select w.place, hashtextextended({key_text(layout, "c")}, 0)
  from unnest(%(ids)s::{type_of(key)}[]) with ordinality as w (id, place)
  join {table_name(layout.table)} as c on c.{quote(key.name)} = w.id
 order by w.place"""
    return Statement(text, ("ids",))


def stamped(layout: Layout) -> Statement:
    """Read what a row carries now."""
    return Statement(
        f"select {stamp('t')}\n  from {table_name(layout.table)} as t\n where {one_row(layout, 't')}", ("id",)
    )


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Tell what became of an offered row, unless it is locked; the second looks for it among the dead letters' table."""
    processed, group = layout.column("processed_at"), layout.column("group")
    cases = [f"when t.{quote(processed.name)} is not null then 'DONE'"] if processed else []
    cases.append(f"when {stamp('t')} = %(token)s then 'HELD'")
    if layout.dead_group is not None and group is not None:
        cases.append(f"when t.{quote(group.name)} = %(dead_group)s then 'DEAD'")
    told = "\n            ".join(cases)
    text = f"""\
select case {told}
            else 'FREE' end
  from {table_name(layout.table)} as t
 where {one_row(layout, "t")}{locking("nowait", 3)}"""
    looked = Statement(text, ("id", "token", *(("dead_group",) if "%(dead_group)s" in text else ())))
    if layout.dead is None:
        return looked, None
    return looked, Statement(f"select 1\n  from {table_name(layout.dead)} as t\n where {one_row(layout, 't')}", ("id",))


def locking(where_locked: str, indent: int) -> str:
    """Write the clause that locks rows, against all who would change them or take them; others may refer to them."""
    return f"\n{' ' * indent}for no key update {where_locked}"
