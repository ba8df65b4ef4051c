"""Write the statements that count a queue's rows on MySQL and MariaDB, text only: none reads more rows than its bounds say.

Along the claim's index the due rows of one priority lie side by side. So the counts step from one priority to the next,
a statement each (these servers can look into an index by values that they are given, and not by those of another row),
and read a bounded stretch of each. Where no index serves the claim, they look at a bounded number of rows at one end of the
table instead.
"""

from __future__ import annotations

from shardrun.db import buried
from shardrun.db.mysql.ddl import claim_index
from shardrun.db.mysql.parts import (
    AGED_BEFORE,
    NOW,
    claim_order,
    column,
    group_parameter,
    identity_of,
    not_aged,
    quote,
    table_name,
    unfinished_rows,
)
from shardrun.db.operate import LOOKED, MOST, NAMED
from shardrun.db.statement import Statement
from shardrun.db.table import Layout

LIMITS = ("undated", "past", "later")
"""Parameters: how many rows of each stretch may still be looked at."""


def counts(layout: Layout) -> Statement:
    """Count one priority's rows: due without a time, and due by now (those in work apart), and later; the oldest's age."""
    level = [f"{column(layout, 'priority', 'c')} <=> %(level)s"] if "priority" in layout.roles else []
    at = column(layout, "retry_after", "c")
    stretches = (
        _stretch(layout, "undated", [*level, f"{at} is null"]),
        _stretch(layout, "past", [*level, f"{at} <= {NOW}"]),
        _stretch(layout, "later", [*level, f"{at} > {NOW}"]),
    )
    tables = ",\n       ".join(stretches)
    text = f"""\
select undated.seen, undated.held, past.seen, past.held, later.seen, timestampdiff(microsecond, past.oldest, {NOW}) / 1e6
  from {tables}"""
    return Statement(text, (*group_parameter(layout), *(("level",) if level else ()), *LIMITS))


def _stretch(layout: Layout, name: str, conditions: list[str]) -> str:
    due = column(layout, "retry_after", "c")
    # Rows without a due time need no order among each other, and MariaDB would sort them all to give them one.
    order = "" if name == "undated" else f"order by {claim_order(layout, 'c')} "
    rows = (
        f"select {held(layout)} as held, {due} as due\n"
        f"          from {_along(layout)}\n"
        f"         where {_and(*unfinished_rows(layout, 'c'), *conditions)}\n"
        f"         {order}limit %({name})s"
    )
    return (
        f"(select count(*) as seen, cast(ifnull(sum(held), 0) as signed) as held, min(if(held, null, due)) as oldest\n"
        f"  from ({rows}) as rows_of_{name}) as {name}"
    )


def next_level(layout: Layout) -> Statement | None:
    """Read the priority after a level, or the first one where that is NULL; one look into the index."""
    if "priority" not in layout.roles:
        return None
    name = column(layout, "priority", "c")
    text = f"""\
select {name}
  from {_along(layout)}
 where {_and(*unfinished_rows(layout, "c"), f"{name} > %(level)s")}
 order by {claim_order(layout, "c")}
 limit 1"""
    return Statement(text, (*group_parameter(layout), "level"))


def first_level(layout: Layout) -> Statement:
    """Read the first priority that is one."""
    name = column(layout, "priority", "c")
    text = f"""\
select {name}
  from {_along(layout)}
 where {_and(*unfinished_rows(layout, "c"), f"{name} is not null")}
 order by {claim_order(layout, "c")}
 limit 1"""
    return Statement(text, group_parameter(layout))


