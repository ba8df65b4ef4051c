"""Write the statements for dead letters on SQLite, text only: in a table of their own, or in a group of the queue's.

A row that goes back keeps its last token, which its burial moved AGED into the past: it reads as free, and its next
token is greater (R1). Where none is known (the row was put there by hand), clock plus lease takes its place: none that the
row can have had is later.
"""

from __future__ import annotations

from shardrun.db.operate import ERRORS, LOOKED
from shardrun.db.sqlite.sql import AGED, AGED_BEFORE, FORMAT, NOW, lane_key, quote, table_name
from shardrun.db.statement import Statement
from shardrun.db.table import Layout, Table

ERROR_LENGTH = 200
"""Characters of an error's first line that tell it from another. Larger: more groups that differ only in details."""


def failures(layout: Layout, looked: int = LOOKED) -> Statement:
    """Group dead letters by the first line of their error, the most frequent first; the newest are read, up to a bound."""
    home, error, due = _home(layout), layout.column("last_error"), layout.column("retry_after")
    text = f"d.{quote(error.name)}" if error else "null"
    first_line = (
        f"substr({text}, 1, min({ERROR_LENGTH}, coalesce(nullif(instr({text}, char(10)), 0) - 1, {ERROR_LENGTH})))"
    )
    chosen = [f"{first_line} as error", f"{f'd.{quote(due.name)}' if due else 'null'} as due", f"{_key(layout)} as id"]
    order = f"\n         order by {_key(layout)} desc" if layout.dead is not None else ""
    text = f"""\
select error, count(*), substr(min(due), 1, 19), substr(max(due), 1, 19), min(id), count(*) over (), sum(count(*)) over ()
  from (select {_list(chosen, 15)}
          from {table_name(home)} as d
         where {_all([*_dead_rows(layout), *_of_error(layout)], 8)}{order}
         limit {looked})
 group by error
 order by count(*) desc, error
 limit {ERRORS}"""
    return Statement(text, (*_place(layout), *_error(layout)))


def choose(layout: Layout, length: int) -> Statement:
    """Read the ids of dead letters: all, or those of a list that are among them."""
    conditions = [*([_among(layout, length)] if length else []), *_dead_rows(layout), *_of_error(layout)]
    text = f"""\
select {_key(layout)}
  from {table_name(_home(layout))} as d
 where {_all(conditions, 1)}
 limit :limit"""
    return Statement(text, (*_many(length), *_place(layout), *_error(layout), "limit"))


def stuck(layout: Layout, length: int) -> Statement | None:
    """Read which of a list of ids would be left by `requeue`; None where none can be."""
    if layout.dead is not None:
        key = quote(layout.roles["id"].name)
        text = f"select {key}\n  from {table_name(layout.table)}\n where {key} in ({_ids(length)})"
        return Statement(text, _many(length))
    lock = layout.column("locked_until")
    if lock is None:
        return None
    conditions = [_among(layout, length), *_dead_rows(layout), f"d.{quote(lock.name)} > {NOW}"]
    text = f"select {_key(layout)}\n  from {table_name(_home(layout))} as d\n where {_all(conditions, 1)}"
    return Statement(text, (*_many(length), *_place(layout)))


def requeue(layout: Layout, length: int) -> Statement:
    """Put dead letters back, due and free, with no attempt spent; a row whose id is in the queue again is left."""
    return _back_to_group(layout, length) if layout.dead is None else _back_to_table(layout, layout.dead, length)


def purge(layout: Layout, length: int) -> Statement:
    """Delete dead letters for good; in a group, those that a handler of it holds are left."""
    conditions = [_among(layout, length), *_dead_rows(layout), *_free(layout), *_of_error(layout)]
    text = f"""\
delete from {table_name(_home(layout))} as d
 where {_all(conditions, 1)}
returning {quote(layout.roles["id"].name)}"""
    return Statement(text, (*_many(length), *_place(layout), *_error(layout)))


def remove(layout: Layout, length: int) -> Statement | None:
    """Delete rows that were copied into the queue; None where they were moved in one go."""
    if layout.dead is None:
        return None
    return Statement(f"delete from {table_name(layout.dead)} as d\n where {_among(layout, length)}", _many(length))


