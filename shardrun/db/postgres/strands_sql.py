"""Write the statements that look at strands and choose their rows on PostgreSQL; see `db/strands.py`.

A strand goes by its name: the text of the canonical form of its value, which casts to a value that the database calls equal
(R16). Each stretch of a strand's order is a range of the claim's index, so that a look reads a few rows of it, however many
there are. Rows that have begun are few: no more of a group than one, and of a key those that are in work or were retried.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardrun.db.postgres.locks_sql import literal
from shardrun.db.postgres.parts import (
    canonical,
    due_rows,
    group_parameter,
    identity,
    now_of,
    nulls,
    quote,
    table_name,
    type_of,
    unfinished_rows,
)
from shardrun.db.statement import Statement, conjunction
from shardrun.db.table import Column, Layout

HELD, BEGUN, NOT_BEGUN = -1, 0, 1
"""Places of rows in their strand's order: those that have begun come first, of a key's those in the hands of another replica."""

_NAMES = {"id": "id", "priority": "priority", "retry_after": "due"}

CLOCK = """\
clock as materialized (
  select clock_timestamp() as now
)"""


def walk(layout: Layout, goes_on: bool) -> Statement:
    """Look at the next strands in the order of their values, behind one or from the first: a seek for each."""
    strand = layout.roles[str(layout.strand)]
    name, table = quote(strand.name), table_name(layout.table)
    first = f"c.{name} > %(after)s::{type_of(strand)}" if goes_on else f"c.{name} is not null"
    mine = unfinished_rows(layout, "c")
    text = f"""\
with recursive {CLOCK}{_held(layout)}{_guards(layout)}, walked (strand, number) as (
  (select c.{name}, 1
     from {table} as c
    where {conjunction([*mine, first], 4)}
    order by c.{name}
    limit 1)
   union all
  select (select c.{name}
            from {table} as c
           where {conjunction([*mine, f"c.{name} > w.strand"], 11)}
           order by c.{name}
           limit 1), w.number + 1
    from walked as w
   where w.strand is not null
     and w.number < %(visits)s
)
select {name_of(strand, "s.strand")}, state.*
  from walked as s
 cross join lateral (
{_state(layout, name_of(strand, "s.strand"))}
       ) as state
 where s.strand is not null
 order by s.number"""
    return Statement(text, (*(("after",) if goes_on else ()), "visits", *_parameters(layout)))


def these(layout: Layout) -> Statement:
    """Look at some strands, by their names."""
    text = f"""\
with {CLOCK}{_held(layout)}{_guards(layout)}, {_named(layout)}
select s.name, state.*
  from named as s
 cross join lateral (
{_state(layout, "s.name")}
       ) as state
 order by s.number"""
    return Statement(text, ("strands", *_parameters(layout)))


def guard(layout: Layout, first_alone: bool) -> Statement:
    """Guard strands that nobody else guards, all or the first of them, until the transaction ends; returns their names."""
    text = f"""\
select s.name
  from unnest(%(strands)s::text[]) as s (name)
 where {_guarded(layout, "s.name")}{f"{chr(10)} limit 1" if first_alone else ""}"""
    return Statement(text, ("strands",))


def guard_of(layout: Layout) -> Statement:
    """Guard the strand of one row again, where it has one: true where nobody else guards it."""
    key, strand = layout.roles["id"], layout.roles[str(layout.strand)]
    text = f"""\
select coalesce({_guarded(layout, name_of(strand, f"t.{quote(strand.name)}"))}, true)
  from {table_name(layout.table)} as t
 where t.{quote(key.name)} = %(id)s::{type_of(key)}"""
    return Statement(text, ("id",))


def choose(layout: Layout) -> Statement:
    """Lock the rows that strands let go now, in order; behind a row that someone else has locked, none of its strand."""
    key, table = quote(layout.roles["id"].name), table_name(layout.table)
    chosen = _head_chosen(layout) if layout.is_fifo else _prefix_chosen(layout)
    locked = [f"c.{key} = any (array(select id from chosen))", *unfinished_rows(layout, "c"), *_free(layout)]
    text = f"""\