def counts_without_due_times(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count rows, those in work apart, where none can be later."""
    text = f"""\
select count(*), cast(ifnull(sum(held), 0) as signed)
  from (select {held(layout)} as held
          from {_along(layout)}
         where {_and(*unfinished_rows(layout, "c"), "true")}
         order by {claim_order(layout, "c")}
         limit {looked}) as looked_at"""
    return Statement(text, group_parameter(layout))


def counts_by_id(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among rows at one end of the table: the newest where finished rows stay, else the oldest."""
    end = " desc" if "processed_at" in layout.roles else ""
    return _in_window(
        layout, f"from {table_name(layout.table)} as c\n         order by {column(layout, 'id', 'c')}{end}", looked
    )


def counts_in_order(layout: Layout, looked: int = LOOKED) -> Statement:
    """Count the same among the first rows of the claim's index, where it goes from group to group, or from key to key."""
    return _in_window(layout, f"from {_in_order(layout)}", looked)


def blocked(layout: Layout, looked: int = LOOKED, named: int = NAMED) -> Statement:
    """Find groups or keys whose first row that has begun and is put off keeps them waiting, among the index's first rows.

    These servers go from one group to the next only by a statement each: so it is rows that are looked at.
    """
    strand, key, attempt, due = (column(layout, r, "c") for r in (str(layout.strand), "id", "attempt", "retry_after"))
    is_blocking = f"ifnull({strand} is not null and {attempt} > 0 and {due} > {NOW} and not {held(layout)}, false)"
    order = ", ".join(f"o{number}" for number, _ in enumerate(layout.strand_order))
    chosen = [f"{strand} as strand", f"{key} as id", f"{attempt} as begun", f"{is_blocking} as is_blocking"]
    chosen += [f"{column(layout, role, 'c')} as o{number}" for number, role in enumerate(layout.strand_order)]
    error = column(layout, "last_error", "b") if "last_error" in layout.roles else "null"
    shown = [
        f"cast({column(layout, str(layout.strand), 'b')} as char)",
        identity_of(layout, "b"),
        f"cast({column(layout, 'attempt', 'b')} as signed)",
        f"timestampdiff(microsecond, {NOW}, {column(layout, 'retry_after', 'b')}) / 1e6",
        _tried(layout),
        error,
    ]
    by = column(layout, "id", "b")
    text = f"""\
select count({by}) over (), seen.more, {", ".join(shown)}
  from (select count(*) = {looked} as more
          from (select 1 as one from {_in_order(layout)} limit {looked}) as walked) as seen
  left join (select id
               from (select id, row_number() over (partition by strand order by begun, {order}) as place
                       from (select {", ".join(chosen)} from {_in_order(layout)} limit {looked}) as looked
                      where is_blocking) as rows_of_strands
              where place = 1) as blocking on true
  left join {table_name(layout.table)} as b on {by} = blocking.id
 order by {column(layout, "attempt", "b")} desc, {column(layout, "retry_after", "b")} desc, {by}
 limit {named}"""
    return Statement(text, group_parameter(layout))


def _in_order(layout: Layout) -> str:
    """Write the rows of a subscription along the claim's index."""
    order = ", ".join(column(layout, role, "c") for role in layout.index)
    return f"{_along(layout)}\n         where {_and(*unfinished_rows(layout, 'c'), 'true')}\n         order by {order}"


def _tried(layout: Layout) -> str:
    """Write when a row was last known to be in work: its last lease began then, or was extended."""
    lock = layout.column("locked_until")
    if lock is None:
        return "null"
    began = f"{not_aged(lock, 'b')} - interval {round(layout.lease * 1_000_000)} microsecond"
    shown = f"date_format({began}, '%%Y-%%m-%%d %%H:%%i:%%s')"
    return f"case when b.{quote(lock.name)} < {AGED_BEFORE[lock.kind]} then {shown} end"


def _in_window(layout: Layout, rows: str, looked: int) -> Statement:
    """Count the rows of a subscription among some."""
    mine = _and(*unfinished_rows(layout, "c"), "true")
    is_due, is_later, oldest = "true", "false", "null"
    if "retry_after" in layout.roles:
        at = column(layout, "retry_after", "c")
        is_due, is_later = f"({at} is null or {at} <= {NOW})", f"ifnull({at} > {NOW}, false)"
        oldest = f"if({is_due} and not {held(layout)}, {at}, null)"
    text = f"""\
select cast(ifnull(sum(due), 0) as signed),
       cast(ifnull(sum(due and held), 0) as signed),
       cast(ifnull(sum(later), 0) as signed),
       count(*),
       timestampdiff(microsecond, min(if(mine, since, null)), {NOW}) / 1e6
  from (select {mine} as mine, {mine} and {is_due} as due, {mine} and {is_later} as later, {held(layout)} as held,
               {oldest} as since
          {rows}
         limit {looked}) as looked_at"""
    return Statement(text, group_parameter(layout))


def dead(layout: Layout, indexed: bool, looked: int = LOOKED, most: int = MOST) -> Statement | None:
    """Count dead letters, and tell whether the count stopped at its bound; None where there are none."""
    if layout.dead is not None:
        table = table_name(layout.dead)
        group = buried.group_among(layout, layout.dead)
        if group is None:
            return Statement(_counted(f"select 1 as one from {table} limit {most + 1}", most + 1))
        return Statement(_window(table, "", f"c.{quote(group.name)} = %(group)s", looked), ("group",))
    group = layout.column("group")
    if layout.dead_group is None or group is None:
        return None
    mine = [f"{column(layout, 'processed_at', 'c')} is null"] if "processed_at" in layout.roles else []
    condition = _and(*mine, f"c.{quote(group.name)} = %(dead_group)s")
    if indexed and layout.group is not None:
        text = _counted(f"select 1 as one from {_along(layout)} where {condition} limit {most + 1}", most + 1)
    else:
        end = " desc" if mine else ""
        order = f" order by {column(layout, 'id', 'c')}{end}"
        text = _window(table_name(layout.table), order, condition, looked)
    return Statement(text, ("dead_group",))


def held(layout: Layout) -> str:
    """Write whether a row is held; an empty lease column is free."""
    return f"ifnull({column(layout, 'locked_until', 'c')} > {NOW}, 0)" if "locked_until" in layout.roles else "0"


def _along(layout: Layout) -> str:
    """Name the table where its rows are walked in the claim's order: left to choose, the server may sort all of them."""
    return f"{table_name(layout.table)} as c force index ({quote(claim_index(layout) or 'PRIMARY')})"


def _counted(rows: str, limit: int) -> str:
    return f"select count(*), count(*) = {limit}\n  from ({rows}) as looked_at"


def _window(table: str, order: str, condition: str, looked: int) -> str:
    return f"""\
select cast(ifnull(sum(found), 0) as signed), count(*) = {looked}
  from (select {condition} as found from {table} as c{order} limit {looked}) as looked_at"""


def _and(*conditions: str) -> str:
    return " and ".join(conditions)
