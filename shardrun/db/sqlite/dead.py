"""Write the statements for dead letters on SQLite, text only: in a table of their own, or in a group of the queue's.

A row that goes back keeps its last token, which its burial moved AGED into the past: it reads as free, and its next
token is greater (R1). Where none is known (the row was put there by hand), clock plus lease takes its place: none that the
row can have had is later.
"""

from __future__ import annotations

from shardrun.db import buried
from shardrun.db.buried import ERROR_LENGTH
from shardrun.db.operate import ERRORS, LOOKED
from shardrun.db.sqlite.sql import AGED, AGED_BEFORE, FORMAT, NOW, group_parameter, lane_key, many, quote, table_name
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Layout, Table


def failures(layout: Layout, looked: int = LOOKED) -> Statement:
    """Group dead letters by the first line of their error, the most frequent first; the newest are read, up to a bound."""
    home, error, due = buried.home(layout), layout.column("last_error"), layout.column("retry_after")
    text = f"d.{quote(error.name)}" if error else "null"
    first_line = (
        f"substr({text}, 1, min({ERROR_LENGTH}, coalesce(nullif(instr({text}, char(10)), 0) - 1, {ERROR_LENGTH})))"
    )
    chosen = [f"{first_line} as error", f"{f'd.{quote(due.name)}' if due else 'null'} as due", f"{_key(layout)} as id"]
    order = f"\n         order by {_key(layout)} desc" if layout.dead is not None else ""
    text = f"""\
select error, count(*), substr(min(due), 1, 19), substr(max(due), 1, 19), min(id), count(*) over (), sum(count(*)) over ()
  from (select {listing(chosen, 15)}
          from {table_name(home)} as d
         where {conjunction([*_dead_rows(layout), *_of_error(layout)], 8)}{order}
         limit {looked})
 group by error
 order by count(*) desc, error
 limit {ERRORS}"""
    return Statement(text, buried.filters(layout))


def choose(layout: Layout, length: int) -> Statement:
    """Read the ids of dead letters: all, or those of a list that are among them."""
    conditions = [*([_among(layout, length)] if length else []), *_dead_rows(layout), *_of_error(layout)]
    text = f"""\
select {_key(layout)}
  from {table_name(buried.home(layout))} as d
 where {conjunction(conditions, 1)}
 limit :limit"""
    return Statement(text, (*many("id", length), *buried.filters(layout), "limit"))


def stuck(layout: Layout, length: int) -> Statement | None:
    """Read which of a list of ids would be left by `requeue`; None where none can be."""
    if layout.dead is not None:
        key = quote(layout.roles["id"].name)
        text = f"select {key}\n  from {table_name(layout.table)}\n where {key} in ({_ids(length)})"
        return Statement(text, many("id", length))
    lock = layout.column("locked_until")
    if lock is None:
        return None
    conditions = [_among(layout, length), *_dead_rows(layout), f"d.{quote(lock.name)} > {NOW}"]
    text = f"select {_key(layout)}\n  from {table_name(buried.home(layout))} as d\n where {conjunction(conditions, 1)}"
    return Statement(text, (*many("id", length), *buried.place(layout)))


def requeue(layout: Layout, length: int) -> Statement:
    """Put dead letters back, due and free, with no attempt spent; a row whose id is in the queue again is left."""
    return _back_to_group(layout, length) if layout.dead is None else _back_to_table(layout, layout.dead, length)


def purge(layout: Layout, length: int) -> Statement:
    """Delete dead letters for good; in a group, those that a handler of it holds are left."""
    conditions = [_among(layout, length), *_dead_rows(layout), *_free(layout), *_of_error(layout)]
    text = f"""\
delete from {table_name(buried.home(layout))} as d
 where {conjunction(conditions, 1)}
returning {quote(layout.roles["id"].name)}"""
    return Statement(text, (*many("id", length), *buried.filters(layout)))


def remove(layout: Layout, length: int) -> Statement | None:
    """Delete rows that were copied into the queue; None where they were moved in one go."""
    if layout.dead is None:
        return None
    return Statement(f"delete from {table_name(layout.dead)} as d\n where {_among(layout, length)}", many("id", length))


def waiting(layout: Layout, length: int) -> Statement:
    """Read which of a list of ids are rows of the queue that are not finished."""
    conditions = [_among(layout, length), *_unfinished(layout)]
    text = f"select {_key(layout)}\n  from {table_name(layout.table)} as d\n where {conjunction(conditions, 1)}"
    return Statement(text, (*many("id", length), *group_parameter(layout)))


def idle(layout: Layout, length: int) -> Statement:
    """Read which of a list of ids are such rows and held by no one."""
    found = waiting(layout, length)
    return Statement("\n   and ".join([found.text, *_not_held(layout)]), found.parameters)


