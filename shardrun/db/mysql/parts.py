"""Write the pieces that MySQL's and MariaDB's statements are made of: names, clocks, tokens, conditions, lists of values.

The clock is the server's: `utc_timestamp(6)`, one value in a statement. The coordinator's sessions run with time zone
+00:00, so that a TIMESTAMP column compares with it too. No value is ever left to be rounded, which MySQL does and MariaDB
does not: whatever is written has the column's own digits already.

A row that goes back keeps its last token, moved into the past by whole days (`aged`): it reads as free and not as
abandoned, and the next claim still writes a greater one. A TIMESTAMP begins in 1970, so it is moved by 50 years only, and
taken for such where it lies more than 49 years back; a lease in such a column can be 250 days long.
"""

from __future__ import annotations

import math
import re

from shardrun.db.table import Column, Layout, Table

AGED_BY = {"timestamp": 365_000, "timestamptz": 18_250}
"""Days by which a token is moved into the past: more than any lease, and still within what the type can hold."""

AGED_BEFORE = {"timestamp": "'1900-01-01'", "timestamptz": "utc_timestamp(6) - interval 18000 day"}
"""A `locked_until` before this was moved there; after it, and past, it is a lease that ran out."""

EARLIEST = "'1000-01-01'"
"""A time before this (0000-00-00) is none that can be counted with."""

NOW = "utc_timestamp(6)"

GREATEST = {"tinyint": 2**7 - 1, "smallint": 2**15 - 1, "mediumint": 2**23 - 1, "int": 2**31 - 1, "bigint": 2**63 - 1}
"""The greatest numbers of integer types with a sign; without one they reach twice as far."""

LONGEST_KEY = 1024
"""Characters of a key that tell its lane at most: longer ones that begin alike share one. Larger: more memory for each row."""


NO_PAD = ("_0900_", "_nopad_")
"""What the names of collations say in which trailing spaces tell one text from another."""


def quote(name: str) -> str:
    """Quote a name, and double the percent signs that the driver would take for placeholders."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def table_name(table: Table) -> str:
    """Quote a table's name, with its database."""
    return ".".join(quote(part) for part in table.parts)


def by_id(layout: Layout, alias: str) -> str:
    """Name the table where rows are looked up by id: nothing but these may be read, since what is read is locked (R10)."""
    index = _index_of_ids(layout)
    return f"{table_name(layout.table)} as {alias}{f' force index ({index})' if index else ''}"


def _index_of_ids(layout: Layout) -> str | None:
    """Name the index that tells ids apart: left to itself, the server may read through all of a small table."""
    id = layout.roles["id"].name
    if layout.table.primary_key == (id,):
        return "primary"
    found = (index.name for index in layout.table.indexes if index.is_unique and index.columns[0][0] == id)
    return next(map(quote, found), None)


def column(layout: Layout, role: str, alias: str) -> str:
    """Name the column of a role."""
    return f"{alias}.{quote(layout.roles[role].name)}"


def lane_key(key: Column, alias: str) -> str:
    """Write a key so that two have the same value exactly where the database calls them equal."""
    value = f"{alias}.{quote(key.name)}"
    if key.kind in ("int", "bool", "binary"):
        return value
    if key.kind == "float":
        return f"({value} + 0e0)"  # minus zero equals zero
    if key.kind != "text":
        return f"cast({value} as binary)"
    return f"unhex(sha2({_weights(key, value)}, 256))"  # weights are long, and travel with every row


def _weights(key: Column, value: str) -> str:
    """Write what the collation compares: padded to the column's length where it takes trailing spaces for nothing.

    They are not cut off instead, since there are others than U+0020 (a no-break space) that some collations take for one.
    """
    if any(word in (getattr(key, "collation", None) or "") for word in NO_PAD):
        return f"weight_string({value})"
    length = LONGEST_KEY if key.length is None else min(max(key.length, 1), LONGEST_KEY)
    return f"weight_string({value} as char({length}))"


def identity(expression: str, key: Column) -> str:
    """Write an id so that it is found again: a FLOAT is shown with fewer digits than it has."""
    return f"({expression} + 0e0)" if key.kind == "float" else expression


def identity_of(layout: Layout, alias: str) -> str:
    return identity(column(layout, "id", alias), layout.roles["id"])


