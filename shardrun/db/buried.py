"""Tell of dead letters what is the same on every database, whatever their statements look like there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from shardrun.db.settling import storable
from shardrun.db.table import Column, Layout, Table
from shardrun.errors import UsageProblem

ERROR_LENGTH = 200
"""Characters of an error's first line that tell it from another. Larger: more groups that differ only in details."""


def home(layout: Layout) -> Table:
    """Give the table that holds a subscription's dead letters."""
    return layout.dead or layout.table


def group_among(layout: Layout, dead: Table) -> Column | None:
    """Give the column that tells groups apart where the dead letters' table may hold those of other groups, too."""
    group = layout.column("group")
    return group if group is not None and layout.group is not None and group.name in dead.columns else None


def place(layout: Layout) -> tuple[str, ...]:
    """List the parameters that tell a subscription's dead letters from other rows."""
    if layout.dead is None:
        return ("dead_group",)
    return ("group",) if group_among(layout, layout.dead) else ()


def filters(layout: Layout) -> tuple[str, ...]:
    """List the same, and that of the filter by error."""
    return (*place(layout), *(("error",) if "last_error" in layout.roles else ()))


def back(layout: Layout, dead: Table) -> list[str]:
    """List the columns that are written when a dead letter is copied into the queue: those it has, and the lease."""
    names = [name for name in dead.columns if name in layout.table.columns and not layout.table.columns[name].generated]
    lock = layout.column("locked_until")
    return names if lock is None or lock.name in names else [*names, lock.name]


def fresh(layout: Layout, clock: Callable[[Column], str]) -> dict[str, str]:
    """Map the columns that a row gets anew to their values: no attempt begun, due at once."""
    attempt, due = layout.column("attempt"), layout.column("retry_after")
    values = {attempt.name: "0"} if attempt else {}
    if due:
        values[due.name] = "null" if due.nullable else clock(due)
    return values


class Letters(ABC):
    """What the dead letters of one subscription are on any database; holds no state of its own but statements."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @property
    def knows_errors(self) -> bool:
        """Tell whether there is a last_error to filter by."""
        return "last_error" in self._layout.roles

    def id_of(self, text: str) -> Any:
        """Read an id as a person writes it."""
        column = self._layout.roles["id"]
        try:
            return self._id_of(text, column)
        except (ValueError, ArithmeticError):
            raise UsageProblem(
                f"{text!r} is not the id of a row: column {column.name} (role id) is {column.type}."
            ) from None

    @abstractmethod
    def _id_of(self, text: str, column: Column) -> Any:
        """Read a value of the id column; raises `ValueError` or `ArithmeticError`."""

    def _filters(self, error: str | None) -> dict[str, Any]:
        return {"group": self._layout.group, "dead_group": self._layout.dead_group, "error": storable(error)}
