"""Write the statements for dead letters on MySQL and MariaDB, text only: in a table of their own, or in a group.

Neither server returns what it wrote. So the rows are locked first, by their ids, and then written, in one transaction.

A row that goes back keeps its last token, which its burial moved into the past: it reads as free, and its next token is
greater (R1). Where none is known (the row was put there by hand), clock plus lease takes its place: none that the row can
have had is later.
"""

from __future__ import annotations

import math

from shardrun.db import buried
from shardrun.db.buried import ERROR_LENGTH
from shardrun.db.mysql.parts import (
    AGED_BEFORE,
    AGED_BY,
    NOW,
    aged,
    by_id,
    clock_of,
    column,
    group_parameter,
    identity,
    lane_key,
    micros,
    quote,
    table_name,
    unfinished_rows,
)
from shardrun.db.operate import ERRORS, LOOKED
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table


def failures(layout: Layout, looked: int = LOOKED) -> Statement:
    """Group dead letters by the first line of their error, the most frequent first; the newest are read, up to a bound."""
    error, due = layout.column("last_error"), layout.column("retry_after")
    first_line = "null"
    if error is not None:  # its own collation might take two errors for one
        name = f"convert(d.{quote(error.name)} using utf8mb4)"
        first_line = f"left(substring_index({name}, '\\n', 1), {ERROR_LENGTH}) collate utf8mb4_bin"
    chosen = [f"{first_line} as error", f"{f'd.{quote(due.name)}' if due else 'null'} as due", f"{_key(layout)} as id"]
    text = f"""\
select error, count(*), {_date("min(due)")}, {_date("max(due)")}, min(id),
       count(*) over (), cast(sum(count(*)) over () as signed)
  from (select {listing(chosen, 15)}
          from {table_name(buried.home(layout))} as d
         where {conjunction([*_dead_rows(layout), *_of_error(layout)], 8)}{_order(layout, 9)}
         limit {looked}) as looked_at
 group by error
 order by count(*) desc, error
 limit {ERRORS}"""
    return Statement(text, buried.filters(layout))


def choose(layout: Layout, named: bool) -> Statement:
    """Read the ids of dead letters: all, or those of a list that are among them."""
    conditions = [*([_among(layout)] if named else []), *_dead_rows(layout), *_of_error(layout)]
    text = f"""\
select {_identity(layout)}
  from {table_name(buried.home(layout))} as d
 where {conjunction(conditions, 1)}{"" if named else _order(layout, 1)}
 limit %(limit)s"""
    return Statement(text, (*(("ids",) if named else ()), *buried.filters(layout), "limit"))


def stuck(layout: Layout) -> Statement | None:
    """Read which of a list of ids would be left by `requeue`; None where none can be."""
    if layout.dead is not None:
        return standing(layout)
    lock = layout.column("locked_until")
    if lock is None:
        return None
    conditions = [_among(layout), *_dead_rows(layout), f"d.{quote(lock.name)} > {NOW}"]
    text = f"select {_identity(layout)}\n  from {_by_id(layout)}\n where {conjunction(conditions, 1)}"
    return Statement(text, ("ids", *buried.place(layout)))


def standing(layout: Layout) -> Statement:
    """Read which of a list of ids are in the queue."""
    key = column(layout, "id", "q")
    chosen = identity(key, layout.roles["id"])
    return Statement(f"select {chosen}\n  from {table_name(layout.table)} as q\n where {key} in %(ids)s", ("ids",))


def take(layout: Layout) -> Statement:
    """Lock dead letters of a list, and read their ids and keys; in a group, those that a handler of it holds are left."""
    conditions = [_among(layout), *_dead_rows(layout), *_free(layout), *_of_error(layout)]
    text = f"""\
select {_identity(layout)}, {_canonical(layout)}
  from {_by_id(layout)}
 where {conjunction(conditions, 1)}
 order by {_key(layout)}
   for update"""
    return Statement(text, ("ids", *buried.filters(layout)))


def put_back(layout: Layout) -> Statement:
    """Put locked dead letters back, due and free, with no attempt spent: copy them, or give them their group again."""
    return _to_group(layout) if layout.dead is None else _to_table(layout, layout.dead)


def remove(layout: Layout) -> Statement:
    """Delete locked dead letters for good."""
    key = quote(layout.roles["id"].name)
    return Statement(f"delete from {table_name(buried.home(layout))}\n where {key} in %(ids)s", ("ids",))


def waiting(layout: Layout) -> Statement:
    """Read which of a list of ids are rows of the queue that are not finished."""
    conditions = [_among(layout), *unfinished_rows(layout, "d")]
    text = f"select {_identity(layout)}\n  from {by_id(layout, 'd')}\n where {conjunction(conditions, 1)}"
    return Statement(text, ("ids", *group_parameter(layout)))


def idle(layout: Layout) -> Statement:
    """Lock those of a list that are such rows and held by no one."""
    found = waiting(layout)
    head = "\n   and ".join([found.text, *_not_held(layout)])
    return Statement(f"{head}\n order by {_key(layout)}\n   for update skip locked", found.parameters)