def handed_out(layout: Layout, alias: str) -> list[str]:
    """List what a claim gives: the id, whether the lease was written, then `Claimed`'s fields; then the row's columns."""
    held = column(layout, "locked_until", alias)
    written = [f"ifnull({held} > {NOW}, 0)", f"cast({held} as char)"]
    return [identity_of(layout, alias), *written, *handed_fields(layout, alias)]


def handed_fields(layout: Layout, alias: str, counted: bool = True) -> list[str]:
    """List `Claimed`'s fields from the attempt on, then the row's columns; an attempt not `counted` yet is counted here."""
    roles, attempt = layout.roles, layout.column("attempt")

    def shown(one: Column) -> str:
        return one_more(one, alias) if one is attempt and not counted else value(alias, one)

    chosen = [
        f"cast({shown(attempt)} as signed)" if attempt else "1",
        value(alias, roles.get("partition_key")),
        lane_key(roles["partition_key"], alias) if layout.by_key and "partition_key" in roles else "null",
        f"cast({column(layout, 'group', alias)} as char)" if "group" in roles else "null",
        value(alias, roles.get("headers"), raw=True),
        value(alias, roles.get("payload"), raw=True),
    ]
    return [*chosen, *(shown(one) for one in layout.table.columns.values())] if layout.row_mode else chosen


def value(alias: str, column: Column | None, raw: bool = False) -> str:
    """Write a value as Python shall have it; `raw` gives JSON's text for numbers and times."""
    if column is None:
        return "null"
    name = f"{alias}.{quote(column.name)}"
    if not raw or column.kind in ("json", "text", "binary", "uuid", "enum", "other"):
        return name
    if column.kind == "bool":
        return f"if({name} is null, null, if({name}, 'true', 'false'))"
    if column.kind in ("int", "float", "numeric"):
        return f"cast({name} as char)"
    zone = ", '+00:00'" if column.kind == "timestamptz" else ""
    return f"json_quote(concat(replace(cast({name} as char), ' ', 'T'){zone}))"


def unfinished_rows(layout: Layout, alias: str) -> list[str]:
    """Write which rows are this subscription's and not finished."""
    conditions = [f"{column(layout, 'processed_at', alias)} is null"] if "processed_at" in layout.roles else []
    if layout.group is not None and "group" in layout.roles:
        conditions.append(f"{column(layout, 'group', alias)} = %(group)s")
    return conditions


def group_parameter(layout: Layout) -> tuple[str, ...]:
    return ("group",) if layout.group is not None and "group" in layout.roles else ()


def free_rows(layout: Layout, alias: str) -> list[str]:
    """Write which rows can be claimed: unfinished, due, and under no lease."""
    conditions = unfinished_rows(layout, alias)
    for role in ("retry_after", "locked_until"):
        if role in layout.roles:
            at = column(layout, role, alias)
            conditions.append(f"({at} is null or {at} <= {NOW})")
    return conditions


def no_strand(layout: Layout, alias: str) -> list[str]:
    """Write, where rows make strands, which make none: they are claimed without a guard."""
    return [] if layout.strand is None else [f"{column(layout, layout.strand, alias)} is null"]


def held_rows(layout: Layout, alias: str) -> list[str]:
    """Write which rows are still ours: these ids, under this token."""
    return [
        f"{column(layout, 'id', alias)} in %(ids)s",
        f"{column(layout, 'locked_until', alias)} = %(token)s",
    ]


def claim_order(layout: Layout, alias: str) -> str:
    """Write the claim's order; NULLs come first, as they shall for due times."""
    return ", ".join(column(layout, role, alias) for role in layout.order)


def index_order(layout: Layout, alias: str) -> str:
    """Write the order in which the claim's index has unfinished rows: theirs, or that of strands."""
    roles = layout.order if layout.strand is None else layout.index
    return ", ".join(column(layout, role, alias) for role in roles)


def aged(lock: Column, alias: str) -> str:
    """Write a token moved into the past."""
    return f"{alias}.{quote(lock.name)} - interval {AGED_BY[lock.kind]} day"


def not_aged(lock: Column, alias: str) -> str:
    """Write a token that was moved into the past as it was before."""
    return f"{alias}.{quote(lock.name)} + interval {AGED_BY[lock.kind]} day"


