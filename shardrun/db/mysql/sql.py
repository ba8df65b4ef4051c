"""Write MySQL's and MariaDB's statements: text only, one function for each verb, built once for a subscription.

InnoDB locks every row that a locking statement reads, those that do not match too (R10). So a claim reads candidates
without locks, then locks them by id with SKIP LOCKED, where every condition is checked again, and then writes. Whatever
else locks or writes goes by id as well, with the index forced; the order by id lets MariaDB look up the few rows of a
list where it would read through all of a small table. At READ COMMITTED that takes no gap.

The token is `locked_until`; `parts` says how tokens are made. What one database says otherwise than the other is avoided.
"""

from __future__ import annotations

from dataclasses import replace

from shardrun.db.mysql import ddl
from shardrun.db.mysql.parts import (
    NOW,
    after_delay,
    aged,
    by_id,
    claim_order,
    clock_of,
    column,
    extended_token,
    free_rows,
    group_parameter,
    handed_fields,
    handed_out,
    held_rows,
    identity_of,
    index_order,
    lane_key,
    no_strand,
    not_aged,
    one_more,
    quote,
    set_free,
    set_free_later,
    set_reason,
    table_name,
    told_token,
    unfinished_rows,
    was_held,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Layout, Table

LATER_LIMIT = 100_000
"""Rows counted at most. Larger: a more exact count, read by a longer scan."""


def in_claim_order(layout: Layout, alias: str, is_free: bool = False) -> str:
    """Name the table where it is read in claim order; `is_free` leaves it to the server how.

    Left to itself, MariaDB reads and sorts the whole table for a claim of some per cent of its rows.
    """
    index = None if is_free else ddl.claim_index(layout)
    hint = "" if index is None else f" force index ({quote(index)})"
    return f"{table_name(layout.table)} as {alias}{hint}"


def candidates(layout: Layout, leaving_out: bool, is_free: bool = False) -> Statement:
    """Read the ids of free rows in claim order, without a lock: what others hold locked is among them."""
    conditions = [
        *free_rows(layout, "c"),
        *no_strand(layout, "c"),
        f"({column(layout, 'id', 'c')} in %(avoided)s) is not true",
    ]
    if leaving_out:
        key = layout.roles["partition_key"]
        conditions.append(f"({lane_key(key, 'c')} in %(full_keys)s) is not true")
    text = f"""\
select {identity_of(layout, "c")}
  from {in_claim_order(replace(layout, strand=None), "c", is_free)}
 where {conjunction(conditions, 1)}
 order by {claim_order(layout, "c")}
 limit %(limit)s"""
    more = ("full_keys",) if leaving_out else ()
    return Statement(text, (*group_parameter(layout), "avoided", *more, "limit"))


def take(layout: Layout, reads_again: bool = False, of_strands: bool = False) -> Statement:
    """Lock those of some rows that are still free and that nobody else has locked; tell whose lease had run out.

    And which token to write on each: what it computes on a locked row holds until the transaction ends. And what the claim
    gives, unless the rows are read again behind the write.
    """
    expired = was_held(layout.roles["locked_until"], "c") if "attempt" in layout.roles else "0"
    chosen = [identity_of(layout, "c"), expired, told_token(layout, "c")]
    if not reads_again:
        chosen += handed_fields(layout, "c", counted=False)
    conditions = [f"{column(layout, 'id', 'c')} in %(ids)s", *free_rows(layout, "c")]
    conditions += [] if of_strands else no_strand(layout, "c")
    text = f"""\
select {listing(chosen, 7)}
  from {by_id(layout, "c")}
 where {conjunction(conditions, 1)}
 order by {column(layout, "id", "c")}
   for update skip locked"""
    return Statement(text, ("ids", *group_parameter(layout)))


def claim(layout: Layout) -> Statement:
    """Write a lease on rows that were just locked, and count the attempt."""
    attempt = layout.column("attempt")
    changes = [f"{column(layout, 'locked_until', 't')} = %(token)s"]
    if attempt is not None:
        changes.append(f"t.{quote(attempt.name)} = {one_more(attempt, 't')}")
    text = f"update {by_id(layout, 't')}\n   set {listing(changes, 7)}\n where {column(layout, 'id', 't')} in %(ids)s"
    return Statement(text, ("ids", "token"))


def claimed(layout: Layout) -> Statement:
    """Read claimed rows as they are now; a lease that is not there, a trigger kept from being written."""
    text = f"""\
select {listing(handed_out(layout, "t"), 7)}
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s"""
    return Statement(text, ("ids",))


def lease_end(layout: Layout) -> Statement:
    """Read the clock plus the lease, as the lease's column would spell it."""
    return Statement(f"select {extended_token(layout)}")


def take_to_extend(layout: Layout) -> Statement:
    """Lock rows that still carry a token and end earlier, waiting for no one."""
    conditions = [*held_rows(layout, "t"), f"{column(layout, 'locked_until', 't')} < %(new)s"]
    text = f"""\
select {identity_of(layout, "t")}
  from {by_id(layout, "t")}
 where {conjunction(conditions, 1)}
 order by {column(layout, "id", "t")}
   for update skip locked"""
    return Statement(text, ("ids", "token", "new"))


def extend(layout: Layout) -> Statement:
    """Push the leases of rows forward that were just locked."""
    return _update(layout, [f"{column(layout, 'locked_until', 't')} = %(new)s"], ("new",))


def held(layout: Layout, lock: str = "") -> Statement:
    """Read rows that carry one of some tokens, in the order of their ids, and which; lock them, as the words say."""
    carried = column(layout, "locked_until", "t")
    text = f"""\
select {identity_of(layout, "t")}, cast({carried} as char)
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s
   and {carried} in %(tokens)s
 order by {column(layout, "id", "t")}"""
    return Statement(f"{text}\n   {lock}" if lock else text, ("ids", "tokens"))


def hold_all(layout: Layout) -> Statement:
    """Lock rows that carry a token and that nobody else has locked, and count them: all of a settlement's, nearly always."""
    text = f"""\
select count(*)
  from {by_id(layout, "t")}
 where {conjunction(held_rows(layout, "t"), 1)}
   for update skip locked"""
    return Statement(text, ("ids", "token"))


def ack(layout: Layout) -> Statement:
    """Finish rows: delete them, or write when they were finished."""
    processed = layout.column("processed_at")
    if processed is None:
        return _delete(layout)
    return _update(layout, [f"t.{quote(processed.name)} = {clock_of(processed)}"], ())


def drop(layout: Layout) -> Statement | None:
    """Finish rows that stay, with the reason; None where a drop is what an ack is."""
    processed, error = layout.column("processed_at"), layout.column("last_error")
    if processed is None or error is None:
        return None
    changes = [f"t.{quote(processed.name)} = {clock_of(processed)}", set_reason(layout, "t")]
    return _update(layout, changes, ("reason",))


def retry(layout: Layout) -> Statement:
    """Give rows back, due again after a delay or at once; they keep their count of attempts."""
    return _give_back(layout, counted=True)


def snooze(layout: Layout) -> Statement:
    """Give rows back, due again after a delay, with the count of attempts that they had."""
    return _give_back(layout, counted=False)


def bury(layout: Layout) -> Statement | None:
    """Move rows to another group, or copy them to another table, with the reason; None where there are no dead letters."""
    if layout.dead is not None:
        return _copy(layout, layout.dead)
    group = layout.column("group")
    if layout.dead_group is None or group is None:
        return None
    changes = [f"t.{quote(group.name)} = %(dead_group)s", set_free(layout, "t")]
    if "last_error" not in layout.roles:
        return _update(layout, changes, ("dead_group",))
    return _update(layout, [*changes, set_reason(layout, "t")], ("dead_group", "reason"))


def remove(layout: Layout) -> Statement:
    """Delete rows that were copied to the dead letters."""
    return _delete(layout)


def release(layout: Layout) -> Statement:
    """Give back rows that did not start, free at once, with the count of attempts that they had."""
    attempt = layout.column("attempt")
    changes = [set_free(layout, "t"), *([f"t.{quote(attempt.name)} = %(attempt)s"] if attempt else [])]
    return _update(layout, changes, ("attempt",) if attempt else ())


def recount(layout: Layout) -> Statement | None:
    """Write the count of attempts, and a reason where there is one; None where neither has a column."""
    attempt, error = layout.column("attempt"), layout.column("last_error")
    changes = [f"t.{quote(attempt.name)} = %(attempt)s"] if attempt else []
    changes += [set_reason(layout, "t")] if error else []
    parameters = (*(("attempt",) if attempt else ()), *(("reason",) if error else ()))
    return _update(layout, changes, parameters) if changes else None


def look(layout: Layout) -> Statement:
    """Lock rows and read the tokens that they carry, or carried before they were given back."""
    lock = layout.roles["locked_until"]
    text = f"""\
select {identity_of(layout, "t")}, cast(cast({not_aged(lock, "t")} as datetime({lock.digits})) as char)
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s
 order by {column(layout, "id", "t")}
   for update"""
    return Statement(text, ("ids",))


def backlog(layout: Layout) -> Statement:
    """Look whether something is due, how much is due later, and whether any of some ids is unfinished."""
    table, due = table_name(layout.table), layout.column("retry_after")
    mine = unfinished_rows(layout, "t")
    key = f"{column(layout, 'id', 't')} in %(ids)s"

    def rows(*conditions: str) -> str:
        where = " and ".join([*mine, *conditions])
        return f"select 1 from {table} as t{' where ' + where if where else ''}"

    if due is None:
        return Statement(f"select exists ({rows()}),\n       0,\n       exists ({rows(key)})", _backlog(layout))
    at = f"t.{quote(due.name)}"
    text = f"""\
select exists ({rows(f"{at} is null")})
       or exists ({rows(f"{at} <= {NOW}")}),
       (select count(*) from ({rows(f"{at} > {NOW}")} limit {LATER_LIMIT}) as later),
       exists ({rows(key)})"""
    return Statement(text, _backlog(layout))


def waiting(layout: Layout) -> Statement:
    """Look why a claim took nothing: rows that are due later, held, and neither; the first due time; another group."""
    table, due = table_name(layout.table), layout.column("retry_after")
    mine, processed, group = unfinished_rows(layout, "c"), layout.column("processed_at"), layout.column("group")
    at = f"c.{quote(due.name)}" if due else "null"
    is_held = f"ifnull({column(layout, 'locked_until', 'c')} > {NOW}, 0)" if "locked_until" in layout.roles else "0"
    where = f"\n           where {conjunction(mine, 12)}" if mine else ""
    others = f" where o.{quote(processed.name)} is null" if processed else ""
    elsewhere = f"(select quote(o.{quote(group.name)}) from {table} as o{others} limit 1)" if group else "null"
    text = f"""\
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, {NOW}, first) / 1e6,
       if(seen = 0, {elsewhere if layout.group is not None else "null"}, null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select {at} as due, ifnull({at} > {NOW}, 0) as later,
                       {is_held} as held
                  from {table} as c{where}
                 order by {index_order(layout, "c")}
                 limit %(limit)s) as looked_at) as summed"""
    return Statement(text, (*group_parameter(layout), "limit"))


def _backlog(layout: Layout) -> tuple[str, ...]:
    return (*group_parameter(layout), "ids")


def _update(layout: Layout, changes: list[str], parameters: tuple[str, ...]) -> Statement:
    """Write to rows under their token; a lock was taken before."""
    where = conjunction(held_rows(layout, "t"), 1)
    text = f"update {by_id(layout, 't')}\n   set {listing(changes, 7)}\n where {where}"
    return Statement(text, ("ids", "token", *parameters))


def _delete(layout: Layout) -> Statement:
    text = f"delete t\n  from {by_id(layout, 't')}\n where {conjunction(held_rows(layout, 't'), 1)}"
    return Statement(text, ("ids", "token"))


def _give_back(layout: Layout, counted: bool) -> Statement:
    due, attempt = layout.column("retry_after"), layout.column("attempt")
    changes = [set_free(layout, "t") if due else set_free_later(layout, "t")]
    parameters = ["delay"]
    if due:
        changes.append(f"t.{quote(due.name)} = ifnull({after_delay(due)}, t.{quote(due.name)})")
    if attempt and not counted:
        changes.append(f"t.{quote(attempt.name)} = %(attempt)s")
        parameters.append("attempt")
    if counted and "last_error" in layout.roles:
        changes.append(set_reason(layout, "t"))
        parameters.append("reason")
    return _update(layout, changes, tuple(parameters))


def _copy(layout: Layout, dead: Table) -> Statement:
    lock, error = layout.roles["locked_until"], layout.column("last_error")
    special = {lock.name: aged(lock, "t")}  # free, and its tokens go on to grow when it is put back
    if error:
        special[error.name] = f"ifnull(%(reason)s, t.{quote(error.name)})"
    text = f"""\
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
select {", ".join(special.get(name, f"t.{quote(name)}") for name in layout.copied)}
  from {by_id(layout, "t")}
 where {conjunction(held_rows(layout, "t"), 1)}"""
    return Statement(text, ("ids", "token", *(("reason",) if error else ())))