with {CLOCK}{_held(layout)}, {_named(layout)}, chosen as materialized (
  select s.name, s.number, line.id, line.rank
    from named as s
   cross join lateral (
{chosen}
         ) as line
   order by s.number, line.rank
   limit %(limit)s
), locked as materialized (
  select c.{key} as id
    from {table} as c
   where {conjunction(locked, 3)}
     for no key update skip locked
)
select c.name, {identity("c.id", layout)}
  from chosen as c
 where not exists (select from chosen as e
                    where e.number = c.number and e.rank <= c.rank and e.id not in (select id from locked))
 order by c.number, c.rank"""
    most = () if layout.is_fifo else ("most",)
    return Statement(text, ("strands", "limit", *most, *_parameters(layout)), planned_anew=True)


def name_of(strand: Column, value: str) -> str:
    """Write the name of a strand, from its value."""
    return f"({canonical(strand, value)})::text"


def _parameters(layout: Layout) -> tuple[str, ...]:
    return (*(() if layout.is_fifo else ("held",)), "avoided", *group_parameter(layout))


def _named(layout: Layout) -> str:
    strand = type_of(layout.roles[str(layout.strand)])
    return f"""named as materialized (
  select n.name, n.number, n.name::{strand} as strand
    from unnest(%(strands)s::text[]) with ordinality as n (name, number)
)"""


def _held(layout: Layout) -> str:
    if layout.is_fifo:
        return ""
    return f""", held as materialized (
  select unnest(%(held)s::{type_of(layout.roles["id"])}[]) as id
)"""


def _holds_guards(layout: Layout) -> bool:
    """Tell whether the guard alone says that a row of the strand is in work."""
    return "locked_until" not in layout.roles


def _guards(layout: Layout) -> str:
    """List the keys of all locks that are held in this database, as they look to a try."""
    if not _holds_guards(layout):
        return ""
    return """, guarded as materialized (
  select l.classid::bigint << 32 | l.objid::bigint as key
    from pg_locks as l
   where l.locktype = 'advisory'
     and l.objsubid = 1
     and l.database = (select d.oid from pg_database as d where d.datname = current_database())
)"""


def _lock_of(layout: Layout, name: str) -> str:
    return f"hashtextextended({literal(f'shardrun:{layout.table.name}:')} || {name}, 0)"


def _guarded(layout: Layout, name: str) -> str:
    return f"pg_try_advisory_xact_lock({_lock_of(layout, name)})"


def _state(layout: Layout, name: str) -> str:
    """Write a strand's state: whether it lets a row go now, and in how many seconds the one falls due that it waits for."""
    return _state_of_group(layout, name) if layout.is_fifo else _state_of_key(layout)


def _state_of_group(layout: Layout, name: str) -> str:
    is_free = _is_chosen(layout)
    if _holds_guards(layout):
        is_free += f" and {_lock_of(layout, name)} not in (select key from guarded)"
    due = layout.column("retry_after")
    waits = f"extract(epoch from h.put_off - {now_of(due)})::float8" if due else "null::float8"
    return f"""\
       select {is_free} as is_free, case when not h.is_held then {waits} end as seconds
         from ({_group(layout)}) as h"""


def _head_chosen(layout: Layout) -> str:
    return f"""\
         select h.id, 1 as rank
           from ({_group(layout)}) as h
          where {_is_chosen(layout)}"""


def _is_chosen(layout: Layout) -> str:
    return f"h.id is not null and h.id <> all (%(avoided)s::{type_of(layout.roles['id'])}[])"


def _group(layout: Layout) -> str:
    """Write what there is to say of a group: whether it is held, until when it is put off, and its head where it is free.

    The offset has the server find the head once, and not wherever it is spoken of.
    """
    return f"""select b.is_held, b.put_off, {_head(layout)} as id
           from ({_begun(layout)}) as b
         offset 0"""