def park(layout: Layout, length: int) -> Statement:
    """Copy idle rows to the dead letters' table, or move them to the dead letters' group, with a reason."""
    lock, error = layout.column("locked_until"), layout.column("last_error")
    special = {error.name: ":reason"} if error else {}
    if lock is not None:  # free, and its tokens go on to grow when it is put back
        held = f"d.{quote(lock.name)}"
        special[lock.name] = f"iif({held} >= {AGED_BEFORE}, strftime({FORMAT}, {held}, '-{AGED}'), {held})"
    names = (*many("id", length), *(("reason",) if error else ()))
    if layout.dead is None:
        changes = {layout.roles["group"].name: ":dead_group"} | special
        head = f"update {table_name(layout.table)} as d\n   set "
        head += listing([f"{quote(name)} = {value}" for name, value in changes.items()], 7)
        return Statement(f"{head}\n where {_among(layout, length)}", (*names, "dead_group"))
    text = f"""\
insert into {table_name(layout.dead)} ({", ".join(quote(name) for name in layout.copied)})
select {listing([special.get(name, f"d.{quote(name)}") for name in layout.copied], 7)}
  from {table_name(layout.table)} as d
 where {_among(layout, length)}"""
    return Statement(text, names)


def parked(layout: Layout, length: int) -> Statement | None:
    """Delete rows that were copied to the dead letters; None where they were moved in one go."""
    if layout.dead is None:
        return None
    return Statement(
        f"delete from {table_name(layout.table)} as d\n where {_among(layout, length)}", many("id", length)
    )


def _back_to_table(layout: Layout, dead: Table, length: int) -> Statement:
    """Write the copy; a row that anything in the queue collides with is not returned."""
    names = buried.back(layout, dead)
    special = buried.fresh(layout, lambda _: NOW)
    if processed := layout.column("processed_at"):
        special[processed.name] = "null"
    if lock := layout.column("locked_until"):
        held = f"d.{quote(lock.name)}"
        last = f"strftime({FORMAT}, 'now', '+{layout.lease:.3f} seconds', '-{AGED}')"
        aged = f"nullif(iif({held} < {AGED_BEFORE}, {held}, ''), '')"
        special[lock.name] = f"coalesce({aged}, {last})" if lock.name in dead.columns else last
    text = f"""\
insert into {table_name(layout.table)} ({", ".join(quote(name) for name in names)})
select {listing([special.get(name, f"d.{quote(name)}") for name in names], 7)}
  from {table_name(dead)} as d
 where {conjunction([_among(layout, length), *_dead_rows(layout), *_of_error(layout)], 1)}
 order by {_key(layout)}
on conflict do nothing
returning {quote(layout.roles["id"].name)}, {_canonical(layout)}"""
    return Statement(text, (*many("id", length), *buried.filters(layout)))


def _back_to_group(layout: Layout, length: int) -> Statement:
    """Give rows their subscription's group again; the lease column keeps its token, for only free rows are touched."""
    changes = [f"{quote(layout.roles['group'].name)} = :group"]
    changes += [f"{quote(name)} = {value}" for name, value in buried.fresh(layout, lambda _: NOW).items()]
    text = f"""\
update {table_name(layout.table)} as d
   set {listing(changes, 7)}
 where {conjunction([_among(layout, length), *_dead_rows(layout), *_free(layout), *_of_error(layout)], 1)}
returning {quote(layout.roles["id"].name)}, {_canonical(layout)}"""
    return Statement(text, (*many("id", length), "group", *buried.filters(layout)))


def _key(layout: Layout) -> str:
    return f"d.{quote(layout.roles['id'].name)}"


def _among(layout: Layout, length: int) -> str:
    return f"{_key(layout)} in ({_ids(length)})"


def _ids(length: int) -> str:
    return ", ".join(f":id{number}" for number in range(length))


def _dead_rows(layout: Layout) -> list[str]:
    """Write which rows are this subscription's dead letters."""
    processed = layout.column("processed_at")
    if layout.dead is None:
        unfinished = [f"d.{quote(processed.name)} is null"] if processed else []
        return [*unfinished, f"d.{quote(layout.roles['group'].name)} = :dead_group"]
    return [f"d.{quote(layout.roles['group'].name)} = :group"] if buried.group_among(layout, layout.dead) else ["true"]


def _of_error(layout: Layout) -> list[str]:
    error = layout.column("last_error")
    return [f"(:error is null or instr(d.{quote(error.name)}, :error) > 0)"] if error else []


def _unfinished(layout: Layout) -> list[str]:
    """Write which rows are this subscription's and not finished."""
    processed, group = layout.column("processed_at"), layout.column("group")
    conditions = [f"d.{quote(processed.name)} is null"] if processed else []
    return [*conditions, *([f"d.{quote(group.name)} = :group"] if group and layout.group is not None else [])]


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
    return lane_key(key) if key is not None else "null"
