"""Write the statements of the forms in which a connection holds rows: the row lock, and the lock on a row's key.

Nothing in the row says who holds it, so settlements go by id: whoever writes them holds the row, or has no connection left
to write them on. They write the count of attempts as a number, since a row lock's claim has written none.
"""

from __future__ import annotations

from shardrun.db.postgres.parts import (
    claim_order,
    claimed_order,
    clock_of,
    due_rows,
    group_parameter,
    handed_out,
    identity,
    lane_key,
    lane_type,
    no_strand,
    one_more,
    quote,
    reason_text,
    round_up,
    set_reason,
    table_name,
    type_of,
    unfinished_rows,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table

UNLOCK = Statement("select pg_advisory_unlock_all()")
"""Let go of every key: a connection of the coordinator's holds no other session locks."""

UNLOCK_ONE = Statement("select pg_advisory_unlock(hashtextextended(%(key)s::text, 0))", ("key",))
"""Let go of one row's key; others of its batch stay locked."""

ROLLBACK = Statement("rollback")


def begin(layout: Layout) -> Statement:
    """Begin a transaction at the queue's isolation."""
    level = f" isolation level {layout.isolation}" if layout.isolation else ""
    return Statement(f"begin{level}")


def claim(layout: Layout, these: bool = False) -> Statement:
    """Lock due rows in claim order, `these` or any, and read them; the transaction that this runs in holds them."""
    key, free = layout.roles["id"], free_rows(layout)
    if these:
        free.append(f"c.{quote(key.name)} = any(%(ids)s::{type_of(key)}[])")
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  select {listing(held_fields(layout, "c", counted=False), 9)}
    from {table_name(layout.table)} as c
   where {conjunction(free, 3)}
   order by {claim_order(layout)}
   limit %(limit)s
     for no key update skip locked
)
select {listing(handed_out(layout), 7)}
  from claimed
 order by {claimed_order(layout)}"""
    ids = ("ids",) if these else ()
    return Statement(text, ("limit", *left_out(layout), "avoided", *ids, *group_parameter(layout)))


def lock_key(layout: Layout) -> Statement:
    """Lock the first key in claim order that nobody holds; returns a row's id, the key, else the keys that were tried.

    Only the first row of each key counts, lest a key that becomes free meanwhile is taken for a later one. The last
    column says how many rows were looked at. Each part is materialized, so that no key is locked but the one returned.
    """
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), seen as materialized (
  select c.{quote(layout.roles["id"].name)} as id, {key_text(layout, "c")} as key
    from {table_name(layout.table)} as c
   where {conjunction([*free_rows(layout), f"{key_text(layout, 'c')} <> all (%(busy)s::text[])"], 3)}
   order by {claim_order(layout)}
   limit %(limit)s
), numbered as materialized (
  select id, key, row_number() over () as place from seen
), firsts as materialized (
  select n.id, n.key
    from numbered as n
   where not exists (select from numbered as e where e.key = n.key and e.place < n.place)
   order by n.place
), locked as materialized (
  select id, key from firsts where pg_try_advisory_lock(hashtextextended(key, 0)) limit 1
)
select {identity("locked.id", layout)}, locked.key,
       case when locked.key is null then array(select key from firsts) end,
       (select count(*) from seen)
  from (select) as always
  left join locked on true"""
    return Statement(text, ("limit", *left_out(layout), "avoided", "busy", *group_parameter(layout)))