def _begun(layout: Layout) -> str:
    """Write whether a row of a group is held, and until when one that has begun is put off: all that is held has begun."""
    lock, due = layout.column("locked_until"), layout.column("retry_after")
    is_held = f"coalesce(bool_or(c.{quote(lock.name)} > {now_of(lock)}), false)" if lock else "false"
    at = f"c.{quote(due.name)}" if due else ""
    put_off = f"max({at}) filter (where {at} > {now_of(due)})" if due else "null::timestamptz"
    return f"""select {is_held} as is_held,
                {put_off} as put_off
           from {table_name(layout.table)} as c
          where {conjunction([*_in_strand(layout), f"{_attempt(layout)} > 0"], 10)}"""


def _head(layout: Layout) -> str:
    """Write the id of a group's head, where the group `b` is free: the first row that has begun, or the first due one."""
    lock, due = layout.column("locked_until"), layout.column("retry_after")
    free = [f"(c.{quote(lock.name)} is null or c.{quote(lock.name)} <= {now_of(lock)})"] if lock else []
    arms = [_arm(layout, BEGUN, [f"{_attempt(layout)} > 0"], "1")]
    for range in _not_begun(layout):
        arms += _first_due(layout, due, [*range, *free]) if due else [_arm(layout, NOT_BEGUN, [*range, *free], "1")]
    places = ", ".join(["place", *(f"{_NAMES[role]}{nulls(role)}" for role in layout.strand_order)])
    return f"""case when not b.is_held and b.put_off is null then (
         select id from ({_union(arms)}) as h
          order by {places} limit 1) end"""


def _first_due(layout: Layout, due: Column, conditions: list[str]) -> list[str]:
    """Write the first due rows in ranges of the index; where there are priorities, those of each by itself."""
    at, priority = f"c.{quote(due.name)}", layout.column("priority")
    whens = [f"{at} is null"], [f"{at} <= {now_of(due)}"]
    if priority is None:
        return [_arm(layout, NOT_BEGUN, [*conditions, *when], "1") for when in whens]
    name = f"c.{quote(priority.name)}"
    first = _arm(layout, NOT_BEGUN, [*conditions, f"{name} is not null"], "1")
    next = _arm(layout, NOT_BEGUN, [*conditions, f"{name} > l.priority"], "1")
    levels = f"""(with recursive level as (
          {first}
           union all
          select n.* from level as l cross join lateral {next} as n
           where l.due > {now_of(due)}
          )
          select * from level as l where l.due is null or l.due <= {now_of(due)})"""
    last = [_arm(layout, NOT_BEGUN, [*conditions, f"{name} is null", *when], "1") for when in whens]
    return [levels, *(last if priority.nullable else [])]


def _state_of_key(layout: Layout) -> str:
    """Write what the first row says that is not held here; also where all are, or else the walk would seem to have ended."""
    return f"""\
       select coalesce(bool_or(l.is_free), false) as is_free, max(l.seconds) as seconds
         from ({_line(layout, "1")}) as l"""


def _prefix_chosen(layout: Layout) -> str:
    """Choose the rows of a key before the first that is not free: those that this replica holds are not in its line."""
    return f"""\
         select r.id, r.rank
           from (select l.id, row_number() over line as rank, bool_and(l.is_free) over line as goes
                   from ({_line(layout, "%(most)s")}) as l
                 window line as (order by {_places(layout, "l.")} rows unbounded preceding)) as r
          where r.goes"""


def _line(layout: Layout, count: str) -> str:
    """Write the first rows in a key's order, but for those in `held`; whether each is free, and when it falls due."""
    outside = "c." + quote(layout.roles["id"].name) + " not in (select id from held)"
    arms = [_arm(layout, BEGUN, [f"{_attempt(layout)} > 0", outside], count)]
    arms += [_arm(layout, NOT_BEGUN, [*range, outside], count) for range in _not_begun(layout)]
    return f"""{_union(arms)}
          order by {_places(layout)} limit {count}"""


