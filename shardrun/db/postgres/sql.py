"""Write PostgreSQL's statements: text only, one function for each verb, built once for a subscription.

The clock is read once in a statement, by the server (`clock_timestamp()`), and in UTC for columns without a zone. The
coordinator's sessions run with TimeZone UTC, so that a token's text is the same in all of them.

The token is `locked_until`. A row that goes back keeps its last token, moved AGED into the past: it reads as free and
not as abandoned, and the next claim still writes a greater one.
"""

from __future__ import annotations

from shardrun.db.postgres.parts import (
    AGED,
    claim_order,
    claimed_order,
    clock_of,
    due_rows,
    group_parameter,
    handed_out,
    held_row,
    held_rows,
    identity,
    identity_of,
    index_order,
    interval,
    lane_key,
    lane_type,
    last_token,
    no_strand,
    now_of,
    one_more,
    quote,
    reason_text,
    round_up,
    set_free,
    set_free_later,
    set_reason,
    table_name,
    taken,
    type_of,
    unfinished_rows,
    unit,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Layout, Table

LATER_LIMIT = 100_000
"""Rows counted at most. Larger: a more exact count, read by a longer scan."""


def claim(layout: Layout, leaving_out: bool) -> Statement:
    """Take free rows in claim order and write a lease on them; the outer select puts them in order again."""
    conditions = _free_rows(layout, leaving_out)
    return Statement(
        _claim(layout, conditions), ("limit", *(("full_keys",) if leaving_out else ()), *group_parameter(layout))
    )


def claim_around(layout: Layout) -> Statement:
    """Do the same for some rows only, or for all but some: where the database refuses to claim a row."""
    return Statement(_claim(layout, _free_rows_around(layout)), ("limit", "only", "avoided", *group_parameter(layout)))


def claim_these(layout: Layout) -> Statement:
    """Do the same for rows that were chosen and locked before."""
    key = layout.roles["id"]
    mine = [*_free_rows(layout, leaving_out=False), f"c.{quote(key.name)} = any (%(ids)s::{type_of(key)}[])"]
    return Statement(_claim(layout, mine), ("limit", "ids", *group_parameter(layout)), planned_anew=True)


def candidates(layout: Layout) -> Statement:
    """Read which rows such a claim would take."""
    key, conditions = layout.roles["id"], _free_rows_around(layout)
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
)
select {identity(f"c.{quote(key.name)}", layout)}
  from {table_name(layout.table)} as c
 where {conjunction(conditions, 1)}
 order by {claim_order(layout)}
 limit %(limit)s
   for no key update skip locked"""
    return Statement(text, ("limit", "only", "avoided", *group_parameter(layout)))


def _free_rows(layout: Layout, leaving_out: bool) -> list[str]:
    lock = layout.roles["locked_until"]
    held = quote(lock.name)
    conditions = [*unfinished_rows(layout, "c"), *no_strand(layout), *due_rows(layout)]
    conditions.append(f"(c.{held} is null or c.{held} <= {now_of(lock)})")
    if leaving_out:
        key = layout.roles["partition_key"]
        conditions.append(
            f"(c.{quote(key.name)} is null or {lane_key(key, 'c')} <> all (%(full_keys)s::{lane_type(key)}[]))"
        )
    return conditions


def _free_rows_around(layout: Layout) -> list[str]:
    key = layout.roles["id"]
    name, kind = f"c.{quote(key.name)}", f"{type_of(key)}[]"
    by_key = layout.by_key and "partition_key" in layout.roles
    return [
        *_free_rows(layout, leaving_out=by_key),
        f"(%(only)s::{kind} is null or {name} = any (%(only)s::{kind}))",
        f"{name} <> all (%(avoided)s::{kind})",
    ]


def _claim(layout: Layout, conditions: list[str]) -> str:
    lock = layout.roles["locked_until"]
    held = quote(lock.name)
    attempt = layout.column("attempt")
    count = f",\n         {quote(attempt.name)} = {one_more(attempt)}" if attempt else ""
    return f"""\
with clock as materialized (
  select clock_timestamp() as now
), claimed as (
  update {table_name(layout.table)} as t
     set {held} = greatest({now_of(lock)} + {interval(layout.lease)}, {last_token(lock, "t")} + {unit(lock)}){count}
   where t.{quote(layout.roles["id"].name)} = any (array(
           select c.{quote(layout.roles["id"].name)}
             from {table_name(layout.table)} as c
            where {conjunction(conditions, 12)}
            order by {claim_order(layout)}
            limit %(limit)s
              for no key update skip locked))
  returning {listing(taken(layout), 12)}
)
select {listing(handed_out(layout), 7)}
  from claimed
 order by {claimed_order(layout)}"""


def lease_end(layout: Layout) -> Statement:
    """Read the clock plus the lease, as the lease's column would spell it."""
    lock = layout.roles["locked_until"]
    now = "clock_timestamp()" if lock.kind == "timestamptz" else "(clock_timestamp() at time zone 'utc')"
    return Statement(f"select ({now} + {interval(layout.lease)})::{type_of(lock)}::text")