def take(layout: Layout) -> Statement:
    """Read a row whose key was just locked, in a new statement: whether it is still due, and has that key; count an attempt."""
    key, attempt = quote(layout.roles["id"].name), layout.column("attempt")
    conditions = [
        one_row(layout, "c"),
        *unfinished_rows(layout, "c"),
        *due_rows(layout),
        f"{key_text(layout, 'c')} = %(key)s",
    ]
    if attempt is None:
        head = f"select {listing(held_fields(layout, 'c', counted=True), 9)}\n    from {table_name(layout.table)} as c"
        body = f"{head}\n   where {conjunction(conditions, 3)}"
    else:
        body = f"""\
update {table_name(layout.table)} as t
     set {quote(attempt.name)} = {one_more(attempt)}
   where t.{key} = any (array(
           select c.{key}
             from {table_name(layout.table)} as c
            where {conjunction(conditions, 12)}
              for no key update skip locked))
  returning {listing(held_fields(layout, "t", counted=True), 12)}"""
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  {body}
)
select {listing(handed_out(layout), 7)}
  from claimed"""
    return Statement(text, ("id", "key", *group_parameter(layout)))


def take_again(layout: Layout) -> Statement:
    """Lock one row again, after a settlement that failed had ended the transaction which held it."""
    conditions = [one_row(layout, "c"), *unfinished_rows(layout, "c"), *due_rows(layout)]
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
)
select from {table_name(layout.table)} as c
 where {conjunction(conditions, 1)}
   for no key update skip locked"""
    return Statement(text, ("id", *group_parameter(layout)))


def ack(layout: Layout) -> Statement:
    """Finish a row: delete it, or write when it was finished."""
    processed = layout.column("processed_at")
    if processed is None:
        return Statement(f"delete from {table_name(layout.table)} as t\n where {one_row(layout, 't')}", ("id",))
    return _update(layout, [f"{quote(processed.name)} = {clock_of(processed)}", *_counted(layout)])


def drop(layout: Layout) -> Statement:
    """Finish a row, with the reason where the row stays and has a column for it."""
    processed, error = layout.column("processed_at"), layout.column("last_error")
    if processed is None or error is None:
        return ack(layout)
    return _update(layout, [f"{quote(processed.name)} = {clock_of(processed)}", *_counted(layout), set_reason(error)])


def retry(layout: Layout) -> Statement:
    """Give a row back, due again after a delay where there is a column for that, with an attempt spent."""
    error = layout.column("last_error")
    return _update(layout, [*_delayed(layout), *_counted(layout), *([set_reason(error)] if error else [])])


def snooze(layout: Layout) -> Statement:
    """Give a row back, due again after a delay, with the count of attempts that it had."""
    return _update(layout, [*_delayed(layout), *_counted(layout)])


def release(layout: Layout) -> Statement:
    """Give back a row that did not start, with the count of attempts that it had; nothing is written that stands there."""
    attempt = layout.column("attempt")
    changed = f"coalesce(t.{quote(attempt.name)}, 0) <> %(attempt)s" if attempt else ""
    return _update(layout, _counted(layout), changed)


def recount(layout: Layout) -> Statement:
    """Write a row's count of attempts, and the reason."""
    error = layout.column("last_error")
    return _update(layout, [*_counted(layout), *([set_reason(error)] if error else [])])


def bury(layout: Layout) -> Statement | None:
    """Move a row to the dead letters, with the reason; None where there are none."""
    group, error = layout.column("group"), layout.column("last_error")
    if layout.dead is not None:
        return _bury_in_table(layout, layout.dead)
    if layout.dead_group is None or group is None:
        return None
    changes = [f"{quote(group.name)} = %(dead_group)s", *_counted(layout), *([set_reason(error)] if error else [])]
    return _update(layout, changes)


def key_text(layout: Layout, alias: str) -> str:
    """Write the text of a row's lock key: each value as the database writes it, nothing for NULL."""
    parts = [
        f"coalesce({alias}.{quote(piece.text)}::text, '')" if piece.is_column else literal(piece.text)
        for piece in layout.lock_key
    ]
    return f'({" || ".join(parts)}) collate "C"'


def literal(text: str) -> str:
    """Write a text inside a statement whose percent signs the driver reads."""
    mark = "E" if "\\" in text else ""
    return f"{mark}'" + text.replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"


def free_rows(layout: Layout) -> list[str]:
    """Write which rows can be claimed: unfinished, due, not of a full lane, and not avoided."""
    key, by = layout.roles["id"], layout.column("partition_key")
    conditions = [*unfinished_rows(layout, "c"), *no_strand(layout), *due_rows(layout)]
    if layout.by_key and by is not None:
        full = f"{lane_key(by, 'c')} <> all (%(full_keys)s::{lane_type(by)}[])"
        conditions.append(f"(c.{quote(by.name)} is null or {full})")
    return [*conditions, f"c.{quote(key.name)} <> all (%(avoided)s::{type_of(key)}[])"]


