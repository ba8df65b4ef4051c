"""Write the statements that count a queue's rows on SQLite, text only: none reads more rows than its bounds say.

Along the claim's index the due rows of one priority lie side by side. So the counts step from one priority to the next
(each step is one look into the index), and read a bounded stretch of each. Where no index serves the claim, they look at
a bounded number of rows at one end of the table instead.
"""

from __future__ import annotations

from shardrun.db import buried
from shardrun.db.operate import LEVELS, LOOKED, MOST, NAMED, STRANDS
from shardrun.db.sqlite.sql import AGED, AGED_BEFORE, FORMAT, NOW, group_parameter, quote, table_name, unfinished_rows
from shardrun.db.statement import Statement
from shardrun.db.table import Layout


def counts(layout: Layout, looked: int = LOOKED, most: int = MOST) -> Statement:
    """Count rows that are due (those in work among them) and later, along the claim's index; the oldest due time's age."""
    due = layout.column("retry_after")
    if due is None:
        return _without_due_times(layout, looked)
    at = quote(due.name)
    past = [f"{_held(layout)} as held", f"{at} as due"]
    text = f"""\
with recursive {_priorities(layout)}undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from ({_stretches(layout, past[:1], f"{at} is null", looked)})
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from ({_stretches(layout, past, f"{at} <= {NOW}", looked)})
), later as (
  select count(*) as seen
    from ({_stretches(layout, ["1"], f"{at} > {NOW}", most + 1)})
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = {looked} or past.seen = {looked} or {_all_levels(layout)},
       {_all_levels(layout)},
       {_age("past.oldest")}
  from undated, past, later"""
    return Statement(text, group_parameter(layout))