def extend(layout: Layout) -> Statement:
    """Push leases forward without waiting: what another transaction keeps locked is told apart by `extended`."""
    lock = layout.roles["locked_until"]
    key, held, table = quote(layout.roles["id"].name), quote(lock.name), table_name(layout.table)
    mine = f"t.{key} = any (%(ids)s::{type_of(layout.roles['id'])}[]) and t.{held} = %(token)s::{type_of(lock)}"
    text = f"""\
with extended as (
  update {table} as e
     set {held} = %(new)s::{type_of(lock)}
   where e.{key} = any (array(
           select t.{key}
             from {table} as t
            where {mine}
              and t.{held} < %(new)s::{type_of(lock)}
              for no key update skip locked))
  returning e.{key} as id
)
select {identity("id", layout)}, true as extended
  from extended
 union all
select {identity(f"t.{key}", layout)}, false
  from {table} as t
 where {mine}
   and not exists (select from extended where extended.id = t.{key})"""
    return Statement(text, ("ids", "token", "new"))


def ack(layout: Layout) -> Statement:
    """Finish rows: delete them, or write when they were finished."""
    processed = layout.column("processed_at")
    if processed is None:
        head = f"delete from {table_name(layout.table)} as t"
    else:
        head = f"update {table_name(layout.table)} as t\n   set {quote(processed.name)} = {clock_of(processed)}"
    return Statement(f"{head}\n where {held_rows(layout)}\nreturning {identity_of(layout)}", ("ids", "token"))


def drop(layout: Layout) -> Statement | None:
    """Finish one row that stays, with the reason; None where a drop is what an ack is."""
    processed, error = layout.column("processed_at"), layout.column("last_error")
    if processed is None or error is None:
        return None
    changes = [f"{quote(processed.name)} = {clock_of(processed)}", set_reason(error)]
    return _update_one(layout, changes, ("reason",))


def retry(layout: Layout) -> Statement:
    """Give one row back, due again after a delay or at once; it keeps its count of attempts."""
    return _give_back(layout, counted=True)


def snooze(layout: Layout) -> Statement:
    """Give one row back, due again after a delay, with the count of attempts that it had."""
    return _give_back(layout, counted=False)


def bury(layout: Layout) -> Statement | None:
    """Move one row to the dead letters, with the reason; None where there are none."""
    if layout.dead is not None:
        return _bury_in_table(layout, layout.dead)
    group, error = layout.column("group"), layout.column("last_error")
    if layout.dead_group is None or group is None:
        return None
    changes = [f"{quote(group.name)} = %(dead_group)s", set_free(layout), *([set_reason(error)] if error else [])]
    return _update_one(layout, changes, ("dead_group", *(("reason",) if error else ())))


def release(layout: Layout) -> Statement:
    """Give back rows that did not start, free at once, with the count of attempts that they had."""
    attempt = layout.column("attempt")
    changes = [set_free(layout), *([f"{quote(attempt.name)} = %(attempt)s"] if attempt else [])]
    text = f"update {table_name(layout.table)} as t\n   set {listing(changes, 7)}\n where {held_rows(layout)}"
    return Statement(f"{text}\nreturning {identity_of(layout)}", ("ids", "token", *(("attempt",) if attempt else ())))


def recount(layout: Layout) -> Statement | None:
    """Write one row's count of attempts, and a reason where there is one; None where neither has a column."""
    attempt, error = layout.column("attempt"), layout.column("last_error")
    changes = [*([f"{quote(attempt.name)} = %(attempt)s"] if attempt else []), *([set_reason(error)] if error else [])]
    parameters = (*(("attempt",) if attempt else ()), *(("reason",) if error else ()))
    return _update_one(layout, changes, parameters) if changes else None


def look(layout: Layout) -> Statement:
    """Lock rows and read the tokens that they carry, or carried before they were given back."""
    lock, key = layout.roles["locked_until"], quote(layout.roles["id"].name)
    held = f"t.{quote(lock.name)}"
    text = f"""\
select {identity_of(layout)}, ({held} + {AGED})::{type_of(lock)}::text
  from {table_name(layout.table)} as t
 where t.{key} = any (%(ids)s::{type_of(layout.roles["id"])}[])
 order by t.{key}
   for no key update"""
    return Statement(text, ("ids",))


