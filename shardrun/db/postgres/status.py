"""Write the statements that count a queue's rows on PostgreSQL, text only: none reads more rows than its bounds say.

Along the claim's index the due rows of one priority lie side by side. So the counts step from one priority to the next
(each step is one look into the index), and read a bounded stretch of each. Where no index serves the claim, they look at
a bounded number of rows at one end of the table instead.

Every bounded read names the claim's order: the server must then go by its index. Left to choose, it may hope to meet enough
rows on another path, and read the whole table where there are few.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardrun.db import buried
from shardrun.db.operate import LEVELS, LOOKED, MOST, NAMED, STRANDS
from shardrun.db.postgres.parts import (
    AGED,
    AGED_BEFORE,
    claim_order,
    group_parameter,
    identity,
    interval,
    now_of,
    nulls,
    quote,
    table_name,
)
from shardrun.db.postgres.parts import unfinished_rows as unfinished
from shardrun.db.statement import Statement
from shardrun.db.table import Layout

CLOCK = "clock as materialized (\n  select clock_timestamp() as now\n)"


def counts(layout: Layout, looked: int = LOOKED, most: int = MOST) -> Statement:
    """Count rows that are due (those in work among them) and later, along the claim's index; the oldest due time's age."""
    due = layout.column("retry_after")
    if due is None:
        return _without_due_times(layout, looked)
    at, now = f"c.{quote(due.name)}", now_of(due)
    past = [f"{_held(layout)} as held", f"{at} as due"]
    text = f"""\
