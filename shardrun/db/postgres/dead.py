"""Write the statements for dead letters on PostgreSQL, text only: in a table of their own, or in a group of the queue's.

A row that goes back keeps its last token, which its burial moved AGED into the past: it reads as free, and its next
token is greater (R1). Where none is known (the row was put there by hand), clock plus lease takes its place: none that the
row can have had is later.
"""

from __future__ import annotations

from shardrun.db import buried
from shardrun.db.buried import ERROR_LENGTH
from shardrun.db.operate import ERRORS, LOOKED
from shardrun.db.postgres.parts import (
    AGED,
    AGED_BEFORE,
    clock_of,
    group_parameter,
    identity,
    interval,
    lane_key,
    nulls,
    quote,
    reason_text,
    table_name,
    type_of,
    unfinished_rows,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table


def failures(layout: Layout, looked: int = LOOKED) -> Statement:
    """Group dead letters by the first line of their error, the most frequent first; the newest are read, up to a bound."""
    home, error, due = buried.home(layout), layout.column("last_error"), layout.column("retry_after")
    key = layout.roles["id"]
    first_line = f"left(split_part(d.{quote(error.name)}::text, e'\\n', 1), {ERROR_LENGTH})" if error else "null::text"
    least = f"min(id){'' if key.kind in ('int', 'text') else '::text'}"
    chosen = [f"{first_line} as error", f"{_date(due)} as due"]
    chosen.append(f"{_key(layout)}{'' if key.kind in ('int', 'text') else '::text'} as id")
    text = f"""\
select error, count(*), min(due), max(due), {least}, count(*) over (), (sum(count(*)) over ())::bigint
  from (select {listing(chosen, 15)}
          from {table_name(home)} as d
         where {conjunction([*_dead_rows(layout), *_of_error(layout)], 8)}{_order(layout, 9)}
         limit {looked}) as rows
 group by error
 order by count(*) desc, error
 limit {ERRORS}"""
    return Statement(text, buried.filters(layout))


def choose(layout: Layout, named: bool) -> Statement:
    """Read the ids of dead letters: all, or those of a list that are among them."""
    conditions = [*([_among(layout)] if named else []), *_dead_rows(layout), *_of_error(layout)]
    text = f"""\
select {identity(_key(layout), layout)}
  from {table_name(buried.home(layout))} as d
 where {conjunction(conditions, 1)}{"" if named else _order(layout, 1)}
 limit %(limit)s"""
    return Statement(text, (*(("ids",) if named else ()), *buried.filters(layout), "limit"))


def stuck(layout: Layout) -> Statement | None:
    """Read which of a list of ids would be left by `requeue`; None where none can be."""
    if layout.dead is not None:
        key = f"q.{quote(layout.roles['id'].name)}"
        text = f"select {identity(key, layout)}\n  from {table_name(layout.table)} as q\n where {key} = any ({_ids(layout)})"
        return Statement(text, ("ids",))
    lock = layout.column("locked_until")
    if lock is None:
        return None
    conditions = [_among(layout), *_dead_rows(layout), f"d.{quote(lock.name)} > {clock_of(lock)}"]
    text = f"select {identity(_key(layout), layout)}\n  from {table_name(buried.home(layout))} as d\n where "
    return Statement(text + conjunction(conditions, 1), ("ids", *buried.place(layout)))


def requeue(layout: Layout) -> Statement:
    """Put dead letters back, due and free, with no attempt spent; a row whose id is in the queue again is left."""
    return _back_to_group(layout) if layout.dead is None else _back_to_table(layout, layout.dead)


def purge(layout: Layout) -> Statement:
    """Delete dead letters for good; in a group, those that a handler of it holds are left."""
    conditions = [_among(layout), *_dead_rows(layout), *_free(layout), *_of_error(layout)]
    text = f"""\
delete from {table_name(buried.home(layout))} as d
 where {conjunction(conditions, 1)}
returning {identity(_key(layout), layout)}"""
    return Statement(text, ("ids", *buried.filters(layout)))


def waiting(layout: Layout) -> Statement:
    """Read which of a list of ids are rows of the queue that are not finished."""
    conditions = [_among(layout), *unfinished_rows(layout, "d")]
    text = f"""\
select {identity(_key(layout), layout)}
  from {table_name(layout.table)} as d
 where {conjunction(conditions, 1)}"""
    return Statement(text, ("ids", *group_parameter(layout)))


def idle(layout: Layout) -> Statement:
    """Read which of a list of ids are such rows and held by no one."""
    text = f"select {identity(_key(layout), layout)}\n  {_idle_rows(layout, 2)}"
    return Statement(text, ("ids", *group_parameter(layout)))


def park(layout: Layout) -> Statement:
    """Move rows of a list that no one holds to the dead letters, with a reason."""
    lock, error = layout.column("locked_until"), layout.column("last_error")
    special = {error.name: reason_text(error)} if error else {}
    if lock is not None:  # free, and its tokens go on to grow when it is put back
        held = f"c.{quote(lock.name)}"
        special[lock.name] = f"case when {held} >= {AGED_BEFORE} then {held} - {AGED} else {held} end"
    names, key = ("ids", *group_parameter(layout), *(("reason",) if error else ())), quote(layout.roles["id"].name)
    chosen = f"with chosen as (\n  select d.*\n    {_idle_rows(layout, 4)}\n)"
    if layout.dead is None:
        changes = {layout.roles["group"].name: "%(dead_group)s"} | special
        text = f"""\
{chosen}
update {table_name(layout.table)} as d
   set {listing([f"{quote(name)} = {value}" for name, value in changes.items()], 7)}
  from chosen as c
 where {_key(layout)} = c.{key}
returning {identity(_key(layout), layout)}"""
        return Statement(text, (*names, "dead_group"))
    text = f"""\
{chosen}, copied as (
  insert into {table_name(layout.dead)} ({", ".join(quote(name) for name in layout.copied)})
  overriding system value
  select {listing([special.get(name, f"c.{quote(name)}") for name in layout.copied], 9)}
    from chosen as c
)
delete from {table_name(layout.table)} as d
 using chosen as c
 where {_key(layout)} = c.{key}
returning {identity(_key(layout), layout)}"""
    return Statement(text, names)


def _idle_rows(layout: Layout, indent: int) -> str:
    """Write which rows of a list wait in the queue, leaving out those that a lease or a transaction holds."""
    conditions = [_among(layout), *unfinished_rows(layout, "d"), *_not_held(layout)]
    pad = " " * (indent - 1)
    where = f"{pad}where {conjunction(conditions, indent - 1)}\n{pad}order by {_key(layout)}"
    return f"from {table_name(layout.table)} as d\n{where}\n{pad}  for update skip locked"


def _back_to_table(layout: Layout, dead: Table) -> Statement:
    """Insert first and delete what went in: a row that anything in the queue collides with stays where it is."""
    names = buried.back(layout, dead)
    special = buried.fresh(layout, clock_of)
    if processed := layout.column("processed_at"):
        special[processed.name] = "null"
    if lock := layout.column("locked_until"):
        last = f"({clock_of(lock)} + {interval(layout.lease)} - {AGED})::{type_of(lock)}"
        aged = f"case when c.{quote(lock.name)} < {AGED_BEFORE} then c.{quote(lock.name)} end"
        special[lock.name] = f"coalesce({aged}, {last})" if lock.name in dead.columns else last
    key = quote(layout.roles["id"].name)
    text = f"""\
with chosen as (
  select d.*
    from {table_name(dead)} as d
   where {conjunction([_among(layout), *_dead_rows(layout), *_of_error(layout)], 3)}
   order by {_key(layout)}
     for update
), back as (
  insert into {table_name(layout.table)} as t ({", ".join(quote(name) for name in names)})
  overriding system value
  select {listing([special.get(name, f"c.{quote(name)}") for name in names], 9)}
    from chosen as c
  on conflict do nothing
  returning t.{key} as id, {_canonical(layout, "t")} as key
), gone as (
  delete from {table_name(dead)} as d
   using back
   where {_key(layout)} = back.id
)
select {identity("id", layout)}, key
  from back"""
    return Statement(text, ("ids", *buried.filters(layout)))


def _back_to_group(layout: Layout) -> Statement:
    """Give rows their subscription's group again; the lease column keeps its token, for only free rows are touched."""
    changes = [f"{quote(layout.roles['group'].name)} = %(group)s"]
    changes += [f"{quote(name)} = {value}" for name, value in buried.fresh(layout, clock_of).items()]
    text = f"""\
update {table_name(layout.table)} as d
   set {listing(changes, 7)}
 where {conjunction([_among(layout), *_dead_rows(layout), *_free(layout), *_of_error(layout)], 1)}
returning {identity(_key(layout), layout)}, {_canonical(layout, "d")}"""
    return Statement(text, ("ids", "group", *buried.filters(layout)))


def _key(layout: Layout) -> str:
    return f"d.{quote(layout.roles['id'].name)}"


def _order(layout: Layout, indent: int) -> str:
    """Write the order in which an index has dead letters: the newest first, or as the group's claim would."""
    if layout.dead is None:
        roles = layout.order if layout.strand is None else layout.index
        names = [f"d.{quote(layout.roles[role].name)}{nulls(role)}" for role in roles]
    elif layout.roles["id"].name in layout.dead.unique:
        names = [f"{_key(layout)} desc"]
    else:
        return ""
    return f"\n{' ' * indent}order by {', '.join(names)}"


def _ids(layout: Layout) -> str:
    return f"%(ids)s::{type_of(layout.roles['id'])}[]"


def _among(layout: Layout) -> str:
    return f"{_key(layout)} = any ({_ids(layout)})"


def _dead_rows(layout: Layout) -> list[str]:
    """Write which rows are this subscription's dead letters."""
    processed = layout.column("processed_at")
    if layout.dead is None:
        unfinished = [f"d.{quote(processed.name)} is null"] if processed else []
        return [*unfinished, f"d.{quote(layout.roles['group'].name)} = %(dead_group)s"]
    return (
        [f"d.{quote(layout.roles['group'].name)} = %(group)s"] if buried.group_among(layout, layout.dead) else ["true"]
    )


def _of_error(layout: Layout) -> list[str]:
    error = layout.column("last_error")
    return [f"(%(error)s::text is null or position(%(error)s::text in d.{quote(error.name)}) > 0)"] if error else []


def _free(layout: Layout) -> list[str]:
    return _not_held(layout) if layout.dead is None else []


def _not_held(layout: Layout) -> list[str]:
    lock = layout.column("locked_until")
    if lock is None:
        return []
    held = f"d.{quote(lock.name)}"
    return [f"({held} is null or {held} <= {clock_of(lock)})"]


def _canonical(layout: Layout, alias: str) -> str:
    key = layout.column("partition_key")
    if key is None:
        return "null"
    return f"({lane_key(key, alias)})::text" if key.equality else f"{alias}.{quote(key.name)}::text"


def _date(due: Column | None) -> str:
    if due is None:
        return "null::text"
    utc = " at time zone 'utc'" if due.kind == "timestamptz" else ""
    return f"to_char(d.{quote(due.name)}{utc}, 'YYYY-MM-DD HH24:MI:SS')"
