"""Write the statements that offer rows, and take those that are still as they were offered (R3)."""

from __future__ import annotations

from shardrun.db.mysql.locks_sql import key_text
from shardrun.db.mysql.parts import (
    by_id,
    column,
    free_rows,
    group_parameter,
    handed_fields,
    identity_of,
    quote,
    table_name,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Layout


def stamp(layout: Layout, alias: str) -> str:
    """Write what is another after each change of a row: a hash of all that is in it."""
    names = [name for name, each in layout.table.columns.items() if not each.generated]
    parts = ", ".join(f"ifnull(sha2({alias}.{quote(name)}, 256), '-')" for name in names)
    return f"sha2(concat_ws(',', {parts}), 256)"


def read(layout: Layout) -> Statement:
    """Read some rows, by their ids, that are still due."""
    text = f"""\
select {_handed(layout)}
  from {by_id(layout, "t")}
 where {_due(layout, "ids")}"""
    return Statement(text, ("ids", *group_parameter(layout)))


def hold(layout: Layout) -> Statement:
    """Lock the first of some rows, by their ids, that are still due and that nobody else has locked; read them."""
    text = f"""\
select {_handed(layout)}
  from {by_id(layout, "t")}
 where {_due(layout, "ids")}
 order by {column(layout, "id", "t")}
 limit %(limit)s
   for update skip locked"""
    return Statement(text, ("ids", *group_parameter(layout), "limit"))


def are_free(count: int) -> Statement:
    """Tell of some names which nobody has locked."""
    looks = ", ".join(f"is_free_lock(%(name{place})s)" for place in range(count))
    return Statement(f"select {looks}", tuple(f"name{place}" for place in range(count)))


def take(layout: Layout, where_locked: str) -> Statement:
    """Lock one row that is still as it was offered, and still due."""
    text = f"""\
select 1
  from {by_id(layout, "t")}
 where {conjunction([_due(layout, "ids"), f"{stamp(layout, 't')} = %(token)s"], 1)}
   for update {where_locked}"""
    return Statement(text, ("ids", "token", *group_parameter(layout)))


def key_of(layout: Layout) -> Statement:
    """Read the key of one row."""
    text = f"select {key_text(layout, 't')}\n  from {by_id(layout, 't')}\n where {column(layout, 'id', 't')} in %(ids)s"
    return Statement(text, ("ids",))


def stamped(layout: Layout) -> Statement:
    """Read what a row carries now."""
    text = f"select {stamp(layout, 't')}\n  from {by_id(layout, 't')}\n where {column(layout, 'id', 't')} in %(ids)s"
    return Statement(text, ("ids",))


def there(layout: Layout) -> Statement:
    """Look whether a row is there."""
    return Statement(f"select 1\n  from {by_id(layout, 't')}\n where {column(layout, 'id', 't')} in %(ids)s", ("ids",))


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Tell what became of an offered row, unless it is locked; the second looks for it among the dead letters' table."""
    processed, group = layout.column("processed_at"), layout.column("group")
    cases = [f"when t.{quote(processed.name)} is not null then 'DONE'"] if processed else []
    cases.append(f"when {stamp(layout, 't')} = %(token)s then 'HELD'")
    if layout.dead_group is not None and group is not None:
        cases.append(f"when t.{quote(group.name)} = %(dead_group)s then 'DEAD'")
    told = "\n            ".join(cases)
    text = f"""\
select case {told}
            else 'FREE' end
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s
   for update nowait"""
    looked = Statement(text, ("ids", "token", *(("dead_group",) if "%(dead_group)s" in text else ())))
    if layout.dead is None:
        return looked, None
    among_dead = f"select 1\n  from {table_name(layout.dead)} as t\n where {column(layout, 'id', 't')} in %(ids)s"
    return looked, Statement(among_dead, ("ids",))


def _handed(layout: Layout) -> str:
    return listing([identity_of(layout, "t"), *handed_fields(layout, "t", counted=False), stamp(layout, "t")], 7)


def _due(layout: Layout, ids: str) -> str:
    return conjunction([f"{column(layout, 'id', 't')} in %({ids})s", *free_rows(layout, "t")], 1)
