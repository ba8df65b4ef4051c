"""Write the pieces that PostgreSQL's statements are made of: names, clocks, conditions, lists of values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardrun.db.table import JSON, Column, Layout, Table

AGED = "interval '365000 days'"
"""How far a token is moved into the past: whole days, more than any lease, and still after the year 1000."""

AGED_BEFORE = "'1900-01-01'"
"""A `locked_until` before this was moved there by AGED; after it, and past, it is a lease that ran out."""

GREATEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}
"""The greatest numbers of integer types."""

NATIVE = ("int", "float", "numeric", "text", "binary", "bool", "uuid", "timestamp", "timestamptz", "date", "time")
"""Kinds that reach Python, and the ring, as values of their own; of all others their text does."""


def quote(name: str) -> str:
    """Quote a name, and double the percent signs that the driver would take for placeholders."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def table_name(table: Table) -> str:
    """Quote a table's name, with its schema."""
    return ".".join(quote(part) for part in table.parts)


def lane_type(key: Column) -> str:
    """Name the type of a key's canonical form."""
    return {"int": "bigint", "binary": "bytea"}.get(key.kind, "text")


def lane_key(key: Column, alias: str) -> str:
    """Write a row's key so that two have the same bytes exactly where the database calls them equal."""
    return canonical(key, f"{alias}.{quote(key.name)}")


def canonical(key: Column, value: str) -> str:
    """Do the same with a value of a column."""
    if key.kind == "int":
        return f"{value}::bigint"
    if key.kind == "binary":
        return value
    if key.kind == "float":  # minus zero equals zero
        return f"({value} + 0)::text"
    if key.kind == "numeric":  # 1.0 equals 1.00
        return (
            f"(case when {value}::text like '%%.%%' then rtrim(rtrim({value}::text, '0'), '.') else {value}::text end)"
        )
    return f"lower({value}::text)" if key.equality == "nocase" else f"{value}::text"


def taken(layout: Layout) -> list[str]:
    """List what the claim's update returns: raw values, so that the select around it can sort by them."""
    named = {"id": "id", "locked_until": "token", "partition_key": "key", "group": "its_group", "headers": "headers"}
    taken = [f"t.{quote(layout.roles[role].name)} as {name}" for role, name in named.items() if role in layout.roles]
    attempt = layout.column("attempt")
    if attempt is not None:
        lock, key = quote(layout.roles["locked_until"].name), quote(layout.roles["id"].name)
        old = f"select o.{lock} >= {AGED_BEFORE} from {table_name(layout.table)} as o where o.{key} = t.{key}"
        # Only a row that was begun before can have been abandoned; its old lease is in the statement's snapshot.
        taken += [
            f"t.{quote(attempt.name)} as attempt",
            f"case when t.{quote(attempt.name)} > 1 then ({old}) end as expired",
        ]
    for role, name in (("priority", "priority"), ("retry_after", "due"), ("payload", "body")):
        if role in layout.roles:
            taken.append(f"t.{quote(layout.roles[role].name)} as {name}")
    if layout.by_key and "partition_key" in layout.roles:
        taken.append(f"{lane_key(layout.roles['partition_key'], 't')} as lane_key")
    if layout.row_mode:
        taken += [f"t.{quote(name)} as c{number}" for number, name in enumerate(layout.table.columns, 1)]
    return taken


def handed_out(layout: Layout) -> list[str]:
    """List what the claim gives, in the order of `Claimed`'s fields; in row mode the columns follow."""
    roles = layout.roles
    chosen = [
        identity("id", layout),
        "token::text",
        "attempt::bigint" if "attempt" in roles else "1",  # a column of numeric would come as a Decimal
        "expired is true" if "attempt" in roles else "false",
        value("key", roles.get("partition_key")),
        "lane_key" if layout.by_key and "partition_key" in roles else "null",
        "its_group::text" if "group" in roles else "null",
        value("headers", roles.get("headers"), raw=True),
        value("body", roles.get("payload"), raw=True),
    ]
    if layout.row_mode:
        columns = layout.table.columns.values()
        chosen += [value(f"c{number}", column) for number, column in enumerate(columns, 1)]
    return chosen


def value(name: str, column: Column | None, raw: bool = False) -> str:
    """Write a value as Python shall have it; `raw` gives JSON's own text, and JSON for what has no type of its own."""
    if column is None:
        return "null"
    if column.kind in JSON:
        return f"{name}::text" if raw else name
    if raw and column.kind not in ("text", "binary", "uuid", "enum", "other"):
        return f"to_json({name})::text"
    native = column.kind in NATIVE or column.kind == "array"
    return name if native and not (raw and column.kind == "uuid") else f"{name}::text"


def identity(expression: str, layout: Layout) -> str:
    return expression if layout.roles["id"].kind in NATIVE else f"{expression}::text"


def identity_of(layout: Layout) -> str:
    return identity(f"t.{quote(layout.roles['id'].name)}", layout)