with recursive {CLOCK}, {_priorities(layout)}undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from ({_stretches(layout, past[:1], f"{at} is null", looked)}) as rows
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from ({_stretches(layout, past, f"{at} <= {now}", looked)}) as rows
), later as (
  select count(*) as seen
    from ({_stretches(layout, ["1"], f"{at} > {now}", most + 1)}) as rows
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = {looked} or past.seen = {looked} or {_all_levels(layout)},
       {_all_levels(layout)},
       extract(epoch from {now} - past.oldest)::float8
  from undated, past, later"""
    return Statement(text, group_parameter(layout))


def counts_by_id(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among rows at one end of the table: the newest where finished rows stay, else the oldest."""
    key = quote(layout.roles["id"].name)
    end = " desc" if "processed_at" in layout.roles else ""
    return _in_window(layout, f"select * from {table_name(layout.table)} order by {key}{end} limit {looked}", looked)


def counts_in_order(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among the first rows of the claim's index, where it goes from group to group, or from key to key."""
    mine, order = [*unfinished(layout, "c"), "true"], _in_order(layout, layout.index)
    rows = f"select c.* from {table_name(layout.table)} as c where {_and(*mine)} order by {order} limit {looked}"
    return _in_window(layout, rows, looked)


def blocked(layout: Layout, visited: int = STRANDS, named: int = NAMED) -> Statement:
    """Find groups or keys whose first row that has begun and is put off keeps them waiting, going from one to the next."""
    roles, mine = layout.roles, unfinished(layout, "c")
    strand, key, attempt, due = (
        f"{quote(roles[r].name)}" for r in (str(layout.strand), "id", "attempt", "retry_after")
    )
    head = f"select c.{strand} as strand from {table_name(layout.table)} as c where"
    now = now_of(roles["retry_after"])
    put_off = [f"c.{strand} = visited.strand", f"c.{attempt} > 0", f"c.{due} > {now}", f"not {_held(layout)}"]
    error = f"b.{quote(roles['last_error'].name)}::text" if "last_error" in roles else "null::text"
    text = f"""\
with recursive {CLOCK}, strands as (
  ({head} {_and(*mine, f"c.{strand} is not null")} order by c.{strand} limit 1)
  union all
  select ({head} {_and(*mine, f"c.{strand} > strands.strand")} order by c.{strand} limit 1)
    from strands
   where strands.strand is not null
), visited as materialized (
  select strand from strands where strand is not null limit {visited}
), blocking as materialized (
  select first.id
    from visited
    left join lateral (
      select c.{key} as id
        from {table_name(layout.table)} as c
       where {_and(*mine, *put_off)}
       order by {_in_order(layout, ("attempt", *layout.strand_order))}
       limit 1
    ) as first on true
), seen as (
  select count(id) as number, count(*) = {visited} as more from blocking
)
select seen.number, seen.more, b.{strand}::text, {identity(f"b.{key}", layout)}, b.{attempt}::bigint,
       extract(epoch from b.{due} - {now})::float8, {_tried(layout)}, {error}
  from seen
  left join blocking on blocking.id is not null
  left join {table_name(layout.table)} as b on b.{key} = blocking.id
 order by b.{attempt} desc, b.{due} desc, b.{key}
 limit {named}"""
    return Statement(text, group_parameter(layout))


def _in_order(layout: Layout, roles: Sequence[str]) -> str:
    return ", ".join(f"c.{quote(layout.roles[role].name)}{nulls(role)}" for role in roles)


def _tried(layout: Layout) -> str:
    """Write when a row was last known to be in work: its last lease began then, or was extended."""
    lock = layout.column("locked_until")
    if lock is None:
        return "null::text"
    held, utc = f"b.{quote(lock.name)}", " at time zone 'utc'" if lock.kind == "timestamptz" else ""
    began = f"({held} + {AGED} - {interval(layout.lease)}){utc}"
    return f"case when {held} < {AGED_BEFORE} then to_char({began}, 'YYYY-MM-DD HH24:MI:SS') end"


def _in_window(layout: Layout, rows: str, looked: int) -> Statement:
    """Count the rows of a subscription among some."""
    due, mine = layout.column("retry_after"), [*unfinished(layout, "c"), "true"]
    is_due, is_later, oldest = [], "false", "null"
    if due is not None:
        at, now = f"c.{quote(due.name)}", now_of(due)
        is_due, is_later = [f"({at} is null or {at} <= {now})"], f"{at} > {now}"
        oldest = f"extract(epoch from {now} - min({at}) filter (where {_and(*mine, *is_due)} and not {_held(layout)}))"
    text = f"""\
with {CLOCK}
select count(*) filter (where {_and(*mine, *is_due)}),
       count(*) filter (where {_and(*mine, *is_due, _held(layout))}),
       count(*) filter (where {_and(*mine, is_later)}),
       count(*) = {looked},
       count(*) = {looked},
       ({oldest})::float8
  from ({rows}) as c"""
    return Statement(text, group_parameter(layout))


def dead(layout: Layout, indexed: bool, looked: int = LOOKED, most: int = MOST) -> Statement | None:
    """Count dead letters, and tell whether the count stopped at its bound; None where there are none."""
    if layout.dead is not None:
        table = table_name(layout.dead)
        group = buried.group_among(layout, layout.dead)
        if group is None:
            return Statement(_counted(f"select from {table} limit {most + 1}", most + 1))
        return Statement(_window(table, "", [f"c.{quote(group.name)} = %(group)s"], looked), ("group",))
    group = layout.column("group")
    if layout.dead_group is None or group is None:
        return None
    processed, table = layout.column("processed_at"), table_name(layout.table)
    mine = [f"c.{quote(processed.name)} is null"] if processed else []
    mine.append(f"c.{quote(group.name)} = %(dead_group)s")
    if indexed:
        text = _counted(
            f"select from {table} as c where {_and(*mine)} order by {_along(layout)} limit {most + 1}", most + 1
        )
    else:
        end = f" order by {quote(layout.roles['id'].name)}{' desc' if processed else ''}"
        text = _window(table, end, mine, looked)
    return Statement(text, ("dead_group",))


def _along(layout: Layout) -> str:
    """Write the order that the claim's index has within a group."""
    return claim_order(layout) if layout.strand is None else _in_order(layout, layout.index)


def _without_due_times(layout: Layout, looked: int) -> Statement:
    where = f"\n           where {_and(*mine)}" if (mine := unfinished(layout, "c")) else ""
    text = f"""\
with {CLOCK}
select count(*), count(*) filter (where held), 0, count(*) = {looked}, false, null::float8
  from (select {_held(layout)} as held
          from {table_name(layout.table)} as c{where}
         order by {claim_order(layout)}
         limit {looked}) as rows"""
    return Statement(text, group_parameter(layout))


def _priorities(layout: Layout) -> str:
    """Write each priority once, in order, by jumps along the index.

    A group is given as a range: of an equal value the server knows that it needs no order, and could go by an index in
    which other groups lie between.
    """
    priority, group, processed = layout.column("priority"), layout.column("group"), layout.column("processed_at")
    if priority is None:
        return ""
    name, order = f"c.{quote(priority.name)}", claim_order(layout)
    mine = [f"c.{quote(processed.name)} is null"] if processed else []
    first, following = f"{name} is not null", f"{name} > steps.level"
    if group is not None and layout.group is not None:
        its = f"c.{quote(group.name)}"
        order = f"{its}, {order}"
        first = f"{first} and {its} >= %(group)s and {its} <= %(group)s"
        following = f"({its}, {name}) > (%(group)s, steps.level) and {its} <= %(group)s"
    head = f"select {name} as level from {table_name(layout.table)} as c where"
    return f"""\
steps as (
  ({head} {_and(*mine, first)} order by {order} limit 1)
  union all
  select ({head} {_and(*mine, following)} order by {order} limit 1) from steps where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit {LEVELS}
), """


def _all_levels(layout: Layout) -> str:
    return f"(select count(*) = {LEVELS} from priorities)" if "priority" in layout.roles else "false"


def _stretches(layout: Layout, chosen: list[str], condition: str, limit: int) -> str:
    """Write the rows of a condition on the due time, in each priority, up to a limit."""
    limited = f"order by {claim_order(layout)} limit {limit}"
    priority, table = layout.column("priority"), table_name(layout.table)
    head = f"select {', '.join(chosen)} from {table} as c"
    mine = [*unfinished(layout, "c"), condition]
    if priority is None:
        return f"{head} where {_and(*mine)} {limited}"
    name = f"c.{quote(priority.name)}"
    each = f"{head} where {_and(*mine, f'{name} = priorities.level')} {limited}"
    parts = [f"select rows.* from priorities cross join lateral ({each}) as rows"]
    if priority.nullable:
        parts.append(f"({head} where {_and(*mine, f'{name} is null')} {limited})")
    return "\n          union all\n          ".join(parts) + f"\n           limit {limit}"


def _held(layout: Layout) -> str:
    """Write whether a row is held; an empty lease column is free."""
    lock = layout.column("locked_until")
    return "false" if lock is None else f"coalesce(c.{quote(lock.name)} > {now_of(lock)}, false)"


def _counted(rows: str, limit: int) -> str:
    return f"select count(*), count(*) = {limit}\n  from ({rows}) as rows"


def _window(table: str, order: str, conditions: list[str], looked: int) -> str:
    return f"""\
select count(*) filter (where {_and(*conditions)}), count(*) = {looked}
  from (select * from {table}{order} limit {looked}) as c"""


def _and(*conditions: str) -> str:
    return " and ".join(conditions)


SESSIONS = """\
select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       count(*) filter (where pid <> pg_backend_pid()),
       coalesce(array_agg(application_name) filter (where named), '{}'),
       coalesce(array_agg(application_name) filter (where named and datname = current_database()), '{}')
  from (select application_name, datname, pid, application_name like 'shardrun %' and pid <> pg_backend_pid() as named
          from pg_stat_activity
         where usename is not null
           and datname is not null
           and coalesce(backend_type, 'client backend') = 'client backend') as sessions"""
"""Read the limit, the sessions in use and shardrun's own; the kind of other roles' sessions is hidden."""
