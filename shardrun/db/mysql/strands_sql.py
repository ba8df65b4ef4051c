"""Write the statements of claims that go by strands (see db/strands.py) on MySQL and MariaDB.

Neither has LATERAL, and a range that depends on another row is read from the index's beginning: only what is compared for
equality is looked up. So a look goes from pairs of a strand and a count of attempts, of which a strand has few (0, and the one
of its begun row): a loose scan of the index finds the next pairs behind a strand, one look-up each, and all that is asked of a
pair is a look-up by both. Where the server's statistics say that strands are short it reads them through instead, so that a
long one among them is read whole, once in each turn; strands that are asked for by name never are.

Nothing here locks but `sql.take` and `locks_sql.hold`, by id (R10).
"""

from __future__ import annotations

import hashlib

from shardrun.db.mysql import ddl
from shardrun.db.mysql.parts import (
    NOW,
    by_id,
    column,
    free_rows,
    group_parameter,
    identity_of,
    lane_key,
    quote,
    unfinished_rows,
)
from shardrun.db.mysql.sql import in_claim_order
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout
from shardrun.queue import Form

PREFIX = 64
"""Rows of one key that a claim under `key_scope="cluster"` looks at. Larger: more rows of a key in one claim. Smaller: less
read again at each claim of a key of which this replica holds many."""

UNLOCK = Statement("do release_all_locks()")
"""Let go of all guards: a connection that claims, or that holds a row of a FIFO group, has no other named locks."""


def strand_column(layout: Layout) -> Column:
    """Find the column whose equal values make a strand."""
    return layout.roles[str(layout.strand)]


def walk(layout: Layout, after: bool, is_free: bool = False) -> Statement:
    """Look at pairs of the next strands, from the first or behind one."""
    strand = column(layout, str(layout.strand), "c")
    behind = f"{strand} > %(after)s" if after else f"{strand} is not null"
    names = dict.fromkeys([*_fixed(layout), strand, column(layout, "attempt", "c")])
    text = f"""\
select distinct {", ".join(names)}
            from {in_claim_order(layout, "c", is_free)}
           where {conjunction([*unfinished_rows(layout, "c"), behind], 11)}
           order by {", ".join(names)}
           limit %(limit)s"""
    return _of_pairs(layout, text, is_free, ("after",) if after else ())


def these(layout: Layout, count: int, is_free: bool = False) -> Statement:
    """Look at pairs of so many strands: `strands` and, one by one, `strand0`, `strand1` and so on are their values.

    A strand's begun rows are read, all of them; of the others, which may be any number, one tells that there are some.
    """
    strand, attempt = column(layout, str(layout.strand), "c"), column(layout, "attempt", "c")
    chosen, table = f"{strand}, {attempt}", in_claim_order(layout, "c", is_free)
    rows = [
        f"select distinct {chosen} from {table}\n            where {_all(layout, [f'{strand} in %(strands)s', f'{attempt} > 0'])}"
    ]
    kinds = [f"{attempt} = 0", *([f"{attempt} is null"] if layout.roles["attempt"].nullable else [])]
    rows += [
        f"select {chosen} from {table}\n            where {_all(layout, [f'{strand} = %(strand{place})s', kind])} limit 1"
        for place in range(count)
        for kind in kinds
    ]
    text = "\n           union all ".join(f"({row})" for row in rows)
    names = (f"strand{place}" for place in range(count))
    return _of_pairs(layout, text, is_free, ("strands", *names))


def prefix(layout: Layout, is_free: bool = False) -> Statement:
    """Read the first unfinished rows of a key, in order, and which of them are free and due."""
    attempt, order = column(layout, "attempt", "c"), [role for role in layout.strand_order if role != "id"]
    free = conjunction(_free(layout, "c"), 20) or "true"
    begun = f"1 + ifnull({column(layout, 'locked_until', 'c')} > {NOW}, 0)"  # those that are held come first
    kinds = [(begun, f"{attempt} > 0"), ("0", f"{attempt} = 0")]
    kinds += [("0", f"{attempt} is null")] if layout.roles["attempt"].nullable else []
    chosen = [f"{identity_of(layout, 'c')} as id", *(f"{column(layout, role, 'c')} as {role}" for role in order)]
    rows = [
        f"""(select {listing([*chosen, f"{begun} as begun", f"({free}) as is_free"], 16)}
           from {in_claim_order(layout, "c", is_free)}
          where {_all(layout, [f"{column(layout, str(layout.strand), 'c')} = %(strand)s", kind])}
          order by {", ".join(column(layout, role, "c") for role in layout.strand_order)}
          limit {PREFIX})"""
        for begun, kind in kinds
    ]
    together = "\n        union all ".join(rows)
    text = f"""\
select x.id, x.is_free
  from ({together}) as x
 order by {", ".join(f"x.{name}" for name in ("begun desc", *order, "id"))}
 limit {PREFIX}"""
    return Statement(text, (*group_parameter(layout), "strand"))


def strands_of(layout: Layout) -> Statement:
    """Read of which strands some rows are."""
    text = f"""\
select {identity_of(layout, "t")}, {lane_key(strand_column(layout), "t")}
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s"""
    return Statement(text, ("ids",))