def backlog(layout: Layout) -> Statement:
    """Look whether something is due, how much is due later, and whether any of some ids is unfinished."""
    table, due = table_name(layout.table), layout.column("retry_after")
    mine = unfinished_rows(layout, "t")
    key = f"t.{quote(layout.roles['id'].name)} = any (%(ids)s::{type_of(layout.roles['id'])}[])"

    def some(*conditions: str) -> str:
        where = " and ".join([*mine, *conditions])
        return f"exists (select from {table} as t{' where ' + where if where else ''})"

    if due is None:
        return Statement(f"select {some()},\n       0,\n       {some(key)}", (*group_parameter(layout), "ids"))
    at, now = f"t.{quote(due.name)}", clock_of(due)
    later = " and ".join([*mine, f"{at} > (select {now})"])
    text = f"""\
select {some(f"{at} is null")}
       or {some(f"{at} <= (select {now})")},
       (select count(*) from (select from {table} as t where {later} limit {LATER_LIMIT}) as later),
       {some(key)}"""
    return Statement(text, (*group_parameter(layout), "ids"))


def waiting(layout: Layout) -> Statement:
    """Look why a claim took nothing: rows that are due later, held, and neither; the first due time; another group."""
    table, due, lock = table_name(layout.table), layout.column("retry_after"), layout.column("locked_until")
    mine, processed, group = unfinished_rows(layout, "c"), layout.column("processed_at"), layout.column("group")
    is_held = f"coalesce(c.{quote(lock.name)} > {now_of(lock)}, false)" if lock else "false"
    at = f"c.{quote(due.name)}" if due else "null::timestamptz"
    is_later = f"coalesce({at} > {now_of(due)}, false)" if due else "false"
    where = f"\n   where {conjunction(mine, 4)}" if mine else ""
    others = f" where o.{quote(processed.name)} is null" if processed else ""
    elsewhere = (
        f"(select quote_nullable(o.{quote(group.name)}::text) from {table} as o{others} limit 1)" if group else "null"
    )
    text = f"""\
with clock as materialized (
  select clock_timestamp() as now
), seen as (
  select {at} as due, {is_later} as later, {is_held} as held
    from {table} as c{where}
   order by {index_order(layout)}
   limit %(limit)s
), summed as (
  select count(*) as rows, count(*) filter (where later) as later, count(*) filter (where held) as held,
         count(*) filter (where not later and not held) as free, min(due) filter (where later) as first
    from seen
)
select rows, later, held, free, first::text,
       (extract(epoch from first) - extract(epoch from {now_of(due) if due else "null::timestamptz"}))::float8,
       case when rows = 0 then {elsewhere if layout.group is not None else "null"} end
  from summed"""
    return Statement(text, ("limit", *group_parameter(layout)))


def _update_one(layout: Layout, changes: list[str], parameters: tuple[str, ...]) -> Statement:
    text = f"update {table_name(layout.table)} as t\n   set {listing(changes, 7)}\n where {held_row(layout)}"
    return Statement(text, ("id", "token", *parameters))


def _give_back(layout: Layout, counted: bool) -> Statement:
    due, attempt, error = layout.column("retry_after"), layout.column("attempt"), layout.column("last_error")
    changes = [set_free(layout) if due else set_free_later(layout)]
    if due:
        at = f"{clock_of(due)} + make_interval(secs => %(delay)s::float8){round_up(due)}"
        changes.append(f"{quote(due.name)} = coalesce({at}, t.{quote(due.name)})")
    if attempt and not counted:
        changes.append(f"{quote(attempt.name)} = %(attempt)s")
    if error and counted:
        changes.append(set_reason(error))
    if counted:
        return _update_one(layout, changes, ("delay", "reason") if error else ("delay",))
    return _update_one(layout, changes, ("delay", "attempt") if attempt else ("delay",))


def _bury_in_table(layout: Layout, dead: Table) -> Statement:
    lock = layout.roles["locked_until"].name
    special = {lock: f"gone.{quote(lock)} - {AGED}"}  # free, and its tokens go on to grow when it is put back
    parameters: tuple[str, ...] = ()
    if error := layout.column("last_error"):
        special[error.name] = f"coalesce({reason_text(error)}, gone.{quote(error.name)})"
        parameters = ("reason",)
    text = f"""\
with gone as (
  delete from {table_name(layout.table)} as t
   where {held_row(layout)}
  returning *
)
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
overriding system value
select {", ".join(special.get(name, f"gone.{quote(name)}") for name in layout.copied)}
  from gone"""
    return Statement(text, ("id", "token", *parameters))


_SESSION = "pid || ':' || (extract(epoch from backend_start) * 1000000)::bigint"

SESSION = f"select {_SESSION} from pg_stat_activity where pid = pg_backend_pid()"
"""Name this session by its process and when that began: numbers come again, and names may be set by whoever is in it."""

END_SESSIONS = f"""\
select pid, pg_terminate_backend(pid)
  from pg_stat_activity
 where {_SESSION} = any (%s::text[])
   and backend_type = 'client backend'"""
"""End sessions by the names that they gave."""
