"""Tell which of a column's values SQLite's comparison of text can order as times, and find those that it cannot.

SQLite has no type for times. `CURRENT_TIMESTAMP`'s spelling sorts as time does, cut short (2026-01-01, 12:00) or with a
fraction or +00:00 behind it; with a T, another offset or as a number a time would be read hours early or late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardrun.db.table import Column, Layout

DAY = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"

ROLES = ("retry_after", "locked_until")
"""Roles whose values are compared with now."""

NAMED_AT_ONCE = 100
"""Rows that one look names. Larger: longer logs where a program spells all its times wrong."""


def in_order(value: str) -> str:
    """Write the condition that a value sorts among times as the time that it is; true or false, and true of NULL."""
    rest = f"replace(substr({value}, 11), '+00:00', '')"
    return (
        f"({value} is null or (typeof({value}) = 'text' and {value} glob '{DAY}*' and {rest} not glob '*[^ .:0-9]*'"
        f" and {rest} not glob '  *' and julianday({value}) is not null))"
    )


def sorts(value: str, role: str) -> str:
    """Write the condition that a role's value may be compared; a lease may be empty where its column cannot be NULL.

    It is dear: in a claim it stands behind what leaves out most rows.
    """
    return f"({value} = '' or {in_order(value)})" if role == "locked_until" else in_order(value)


def passed(value: str, now: str) -> str:
    """Write the condition that a time is NULL or has passed, as far as text can tell."""
    return f"({value} is null or {value} <= {now})"


def columns_of(layout: Layout) -> dict[str, Column]:
    """Map the roles whose values are compared with now to their columns."""
    return {role: layout.roles[role] for role in ROLES if role in layout.roles}


def complaint(name: str, layout: Layout, row: Sequence[Any]) -> str:
    """Name a row that no claim takes: its id, then for each of `columns_of` the value where it is at fault."""
    if row[0] is None:
        return (
            f"{name}: a row has no id (it is NULL), and so nothing can name it. The row is left alone until it has one."
        )
    at_fault = zip(columns_of(layout).values(), row[1:], strict=True)
    said = " and ".join(f"{column.name} is {value}" for column, value in at_fault if value is not None)
    return (
        f"{name} row {row[0]}: {said}, which SQLite cannot compare with the time. The row is left alone until that is UTC as "
        f"CURRENT_TIMESTAMP writes it: 2026-01-31 12:00:00, with or without a fraction."
    )