def counts_by_id(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among rows at one end of the table: the newest where finished rows stay, else the oldest."""
    key = quote(layout.roles["id"].name)
    end = " desc" if "processed_at" in layout.roles else ""
    return _in_window(layout, f"select * from {table_name(layout.table)} order by {key}{end} limit {looked}", looked)


def counts_in_order(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among the first rows of the claim's index, where it goes from group to group, or from key to key."""
    mine, order = [*unfinished_rows(layout), "true"], ", ".join(quote(layout.roles[role].name) for role in layout.index)
    rows = f"select * from {table_name(layout.table)} where {_and(*mine)} order by {order} limit {looked}"
    return _in_window(layout, rows, looked)


def blocked(layout: Layout, visited: int = STRANDS, named: int = NAMED) -> Statement:
    """Find groups or keys whose first row that has begun and is put off keeps them waiting, going from one to the next."""
    roles, table = layout.roles, table_name(layout.table)
    strand, key, attempt, due = (quote(roles[r].name) for r in (str(layout.strand), "id", "attempt", "retry_after"))
    mine, order = unfinished_rows(layout), ", ".join(quote(roles[role].name) for role in layout.strand_order)
    put_off = [f"{strand} = strands.strand", f"{attempt} > 0", f"{due} > {NOW}", f"not {_held(layout)}"]
    error = f"b.{quote(roles['last_error'].name)}" if "last_error" in roles else "null"
    text = f"""\
with recursive strands (strand) as (
  select * from (select {strand} from {table} where {_and(*mine, f"{strand} is not null")} order by {strand} limit 1)
  union all
  select (select {strand} from {table} where {_and(*mine, f"{strand} > strands.strand")} order by {strand} limit 1)
    from strands
   where strands.strand is not null
   limit {visited}
), blocking (id) as materialized (
  select (select {key} from {table} where {_and(*mine, *put_off)} order by {attempt}, {order} limit 1)
    from strands
   where strands.strand is not null
), seen as (
  select count(id) as number, count(*) = {visited} as more from blocking
)
select seen.number, seen.more, cast(b.{strand} as text), b.{key}, cast(b.{attempt} as integer),
       (julianday(b.{due}) - julianday('now')) * 86400.0, {_tried(layout)}, {error}
  from seen
  left join blocking on blocking.id is not null
  left join {table} as b on b.{key} = blocking.id
 order by b.{attempt} desc, b.{due} desc, b.{key}
 limit {named}"""
    return Statement(text, group_parameter(layout))


def _tried(layout: Layout) -> str:
    """Write when a row was last known to be in work: its last lease began then, or was extended."""
    lock = layout.column("locked_until")
    if lock is None:
        return "null"
    held = f"b.{quote(lock.name)}"
    began = f"strftime({FORMAT}, {held}, '+{AGED}', '-{layout.lease:.3f} seconds')"
    return f"case when {held} < {AGED_BEFORE} then substr({began}, 1, 19) end"


def _in_window(layout: Layout, rows: str, looked: int) -> Statement:
    """Count the rows of a subscription among some."""
    due, mine = layout.column("retry_after"), [*unfinished_rows(layout), "true"]
    is_due, is_later, oldest = [], "false", "null"
    if due is not None:
        at = quote(due.name)
        is_due, is_later = [f"({at} is null or {at} <= {NOW})"], f"{at} > {NOW}"
        oldest = _age(f"min({at}) filter (where {_and(*mine, *is_due)} and not {_held(layout)})")
    text = f"""\
select count(*) filter (where {_and(*mine, *is_due)}),
       count(*) filter (where {_and(*mine, *is_due, _held(layout))}),
       count(*) filter (where {_and(*mine, is_later)}),
       count(*) = {looked},
       count(*) = {looked},
       {oldest}
  from ({rows})"""
    return Statement(text, group_parameter(layout))


def dead(layout: Layout, indexed: bool, looked: int = LOOKED, most: int = MOST) -> Statement | None:
    """Count dead letters, and tell whether the count stopped at its bound; None where there are none."""
    if layout.dead is not None:
        table = table_name(layout.dead)
        group = buried.group_among(layout, layout.dead)
        if group is None:
            return Statement(_counted(f"select 1 from {table} limit {most + 1}", most + 1))
        return Statement(_window(table, "", [f"{quote(group.name)} = ?1"], looked), ("group",))
    group = layout.column("group")
    if layout.dead_group is None or group is None:
        return None
    processed, table = layout.column("processed_at"), table_name(layout.table)
    mine = [f"{quote(processed.name)} is null"] if processed else []
    mine.append(f"{quote(group.name)} = ?1")
    if indexed:
        text = _counted(f"select 1 from {table} where {_and(*mine)} limit {most + 1}", most + 1)
    else:
        end = f" order by {quote(layout.roles['id'].name)}{' desc' if processed else ''}"
        text = _window(table, end, mine, looked)
    return Statement(text, ("dead_group",))


def _without_due_times(layout: Layout, looked: int) -> Statement:
    where = f"\n         where {_and(*mine)}" if (mine := unfinished_rows(layout)) else ""
    text = f"""\
select count(*), count(*) filter (where held), 0, count(*) = {looked}, 0, null
  from (select {_held(layout)} as held
          from {table_name(layout.table)}{where}
         order by {", ".join(quote(layout.roles[role].name) for role in layout.order)}
         limit {looked})"""
    return Statement(text, group_parameter(layout))


def _priorities(layout: Layout) -> str:
    """Write each priority once, in order, by jumps along the index."""
    priority = layout.column("priority")
    if priority is None:
        return ""
    name, table, mine = quote(priority.name), table_name(layout.table), unfinished_rows(layout)
    return f"""\
steps (level) as (
  select min({name}) from {table} where {_and(*mine, "true")}
  union all
  select (select min({name}) from {table} where {_and(*mine, f"{name} > steps.level")})
    from steps
   where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit {LEVELS}
), """


def _all_levels(layout: Layout) -> str:
    return f"(select count(*) = {LEVELS} from priorities)" if "priority" in layout.roles else "0"


def _stretches(layout: Layout, chosen: list[str], condition: str, limit: int) -> str:
    """Write the rows of a condition on the due time, in each priority, up to a limit."""
    priority, table = layout.column("priority"), table_name(layout.table)
    head = f"select {', '.join(chosen)} from"
    mine = [*unfinished_rows(layout), condition]
    if priority is None:
        return f"{head} {table} where {_and(*mine)} limit {limit}"
    name = quote(priority.name)
    parts = [f"{head} priorities cross join {table} where {_and(*mine, f'{name} = priorities.level')}"]
    if priority.nullable:
        parts.append(f"{head} {table} where {_and(*mine, f'{name} is null')}")
    return "\n          union all\n          ".join(parts) + f"\n           limit {limit}"


def _held(layout: Layout) -> str:
    """Write whether a row is held; an empty lease column is free."""
    lock = layout.column("locked_until")
    return "0" if lock is None else f"coalesce({quote(lock.name)} > {NOW}, 0)"


def _age(time: str) -> str:
    """Write the seconds since a time."""
    return f"(julianday('now') - julianday({time})) * 86400.0"


def _counted(rows: str, limit: int) -> str:
    return f"select count(*), count(*) = {limit}\n  from ({rows})"


def _window(table: str, order: str, conditions: list[str], looked: int) -> str:
    return f"""\
select count(*) filter (where {_and(*conditions)}), count(*) = {looked}
  from (select * from {table}{order} limit {looked})"""


def _and(*conditions: str) -> str:
    return " and ".join(conditions)