def left_out(layout: Layout) -> tuple[str, ...]:
    """Name the parameter that `free_rows` takes for keys of full lanes, where there is one."""
    return ("full_keys",) if layout.by_key and "partition_key" in layout.roles else ()


def held_fields(layout: Layout, alias: str, counted: bool, token: str = "''") -> list[str]:
    """List what `handed_out` chooses from; where the claim has not counted the attempt it is counted here."""
    roles, attempt = layout.roles, layout.column("attempt")
    named = {"partition_key": "key", "group": "its_group", "headers": "headers", "priority": "priority"}
    named |= {"retry_after": "due", "payload": "body"}
    taken = [f"{alias}.{quote(roles['id'].name)} as id", f"{token}::text as token", "false as expired"]
    taken += [f"{alias}.{quote(roles[role].name)} as {name}" for role, name in named.items() if role in roles]
    if attempt is not None:
        taken.append(f"{_attempt(attempt, alias, counted)} as attempt")
    if layout.by_key and "partition_key" in roles:
        taken.append(f"{lane_key(roles['partition_key'], alias)} as lane_key")
    if layout.row_mode:
        for number, (name, column) in enumerate(layout.table.columns.items(), 1):
            value = _attempt(column, alias, counted) if column is attempt else f"{alias}.{quote(name)}"
            taken.append(f"{value} as c{number}")
    return taken


def _attempt(attempt: Column, alias: str, counted: bool) -> str:
    return f"{alias}.{quote(attempt.name)}" if counted else f"({one_more(attempt, alias)})::{type_of(attempt)}"


def one_row(layout: Layout, alias: str) -> str:
    """Write which row is meant, by its id."""
    key = layout.roles["id"]
    return f"{alias}.{quote(key.name)} = %(id)s::{type_of(key)}"


def _counted(layout: Layout) -> list[str]:
    attempt = layout.column("attempt")
    return [f"{quote(attempt.name)} = %(attempt)s"] if attempt else []


def _delayed(layout: Layout) -> list[str]:
    due = layout.column("retry_after")
    if due is None:
        return []
    at = f"{clock_of(due)} + make_interval(secs => %(delay)s::float8){round_up(due)}"
    return [f"{quote(due.name)} = coalesce({at}, t.{quote(due.name)})"]


def _update(layout: Layout, changes: list[str], condition: str = "") -> Statement:
    """Write changes to one row; where there is nothing to write, look whether the row is there."""
    table, where = table_name(layout.table), one_row(layout, "t")
    if not changes:
        return Statement(f"select from {table} as t\n where {where}", ("id",))
    key = quote(layout.roles["id"].name)
    values = listing(changes, 7)
    if condition:
        table_and_change = (
            f"update {table} as t\n     set {listing(changes, 9)}\n   where {where}\n     and {condition}"
        )
        text = f"with written as (\n  {table_and_change}\n)\nselect t.{key} from {table} as t\n where {where}"
    else:
        text = f"update {table} as t\n   set {values}\n where {where}"
    names = ("delay", "attempt", "reason", "dead_group")
    return Statement(text, ("id", *(name for name in names if f"%({name})s" in text)))


def _bury_in_table(layout: Layout, dead: Table) -> Statement:
    special: dict[str, str] = {}
    if attempt := layout.column("attempt"):
        special[attempt.name] = "%(attempt)s"
    if error := layout.column("last_error"):
        special[error.name] = f"coalesce({reason_text(error)}, gone.{quote(error.name)})"
    text = f"""\
with gone as (
  delete from {table_name(layout.table)} as t
   where {one_row(layout, "t")}
  returning *
)
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
overriding system value
select {", ".join(special.get(name, f"gone.{quote(name)}") for name in layout.copied)}
  from gone"""
    return Statement(text, ("id", *(name for name in ("attempt", "reason") if f"%({name})s" in text)))