def park(layout: Layout) -> Statement:
    """Copy locked rows to the dead letters' table, or move them to the dead letters' group, with a reason."""
    lock, error = layout.column("locked_until"), layout.column("last_error")
    special = {error.name: "%(reason)s"} if error else {}
    if lock is not None:  # free, and its tokens go on to grow when it is put back
        held = f"d.{quote(lock.name)}"
        special[lock.name] = f"if({held} >= {AGED_BEFORE[lock.kind]}, {aged(lock, 'd')}, {held})"
    names = ("ids", *(("reason",) if error else ()))
    if layout.dead is None:
        changes = {layout.roles["group"].name: "%(dead_group)s"} | special
        head = f"update {by_id(layout, 'd')}\n   set "
        head += listing([f"d.{quote(name)} = {value}" for name, value in changes.items()], 7)
        return Statement(f"{head}\n where {_among(layout)}", (*names, "dead_group"))
    text = f"""\
insert into {table_name(layout.dead)} ({", ".join(quote(name) for name in layout.copied)})
select {listing([special.get(name, f"d.{quote(name)}") for name in layout.copied], 7)}
  from {by_id(layout, "d")}
 where {_among(layout)}"""
    return Statement(text, names)


def parked(layout: Layout) -> Statement | None:
    """Delete locked rows that were copied to the dead letters; None where they were moved in one go."""
    if layout.dead is None:
        return None
    key = quote(layout.roles["id"].name)
    return Statement(f"delete from {table_name(layout.table)}\n where {key} in %(ids)s", ("ids",))


def _to_table(layout: Layout, dead: Table) -> Statement:
    names = buried.back(layout, dead)
    special = buried.fresh(layout, clock_of)
    if processed := layout.column("processed_at"):
        special[processed.name] = "null"
    if lock := layout.column("locked_until"):
        held, last = f"d.{quote(lock.name)}", _last_token(layout, lock)
        aged = f"case when {held} < {AGED_BEFORE[lock.kind]} then {held} end"
        special[lock.name] = f"ifnull({aged}, {last})" if lock.name in dead.columns else last
    text = f"""\
insert into {table_name(layout.table)} ({", ".join(quote(name) for name in names)})
select {listing([special.get(name, f"d.{quote(name)}") for name in names], 7)}
  from {_by_id(layout)}
 where {_among(layout)}
 order by {_key(layout)}"""
    return Statement(text, ("ids",))


def _last_token(layout: Layout, lock: Column) -> str:
    """Write a token that no holder can have had a later one than, moved into the past."""
    unit = micros(lock)
    lease = math.ceil(layout.lease * 1_000_000 / unit) * unit + 3 * unit
    return f"{clock_of(lock)} + interval {lease} microsecond - interval {AGED_BY[lock.kind]} day"


def _to_group(layout: Layout) -> Statement:
    """Give rows their subscription's group again; the lease column keeps its token, for only free rows are locked."""
    changes = [f"{column(layout, 'group', 'd')} = %(group)s"]
    changes += [f"d.{quote(name)} = {value}" for name, value in buried.fresh(layout, clock_of).items()]
    text = f"update {_by_id(layout)}\n   set {listing(changes, 7)}\n where {_among(layout)}"
    return Statement(text, ("group", "ids"))


def _by_id(layout: Layout) -> str:
    """Name the dead letters' table where rows are looked up by id: what is read is locked (R10)."""
    home = buried.home(layout)
    hint = " force index (primary)" if home.primary_key == (layout.roles["id"].name,) else ""
    return f"{table_name(home)} as d{hint}"


def _key(layout: Layout) -> str:
    return column(layout, "id", "d")


def _identity(layout: Layout) -> str:
    return identity(_key(layout), layout.roles["id"])


def _order(layout: Layout, indent: int) -> str:
    """Write the order in which the primary key has dead letters: the newest first. A group's lie in its index as they do."""
    has_order = layout.dead is not None and layout.roles["id"].name in layout.dead.unique
    return f"\n{' ' * indent}order by {_key(layout)} desc" if has_order else ""


def _among(layout: Layout) -> str:
    return f"{_key(layout)} in %(ids)s"


def _dead_rows(layout: Layout) -> list[str]:
    """Write which rows are this subscription's dead letters."""
    if layout.dead is None:
        unfinished = [f"{column(layout, 'processed_at', 'd')} is null"] if "processed_at" in layout.roles else []
        return [*unfinished, f"{column(layout, 'group', 'd')} = %(dead_group)s"]
    return [f"{column(layout, 'group', 'd')} = %(group)s"] if buried.group_among(layout, layout.dead) else ["true"]


def _of_error(layout: Layout) -> list[str]:
    error = layout.column("last_error")
    if error is None:
        return []
    text = f"cast(convert(d.{quote(error.name)} using utf8mb4) as binary)"
    return [f"(%(error)s is null or locate(cast(%(error)s as binary), {text}) > 0)"]


def _free(layout: Layout) -> list[str]:
    return _not_held(layout) if layout.dead is None else []


def _not_held(layout: Layout) -> list[str]:
    lock = layout.column("locked_until")
    if lock is None:
        return []
    held = f"d.{quote(lock.name)}"
    return [f"({held} is null or {held} <= {NOW})"]


def _canonical(layout: Layout) -> str:
    key = layout.column("partition_key")
    if key is None:
        return "null"
    return lane_key(key, "d") if key.equality else f"cast(d.{quote(key.name)} as char)"


def _date(time: str) -> str:
    return f"date_format({time}, '%%Y-%%m-%%d %%H:%%i:%%s')"