def unfinished_rows(layout: Layout, alias: str) -> list[str]:
    """Write which rows are this subscription's and not finished."""
    processed, group = layout.column("processed_at"), layout.column("group")
    conditions = [f"{alias}.{quote(processed.name)} is null"] if processed else []
    if group is not None and layout.group is not None:
        conditions.append(f"{alias}.{quote(group.name)} = %(group)s")
    return conditions


def group_parameter(layout: Layout) -> tuple[str, ...]:
    return ("group",) if layout.group is not None and "group" in layout.roles else ()


def no_strand(layout: Layout) -> list[str]:
    """Write, where rows make strands, which are of none: those are claimed as in any table."""
    return [] if layout.strand is None else [f"c.{quote(layout.roles[layout.strand].name)} is null"]


def due_rows(layout: Layout) -> list[str]:
    due = layout.column("retry_after")
    if due is None:
        return []
    at = f"c.{quote(due.name)}"
    return [f"({at} is null or {at} <= {now_of(due)})"]


def claim_order(layout: Layout) -> str:
    return _ordered(layout, layout.order)


def index_order(layout: Layout) -> str:
    """Write the order in which the claim's index has rows, for looks at the first of them."""
    return _ordered(layout, layout.order if layout.strand is None else layout.index)


def _ordered(layout: Layout, roles: Sequence[str]) -> str:
    return ", ".join(f"c.{quote(layout.roles[role].name)}{nulls(role)}" for role in roles)


def claimed_order(layout: Layout) -> str:
    names = {"priority": "priority", "retry_after": "due", "id": "claimed.id"}
    return ", ".join(f"{names[role]}{nulls(role)}" for role in layout.order)


def nulls(role: str) -> str:
    return " nulls first" if role == "retry_after" else ""


def held_rows(layout: Layout) -> str:
    """Write which rows are still ours: these ids, under this token."""
    lock = layout.roles["locked_until"]
    return (
        f"t.{quote(layout.roles['id'].name)} = any (%(ids)s::{type_of(layout.roles['id'])}[])\n"
        f"   and t.{quote(lock.name)} = %(token)s::{type_of(lock)}"
    )


def held_row(layout: Layout) -> str:
    lock = layout.roles["locked_until"]
    return (
        f"t.{quote(layout.roles['id'].name)} = %(id)s::{type_of(layout.roles['id'])}\n"
        f"   and t.{quote(lock.name)} = %(token)s::{type_of(lock)}"
    )


def set_free(layout: Layout) -> str:
    held = quote(layout.roles["locked_until"].name)
    return f"{held} = t.{held} - {AGED}"


def set_free_later(layout: Layout) -> str:
    """Write a delay where the lease is, for want of a column of its own; at once, the row is as free as any."""
    lock = layout.roles["locked_until"]
    held = quote(lock.name)
    later = f"{clock_of(lock)} + make_interval(secs => %(delay)s::float8){round_up(lock)}"
    return (
        f"{held} = case when %(delay)s::float8 > 0\n"
        f"         then greatest({later}, t.{held} + {unit(lock)})\n"
        f"         else t.{held} - {AGED} end"
    )


def set_reason(error: Column) -> str:
    return f"{quote(error.name)} = coalesce({reason_text(error)}, t.{quote(error.name)})"


def reason_text(error: Column) -> str:
    return "%(reason)s::text" if error.length is None else f"left(%(reason)s::text, {error.length})"


def one_more(attempt: Column, alias: str = "t") -> str:
    """Count an attempt; where its type ends the count stays, since the row could not be claimed any more."""
    count = f"coalesce({alias}.{quote(attempt.name)}, 0)"
    digits = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", attempt.type)
    most = 10 ** max(int(digits[1]) - int(digits[2]), 0) - 1 if digits else GREATEST.get(attempt.type)
    return f"{count} + 1" if most is None else f"least({count}, {most - 1}) + 1"


def last_token(lock: Column, alias: str) -> str:
    held = f"{alias}.{quote(lock.name)}"
    return f"case when {held} < {AGED_BEFORE} then {held} + {AGED} else {held} end"


def now_of(column: Column) -> str:
    """Read the clock of this statement as a column's type has it."""
    return f"(select {'now' if column.kind == 'timestamptz' else now_utc('now')} from clock)"


def clock_of(column: Column) -> str:
    return "clock_timestamp()" if column.kind == "timestamptz" else f"({now_utc('clock_timestamp()')})"


def now_utc(clock: str) -> str:
    """Take a time's UTC date and hour, for a column without zone."""
    return f"{clock} at time zone 'utc'"


def interval(seconds: float) -> str:
    return f"interval '{seconds:.6f} seconds'"


def unit(column: Column) -> str:
    return f"interval '{10.0**-column.digits:.6f} seconds'"


def round_up(column: Column) -> str:
    """Add half a unit where a column keeps few digits, so that rounding never makes a row due early."""
    return f" + interval '{0.5 * 10.0**-column.digits:.6f} seconds'" if column.digits < 6 else ""


def type_of(column: Column) -> str:
    return column.type.replace("%", "%%")