def _back_to_table(layout: Layout, dead: Table, length: int) -> Statement:
    """Write the copy; a row that anything in the queue collides with is not returned."""
    names = [name for name in dead.columns if name in layout.table.columns and not layout.table.columns[name].generated]
    special = _fresh(layout)
    if processed := layout.column("processed_at"):
        special[processed.name] = "null"
    if lock := layout.column("locked_until"):
        held = f"d.{quote(lock.name)}"
        last = f"strftime({FORMAT}, 'now', '+{layout.lease:.3f} seconds', '-{AGED}')"
        aged = f"nullif(iif({held} < {AGED_BEFORE}, {held}, ''), '')"
        special[lock.name] = f"coalesce({aged}, {last})" if lock.name in dead.columns else last
        names += [] if lock.name in names else [lock.name]
    text = f"""\
insert into {table_name(layout.table)} ({", ".join(quote(name) for name in names)})
select {_list([special.get(name, f"d.{quote(name)}") for name in names], 7)}
  from {table_name(dead)} as d
 where {_all([_among(layout, length), *_dead_rows(layout), *_of_error(layout)], 1)}
 order by {_key(layout)}
on conflict do nothing
returning {quote(layout.roles["id"].name)}, {_canonical(layout)}"""
    return Statement(text, (*_many(length), *_place(layout), *_error(layout)))


def _back_to_group(layout: Layout, length: int) -> Statement:
    """Give rows their subscription's group again; the lease column keeps its token, for only free rows are touched."""
    changes = [f"{quote(layout.roles['group'].name)} = :group"]
    changes += [f"{quote(name)} = {value}" for name, value in _fresh(layout).items()]
    text = f"""\
update {table_name(layout.table)} as d
   set {_list(changes, 7)}
 where {_all([_among(layout, length), *_dead_rows(layout), *_free(layout), *_of_error(layout)], 1)}
returning {quote(layout.roles["id"].name)}, {_canonical(layout)}"""
    return Statement(text, (*_many(length), "group", *_place(layout), *_error(layout)))


def _fresh(layout: Layout) -> dict[str, str]:
    """Map the columns that a row gets anew to their values: no attempt begun, due at once."""
    attempt, due = layout.column("attempt"), layout.column("retry_after")
    fresh = {attempt.name: "0"} if attempt else {}
    if due:
        fresh[due.name] = "null" if due.nullable else NOW
    return fresh


def _home(layout: Layout) -> Table:
    return layout.dead or layout.table


def _key(layout: Layout) -> str:
    return f"d.{quote(layout.roles['id'].name)}"


def _among(layout: Layout, length: int) -> str:
    return f"{_key(layout)} in ({_ids(length)})"


def _ids(length: int) -> str:
    return ", ".join(f":id{number}" for number in range(length))


def _many(length: int) -> tuple[str, ...]:
    return (f"id x {length}",) if length else ()


def _dead_rows(layout: Layout) -> list[str]:
    """Write which rows are this subscription's dead letters."""
    processed = layout.column("processed_at")
    if layout.dead is None:
        unfinished = [f"d.{quote(processed.name)} is null"] if processed else []
        return [*unfinished, f"d.{quote(layout.roles['group'].name)} = :dead_group"]
    return [f"d.{quote(layout.roles['group'].name)} = :group"] if _has_groups(layout, layout.dead) else ["true"]


def _place(layout: Layout) -> tuple[str, ...]:
    if layout.dead is None:
        return ("dead_group",)
    return ("group",) if _has_groups(layout, layout.dead) else ()


def _has_groups(layout: Layout, dead: Table) -> bool:
    """Tell whether the dead letters' table may hold those of other groups, too."""
    group = layout.column("group")
    return group is not None and layout.group is not None and group.name in dead.columns


def _of_error(layout: Layout) -> list[str]:
    error = layout.column("last_error")
    return [f"(:error is null or instr(d.{quote(error.name)}, :error) > 0)"] if error else []


def _error(layout: Layout) -> tuple[str, ...]:
    return ("error",) if "last_error" in layout.roles else ()


def _free(layout: Layout) -> list[str]:
    lock = layout.column("locked_until")
    if lock is None or layout.dead is not None:
        return []
    held = f"d.{quote(lock.name)}"
    return [f"({held} is null or {held} <= {NOW})"]


def _canonical(layout: Layout) -> str:
    key = layout.column("partition_key")
    return lane_key(key) if key is not None else "null"


def _all(conditions: list[str], indent: int) -> str:
    return ("\n" + " " * indent + "  and ").join(conditions)


def _list(parts: list[str], indent: int) -> str:
    return (",\n" + " " * indent).join(parts)