def was_held(lock: Column, alias: str) -> str:
    """Write whether a past `locked_until` is a lease that ran out."""
    return f"ifnull({alias}.{quote(lock.name)} >= {AGED_BEFORE[lock.kind]}, 0)"


def next_token(layout: Layout, alias: str) -> str:
    """Write the token of a claim: the greater of now plus lease and of what follows the last token.

    Claims write an even number of the column's units, extensions an odd one. So where a column keeps few digits, what a
    claim writes is never the value that an older holder's extension, in doubt, may have promised.
    """
    lock = layout.roles["locked_until"]
    held, two = f"{alias}.{quote(lock.name)}", 2 * micros(lock)
    step = f"interval {two} - {_odd_part(held, two)} microsecond"
    return (
        f"greatest({_later(layout, two)},\n"
        f"           case when {held} >= {AGED_BEFORE[lock.kind]}\n"
        f"                then {held} + {step}\n"
        f"                when {held} >= {EARLIEST}\n"
        f"                then {not_aged(lock, alias)} + {step}\n"
        f"                else {NOW} end)"
    )


def told_token(layout: Layout, alias: str) -> str:
    """Write the token of a claim as its column will tell it."""
    return f"cast(cast({next_token(layout, alias)} as datetime({layout.roles['locked_until'].digits})) as char)"


def extended_token(layout: Layout) -> str:
    """Write the token of an extension: now plus lease, an odd number of units."""
    lock = layout.roles["locked_until"]
    return f"cast(cast({_later(layout, 3 * micros(lock))} as datetime({lock.digits})) as char)"


def _later(layout: Layout, more: int) -> str:
    """Write now plus lease: never less, and up to two units more."""
    two = 2 * micros(layout.roles["locked_until"])
    lease = math.ceil(round(layout.lease * 1_000_000) / two) * two
    return f"{NOW} + interval {lease + more} - {_odd_part(NOW, two)} microsecond"


def _odd_part(time: str, two: int) -> str:
    """Write by how many microseconds a time is later than an even number of units."""
    seconds = f"second({time}) * 1000000 + " if two > 1_000_000 else ""
    return f"mod({seconds}microsecond({time}), {two})"


def micros(column: Column) -> int:
    """Say how many microseconds a column's unit is."""
    return int(10 ** (6 - column.digits))


def clock_of(column: Column) -> str:
    """Read the clock as a column keeps it."""
    return f"utc_timestamp({column.digits})"


def after_delay(column: Column) -> str:
    """Write now plus a delay (in microseconds, as a parameter): never less, and up to two of the column's units more."""
    unit = micros(column)
    delay = "%(delay)s" if unit == 1 else f"ceiling(%(delay)s / {unit}) * {unit} + {unit}"
    return f"{clock_of(column)} + interval {delay} microsecond"


def set_free(layout: Layout, alias: str) -> str:
    return f"{column(layout, 'locked_until', alias)} = {aged(layout.roles['locked_until'], alias)}"


def set_free_later(layout: Layout, alias: str) -> str:
    """Write a delay where the lease is, for want of a column of its own; at once, the row is as free as any."""
    lock, held = layout.roles["locked_until"], column(layout, "locked_until", alias)
    more = f"{held} + interval {micros(lock)} microsecond"
    return f"{held} = if(%(delay)s > 0,\n         greatest({after_delay(lock)}, {more}),\n         {aged(lock, alias)})"


def set_reason(layout: Layout, alias: str) -> str:
    error = column(layout, "last_error", alias)
    return f"{error} = ifnull(%(reason)s, {error})"


def one_more(attempt: Column, alias: str) -> str:
    """Count an attempt; where its type ends the count stays, since the row could not be claimed any more."""
    count = f"ifnull({alias}.{quote(attempt.name)}, 0)"
    most = _greatest(attempt.type.lower())
    return f"{count} + 1" if most is None else f"least({count}, {most - 1}) + 1"


def _greatest(type: str) -> int | None:
    if digits := re.match(r"decimal\((\d+),(\d+)\)", type):
        return int(10 ** (int(digits[1]) - int(digits[2]))) - 1
    most = GREATEST.get(re.split(r"\W", type)[0])
    return most * 2 + 1 if most is not None and "unsigned" in type else most