def guard(count: int) -> Statement:
    """Lock those of some names that nobody holds."""
    names = [f"name{place}" for place in range(count)]
    return Statement(f"select {', '.join(f'get_lock(%({name})s, 0)' for name in names)}", tuple(names))


def guard_of(layout: Layout) -> Statement:
    """Read the name of the guard of a row's strand; NULL where it has none."""
    strand = column(layout, str(layout.strand), "t")
    text = f"""\
select if({strand} is null, null, {_guard(layout, "t")})
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} = %(id)s"""
    return Statement(text, ("id",))


def _of_pairs(layout: Layout, pairs: str, is_free: bool, more: tuple[str, ...]) -> Statement:
    """Look at strands by their pairs: a row for each, in the order of strands, and in each in the order of its rows.

    Of each: the strand's value, its canonical form, its guard's name; whether it is held; in how many seconds the last
    of its begun rows falls due; the first row of the pair that is free or, under `key_scope="cluster"`, not held by this
    replica; whether that is held by another; in how many seconds it falls due.
    """
    strand, due, key = strand_column(layout), layout.column("retry_after"), column(layout, "id", "f")
    at = f"timestampdiff(microsecond, {NOW}, {{}}) / 1e6"
    chosen = [
        f"w.{quote(strand.name)}",
        lane_key(strand, "w"),
        _guard(layout, "w"),
        _is_held(layout) if layout.form is Form.ROW_LOCK else "w.held",
        at.format("w.last_due"),
        identity_of(layout, "f"),
        f"ifnull({column(layout, 'locked_until', 'f')} > {NOW}, 0)" if "locked_until" in layout.roles else "0",
        at.format(f"f.{quote(due.name)}") if due else "null",
    ]
    order = [f"w.{quote(strand.name)}", "w.begun desc", *(column(layout, role, "f") for role in layout.strand_order)]
    text = f"""\
select {listing(chosen, 7)}
  from (select d.{quote(strand.name)}, ifnull({column(layout, "attempt", "d")} > 0, 0) as begun,
               {listing(_asked(layout, is_free), 15)}
          from ({pairs}) as d
         limit %(limit)s) as w
  left join {by_id(layout, "f")}
    on {key} = w.head
 order by {", ".join(order)}"""
    return Statement(text, (*more, *group_parameter(layout), *(() if layout.is_fifo else ("held",)), "limit"))


def _asked(layout: Layout, is_free: bool) -> list[str]:
    """Ask of a pair what a look wants to know."""
    begun, due = f"{column(layout, 'attempt', 'd')} > 0", layout.column("retry_after")
    pair = [
        *unfinished_rows(layout, "b"),
        f"{column(layout, str(layout.strand), 'b')} = {column(layout, str(layout.strand), 'd')}",
        f"{column(layout, 'attempt', 'b')} <=> {column(layout, 'attempt', 'd')}",
    ]
    rows = f"from {in_claim_order(layout, 'b', is_free)}\n                 where "
    held, last_due = "0", "null"
    if layout.is_fifo and "locked_until" in layout.roles:
        some = conjunction([*pair, f"{column(layout, 'locked_until', 'b')} > {NOW}"], 17)
        held = f"case when {begun} then exists (select 1 {rows}{some}) else 0 end"
    if layout.is_fifo and due:
        at = f"b.{quote(due.name)}"
        last_due = f"case when {begun} then (select max({at}) {rows}{conjunction([*pair, f'{at} > {NOW}'], 17)}) end"
    head = f"""(select {column(layout, "id", "b")} {rows}{conjunction([*pair, *_first(layout)], 17)}
                 order by {", ".join(column(layout, role, "b") for role in layout.strand_order)} limit 1)"""
    return [f"{held} as held", f"{last_due} as last_due", f"{head} as head"]


def _first(layout: Layout) -> list[str]:
    """Write which row of a pair is its first.

    In a FIFO group that is the first free one. It is due, unless none is: where there are no priorities the order is that of
    due times, and the first tells; else those that are not due are passed by.
    """
    if not layout.is_fifo:
        return [f"({column(layout, 'id', 'b')} in %(held)s) is not true"]
    free = _free(layout, "b")
    return free if "priority" in layout.roles or "retry_after" not in layout.roles else free[1:]


def _free(layout: Layout, alias: str) -> list[str]:
    """Write which of a subscription's unfinished rows can be claimed: due, and under no lease."""
    return free_rows(layout, alias)[len(unfinished_rows(layout, alias)) :]


def _all(layout: Layout, conditions: list[str]) -> str:
    return " and ".join([*unfinished_rows(layout, "c"), *conditions])


def _fixed(layout: Layout) -> list[str]:
    """List the columns that the index has before the strand's, without which its scan is no loose one."""
    return [f"c.{quote(name)}" for name in ddl.fixed(layout)]


def _guard(layout: Layout, alias: str) -> str:
    """Name a strand's guard, in 64 characters that any connection spells alike: by its table and its canonical form (R16)."""
    table = hashlib.sha256("\0".join(layout.table.parts).encode()).hexdigest()[:16]
    return f"sha2(concat('shardrun:{table}:', {lane_key(strand_column(layout), alias)}), 256)"


def _is_held(layout: Layout) -> str:
    """Write whether a session that is not this one has a strand's guard, and so, most likely, a row of it."""
    return f"ifnull(is_used_lock({_guard(layout, 'w')}), connection_id()) <> connection_id()"
