"""Write SQLite's statements: text only, one function for each verb, built once for a subscription.

All run between BEGIN IMMEDIATE and COMMIT, so that nothing changes between a claim's look and its write. The clock is
SQLite's own (`strftime`, to the millisecond), and times are text that sorts as time does.

The token is `locked_until`. A row that goes back keeps its last token, moved AGED into the past: it reads as free and
not as abandoned, and the next claim still writes a greater one.

Lists of ids have a few fixed lengths, filled up with NULL, so that few statements are ever compiled.
"""

from __future__ import annotations

from shardrun.db.sqlite import times
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table

FORMAT = "'%Y-%m-%d %H:%M:%f'"
AGED = "365000 days"
"""How far a token is moved into the past: whole days, more than any lease, and still after the year 1000."""

AGED_BEFORE = "'1900-01-01'"
"""A `locked_until` before this was moved there by AGED; after it, and past, it is a lease that ran out."""

UNIT = "'+0.001 seconds'"
NOW = f"strftime({FORMAT}, 'now')"

LENGTHS = tuple(2**power for power in range(14))
"""Lengths of lists in statements. More of them: less filling, more statements to compile."""

LATER_LIMIT = 100_000
"""Rows counted at most. Larger: a more exact count, read by a longer scan."""


def quote(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def table_name(table: Table) -> str:
    """Quote a table's name, with its schema."""
    return ".".join(quote(part) for part in table.parts)


def candidates(layout: Layout, full_keys: int) -> Statement:
    """Read free rows in claim order; the claim writes a lease on them before anyone else can write."""
    held = quote(layout.roles["locked_until"].name)
    due = layout.column("retry_after")
    conditions = [*unfinished_rows(layout), *([times.passed(quote(due.name), NOW)] if due else [])]
    spelt = " and ".join(times.sorts(quote(column.name), role) for role, column in times.columns_of(layout).items())
    # In one term, since SQLite would look at the spelling of every row whose due time is in the index, held ones too.
    conditions.append(f"case when {times.passed(held, NOW)}\n        then {spelt} end")
    if layout.roles["id"].nullable:
        conditions.append(f"{quote(layout.roles['id'].name)} is not null")
    if layout.strand is not None:  # the others are claimed strand by strand
        conditions.append(f"{quote(layout.roles[layout.strand].name)} is null")
    if full_keys:
        key = lane_key(layout.roles["partition_key"])
        conditions.append(f"({key} in ({places(full_keys)})) is not 1")
    text = f"""\
select {listing(handed_out(layout), 7)}
  from {table_name(layout.table)}
 where {conjunction(conditions)}
 order by {", ".join(quote(layout.roles[role].name) for role in layout.order)}
 limit ?"""
    return Statement(text, (*group_parameter(layout), *many("full_key", full_keys), "limit"))


def claim(layout: Layout, length: int) -> Statement:
    """Write a lease on rows that were just read as free."""
    lock, attempt = layout.roles["locked_until"], layout.column("attempt")
    held = quote(lock.name)
    last = f"case when {held} < {AGED_BEFORE} then strftime({FORMAT}, {held}, '+{AGED}') else {held} end"
    count = f",\n       {quote(attempt.name)} = coalesce({quote(attempt.name)}, 0) + 1" if attempt else ""
    counted = f"cast({quote(attempt.name)} as integer)" if attempt else "1"
    text = f"""\
update {table_name(layout.table)}
   set {held} = max(strftime({FORMAT}, 'now', '+{layout.lease:.3f} seconds'),
                    coalesce(strftime({FORMAT}, {last}, {UNIT}), '')){count}
 where {quote(layout.roles["id"].name)} in ({places(length)})
returning {quote(layout.roles["id"].name)}, {held}, {counted}"""
    return Statement(text, many("id", length))


def lease_end(layout: Layout) -> Statement:
    """Read the clock plus the lease."""
    return Statement(f"select strftime({FORMAT}, 'now', '+{layout.lease:.3f} seconds')")


def extend(layout: Layout, length: int) -> Statement:
    """Push leases forward, never back."""
    key, held = quote(layout.roles["id"].name), quote(layout.roles["locked_until"].name)
    text = f"""\
update {table_name(layout.table)}
   set {held} = ?2
 where {held} = ?1
   and {held} < ?2
   and {key} in ({places(length)})
returning {key}"""
    return Statement(text, ("token", "new", *many("id", length)))


def still_held(layout: Layout, length: int) -> Statement:
    """Read which rows still carry a token."""
    key, held = quote(layout.roles["id"].name), quote(layout.roles["locked_until"].name)
    text = f"select {key}\n  from {table_name(layout.table)}\n where {held} = ? and {key} in ({places(length)})"
    return Statement(text, ("token", *many("id", length)))


def ack(layout: Layout, length: int) -> Statement:
    """Finish rows: delete them, or write when they were finished."""
    processed = layout.column("processed_at")
    if processed is None:
        head = f"delete from {table_name(layout.table)}"
    else:
        head = f"update {table_name(layout.table)}\n   set {quote(processed.name)} = {NOW}"
    return Statement(f"{head}\n where {_held(layout, length)}", ("token", *many("id", length)))


def drop(layout: Layout) -> Statement | None:
    """Finish one row that stays, with the reason; None where a drop is what an ack is."""
    processed, error = layout.column("processed_at"), layout.column("last_error")
    if processed is None or error is None:
        return None
    return _update_one(layout, [f"{quote(processed.name)} = {NOW}", _reason(error)])


def retry(layout: Layout) -> Statement:
    """Give one row back, due again after a delay or at once; it keeps its count of attempts."""
    error = layout.column("last_error")
    return _update_one(layout, [*_given_back(layout), *([_reason(error)] if error else [])])


def snooze(layout: Layout) -> Statement:
    """Give one row back, due again after a delay, with the count of attempts that it had."""
    attempt = layout.column("attempt")
    return _update_one(layout, [*_given_back(layout), *([f"{quote(attempt.name)} = :attempt"] if attempt else [])])


def bury(layout: Layout) -> Statement | None:
    """Move one row to another group, or copy it to another table, with the reason; None where there are no dead letters."""
    if layout.dead is not None:
        return _copy(layout, layout.dead)
    group, error = layout.column("group"), layout.column("last_error")
    if layout.dead_group is None or group is None:
        return None
    changes = [f"{quote(group.name)} = :dead_group", _free(layout), *([_reason(error)] if error else [])]
    return _update_one(layout, changes)


def remove(layout: Layout) -> Statement:
    """Delete one row that was copied to the dead letters."""
    return Statement(f"delete from {table_name(layout.table)}\n where {_held_one(layout)}", ("id", "token"))


def release(layout: Layout, length: int) -> Statement:
    """Give back rows that did not start, free at once, with the count of attempts that they had."""
    attempt = layout.column("attempt")
    changes = [_free(layout), *([f"{quote(attempt.name)} = ?2"] if attempt else [])]
    text = f"update {table_name(layout.table)}\n   set {listing(changes, 7)}\n where {_held(layout, length)}"
    return Statement(text, ("token", *(("attempt",) if attempt else ()), *many("id", length)))


def recount(layout: Layout) -> Statement | None:
    """Write one row's count of attempts, and a reason where there is one; None where neither has a column."""
    attempt, error = layout.column("attempt"), layout.column("last_error")
    changes = [*([f"{quote(attempt.name)} = :attempt"] if attempt else []), *([_reason(error)] if error else [])]
    return _update_one(layout, changes) if changes else None


def look(layout: Layout, length: int) -> Statement:
    """Read the tokens that rows carry, or carried before they were given back."""
    key, held = quote(layout.roles["id"].name), quote(layout.roles["locked_until"].name)
    text = f"""\
select {key}, strftime({FORMAT}, {held}, '+{AGED}')
  from {table_name(layout.table)}
 where {key} in ({places(length)})"""
    return Statement(text, many("id", length))


def backlog(layout: Layout) -> Statement:
    """Look whether something is due, and how much is due later."""
    table, due = table_name(layout.table), layout.column("retry_after")
    mine = unfinished_rows(layout)

    def rows(*conditions: str) -> str:
        where = " and ".join([*mine, *conditions])
        return f"select 1 from {table}{' where ' + where if where else ''}"

    lock = layout.column("locked_until")
    spelt = [times.sorts(quote(lock.name), "locked_until")] if lock else []  # what is not, no claim takes
    if due is None:
        return Statement(f"select exists ({rows(*spelt)}),\n       0", group_parameter(layout))
    at = quote(due.name)
    text = f"""\
select exists ({rows(f"{at} is null", *spelt)})
       or exists ({rows(f"{at} <= {NOW}", times.in_order(at), *spelt)}),
       (select count(*) from ({rows(f"{at} > {NOW}")} limit {LATER_LIMIT}))"""
    return Statement(text, group_parameter(layout))


def waiting(layout: Layout) -> Statement:
    """Look why a claim took nothing: rows that are due later, held, and neither; the first due time; another group."""
    table, due = table_name(layout.table), layout.column("retry_after")
    mine, processed, group = unfinished_rows(layout), layout.column("processed_at"), layout.column("group")
    at, lock = quote(due.name) if due else "null", layout.column("locked_until")
    held = f"coalesce({quote(lock.name)} > {NOW}, 0)" if lock else "0"
    spelt = " and ".join(times.sorts(quote(column.name), role) for role, column in times.columns_of(layout).items())
    where = f"\n   where {' and '.join(mine)}" if mine else ""
    others = f" where {quote(processed.name)} is null" if processed else ""
    roles = layout.order if layout.strand is None else layout.index
    elsewhere = f"(select quote({quote(group.name)}) from {table}{others} limit 1)" if group else "null"
    text = f"""\
with seen as (
  select {at} as due, coalesce({at} > {NOW}, 0) as later,
         {held} as held,
         {spelt or "1"} as spelt
    from {table}{where}
   order by {", ".join(quote(layout.roles[role].name) for role in roles)}
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then {elsewhere if layout.group is not None else "null"} end
  from summed"""
    return Statement(text, (*group_parameter(layout), "limit"))


def awaited(layout: Layout, length: int) -> Statement:
    """Look whether any of some ids is unfinished."""
    where = conjunction([*unfinished_rows(layout), f"{quote(layout.roles['id'].name)} in ({places(length)})"])
    text = f"select exists (select 1 from {table_name(layout.table)}\n where {where})"
    return Statement(text, (*group_parameter(layout), *many("id", length)))


def misspelt(layout: Layout) -> Statement | None:
    """Read rows that no claim takes, because a time of theirs cannot be compared with now, or they have no id.

    None where there can be none.
    """
    columns = [(role, quote(column.name)) for role, column in times.columns_of(layout).items()]
    at_fault = [f"iif({times.sorts(column, role)}, null, quote({column}))" for role, column in columns]
    spelt = [times.sorts(column, role) for role, column in columns]
    if layout.roles["id"].nullable:
        spelt.append(f"{quote(layout.roles['id'].name)} is not null")
    if not spelt:
        return None
    text = f"""\
select {listing([quote(layout.roles["id"].name), *at_fault], 7)}
  from {table_name(layout.table)}
 where {conjunction([*unfinished_rows(layout), f"not ({' and '.join(spelt)})"])}
 limit {times.NAMED_AT_ONCE}"""
    return Statement(text, group_parameter(layout))


def handed_out(layout: Layout) -> list[str]:
    """List what the claim gives, in the order of `Claimed`'s fields without the token; in row mode the columns follow."""
    roles, held = layout.roles, quote(layout.roles["locked_until"].name)
    key = roles.get("partition_key")
    chosen = [
        quote(roles["id"].name),
        f"coalesce({held} >= {AGED_BEFORE}, 0)" if "attempt" in roles else "0",
        quote(key.name) if key else "null",
        lane_key(key) if key and layout.by_key else "null",
        f"cast({quote(roles['group'].name)} as text)" if "group" in roles else "null",
        quote(roles["headers"].name) if "headers" in roles else "null",
        _body(roles.get("payload")),
    ]
    return [*chosen, *(map(quote, layout.table.columns) if layout.row_mode else ())]


def _body(payload: Column | None) -> str:
    """Write a payload as it is stored; JSON is always text, whatever SQLite or the user made of it."""
    if payload is None:
        return "null"
    value = quote(payload.name)
    if payload.kind in ("text", "binary", "other"):
        return value
    return f"cast({value} as text)"


def lane_key(key: Column) -> str:
    """Write a key so that two are the same value exactly where the database calls them equal."""
    value = quote(key.name)
    text = {"nocase": f"lower({value})", "trim": f"rtrim({value}, ' ')"}.get(key.equality or "", value)
    return (
        f"case typeof({value}) when 'text' then {text} "
        f"when 'real' then iif({value} = cast({value} as integer), cast({value} as integer), {value}) else {value} end"
    )


def unfinished_rows(layout: Layout) -> list[str]:
    """Write which rows are this subscription's and not finished."""
    processed, group = layout.column("processed_at"), layout.column("group")
    conditions = [f"{quote(processed.name)} is null"] if processed else []
    if group is not None and layout.group is not None:
        conditions.append(f"{quote(group.name)} = ?1")  # always the first parameter
    return conditions


def group_parameter(layout: Layout) -> tuple[str, ...]:
    """Name the parameter of `unfinished_rows`, if it has one."""
    return ("group",) if layout.group is not None and "group" in layout.roles else ()


def _held(layout: Layout, length: int) -> str:
    """Write which rows are still ours: these ids, under this token."""
    key, held = quote(layout.roles["id"].name), quote(layout.roles["locked_until"].name)
    return f"{held} = ?1\n   and {key} in ({places(length)})\nreturning {key}"


def _held_one(layout: Layout) -> str:
    return f"{quote(layout.roles['id'].name)} = :id\n   and {quote(layout.roles['locked_until'].name)} = :token"


def _update_one(layout: Layout, changes: list[str]) -> Statement:
    text = f"update {table_name(layout.table)}\n   set {listing(changes, 7)}\n where {_held_one(layout)}"
    names = ("delay", "attempt", "reason", "dead_group")
    return Statement(text, ("id", "token", *(name for name in names if f":{name}" in text)))


def _given_back(layout: Layout) -> list[str]:
    """Write when a row is due again: in its own column, or in the lease's for want of one."""
    later = f"strftime({FORMAT}, 'now', printf('+%.3f seconds', :delay))"
    held = quote(layout.roles["locked_until"].name)
    if due := layout.column("retry_after"):
        return [_free(layout), f"{quote(due.name)} = iif(:delay is null, {quote(due.name)}, {later})"]
    delayed = f"max({later}, strftime({FORMAT}, {held}, {UNIT}))"
    return [f"{held} = iif(:delay is null, strftime({FORMAT}, {held}, '-{AGED}'), {delayed})"]


def _copy(layout: Layout, dead: Table) -> Statement:
    lock = layout.roles["locked_until"].name
    special = {
        lock: f"strftime({FORMAT}, {quote(lock)}, '-{AGED}')"
    }  # free, and its tokens go on to grow when put back
    if error := layout.column("last_error"):
        special[error.name] = f"coalesce(:reason, {quote(error.name)})"
    text = f"""\
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
select {", ".join(special.get(name, quote(name)) for name in layout.copied)}
  from {table_name(layout.table)}
 where {_held_one(layout)}"""
    return Statement(text, ("id", "token", *(("reason",) if ":reason" in text else ())))


def _free(layout: Layout) -> str:
    held = quote(layout.roles["locked_until"].name)
    return f"{held} = strftime({FORMAT}, {held}, '-{AGED}')"


def _reason(error: Column) -> str:
    return f"{quote(error.name)} = coalesce(:reason, {quote(error.name)})"


def places(length: int) -> str:
    """Write the placeholders of a list."""
    return ", ".join("?" * length)


def many(name: str, length: int) -> tuple[str, ...]:
    """Name the parameters of a list."""
    return (f"{name} x {length}",) if length else ()