def _arm(layout: Layout, place: int, conditions: Sequence[str], count: str) -> str:
    """Write the first rows of a strand in one range of the index."""
    fields = [
        f"{place} as place",
        *(f"c.{quote(layout.roles[role].name)} as {_NAMES[role]}" for role in layout.strand_order),
    ]
    if not layout.is_fifo:
        fields += [f"{_is_free(layout)} as is_free", f"{_waits(layout)} as seconds"]
    order = [f"c.{quote(layout.roles[role].name)}{nulls(role)}" for role in layout.strand_order]
    if place == BEGUN:  # few, and to be found by the strand: in the order of ids the server would look through all rows
        names = ", ".join(f"{_NAMES[role]}{nulls(role)}" for role in layout.strand_order)
        if not layout.is_fifo:  # another replica has a row that it claimed before this one came: it has the key
            fields[0], names = f"{_place_of_begun(layout)} as place", f"place, {names}"
        return f"""(select *
            from (select {", ".join(fields)}
                    from {table_name(layout.table)} as c
                   where {conjunction([*_in_strand(layout), *conditions], 19)}
                  offset 0) as begun
           order by {names} limit {count})"""
    order = [_attempt(layout), *order]  # one value, NULL perhaps, which the server does not know to be one
    return f"""(select {", ".join(fields)}
            from {table_name(layout.table)} as c
           where {conjunction([*_in_strand(layout), *conditions], 11)}
           order by {", ".join(order)} limit {count})"""


def _place_of_begun(layout: Layout) -> str:
    """Put a key's rows that are held before all others, for what this replica holds is not in its line."""
    lock = layout.roles["locked_until"]
    return f"case when c.{quote(lock.name)} > {now_of(lock)} then {HELD} else {BEGUN} end"


def _places(layout: Layout, alias: str = "") -> str:
    return ", ".join([f"{alias}place", *(f"{alias}{_NAMES[role]}{nulls(role)}" for role in layout.strand_order)])


def _union(arms: Sequence[str]) -> str:
    return "\n          union all\n          ".join(arms)


def _in_strand(layout: Layout) -> list[str]:
    return [*unfinished_rows(layout, "c"), f"c.{quote(layout.roles[str(layout.strand)].name)} = s.strand"]


def _not_begun(layout: Layout) -> list[list[str]]:
    """List the ranges of the index in which rows lie that have not begun."""
    ranges = [[f"{_attempt(layout)} = 0"]]
    return [*ranges, [f"{_attempt(layout)} is null"]] if layout.roles["attempt"].nullable else ranges


def _attempt(layout: Layout) -> str:
    return f"c.{quote(layout.roles['attempt'].name)}"


def _free(layout: Layout) -> list[str]:
    """Write which rows are due and not held."""
    lock = layout.column("locked_until")
    held = f"c.{quote(lock.name)}" if lock else ""
    return [*due_rows(layout), *([f"({held} is null or {held} <= {now_of(lock)})"] if lock else [])]


def _is_free(layout: Layout) -> str:
    key = layout.roles["id"]
    avoided = f"c.{quote(key.name)} <> all (%(avoided)s::{type_of(key)}[])"
    return " and ".join([*_free(layout), avoided])


def _waits(layout: Layout) -> str:
    """Write in how many seconds a row falls due that is not held."""
    lock, due = layout.column("locked_until"), layout.column("retry_after")
    if due is None:
        return "null::float8"
    at, now = f"c.{quote(due.name)}", now_of(due)
    conditions = [f"{at} > {now}"]
    if lock is not None:
        held = f"c.{quote(lock.name)}"
        conditions.append(f"({held} is null or {held} <= {now_of(lock)})")
    return f"case when {' and '.join(conditions)} then extract(epoch from {at} - {now})::float8 end"
