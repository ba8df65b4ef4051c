"""Find all that keeps a declaration and a table from fitting each other, and say it in sentences."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardrun import lock_key
from shardrun.db.table import JSON, TIMES, Column, Layout, Table
from shardrun.errors import DeclarationProblem, ShardrunError
from shardrun.queue import Queue, Source, Subscription

NEAR = 3
"""Near names that a message lists at most; more would hide the right one."""

COUNTED = ("int", "numeric")

UNFIT_FOR_STRANDS = (*JSON, "float", "array")


def _not_null(table: str, column: Column) -> str:
    return f'alter table {table} alter column "{column.name}" set not null'


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a dialect can tell of one database: where it is, its tables' names, how its columns may be typed."""

    place: str  # "in database app"
    names: Callable[[], list[str]]
    time_kinds: tuple[str, ...] = TIMES
    time_types: tuple[str, ...] = ()  # what these are called there, where not as here
    typed: bool = True  # False where a column's type binds no value (SQLite): only what is plainly wrong is refused
    not_null: Callable[[str, Column], str] = _not_null  # the statement for a table and its column
    no_index: Callable[[str, Column], str | None] = lambda *_: (
        None
    )  # why a column of the table has no index of whole values


def shown_file(source: Source) -> str:
    """Show a file as the user would type it: relative to where they are, when it is below."""
    relative = os.path.relpath(source.file)
    return source.file if relative.startswith("..") else relative


def where(queue: Queue[object]) -> str:
    """Name a queue and the line that declares it."""
    return f"queue {queue.name} ({shown_file(queue.source)}:{queue.source.line})"


def problems(
    catalogue: Catalogue, subscription: Subscription, table: Table | None, dead: Table | None
) -> list[ShardrunError]:
    """List what is wrong with a subscription's table and with its dead letters' table, all of it."""
    queue = subscription.queue
    if table is None:
        return [_no_table(catalogue, queue, queue.table)]
    found: list[str] = []
    if table.obstacle:
        found.append(f"{table.name} {table.obstacle}.")
    found += _columns(queue, table)
    if not found:
        found += _kinds(catalogue, subscription, table)
    listed: list[ShardrunError] = [DeclarationProblem(f"{where(queue)}: {text}") for text in found]
    if subscription.dead_letter is not None:
        listed += _dead_letter(catalogue, subscription, table, dead)
    return listed


def _no_table(catalogue: Catalogue, queue: Queue[object], name: str) -> ShardrunError:
    return DeclarationProblem(
        f"{where(queue)}: there is no table {name} {catalogue.place}.{_near(name, catalogue.names())} "
        f"To create it: shardrun ddl {shown_file(queue.source)} --apply"
    )


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), NEAR)
    return f" Near it: {', '.join(near)}." if near else ""


def _columns(queue: Queue[object], table: Table) -> list[str]:
    missing = [(role, name) for role, name in queue.roles.items() if name not in table.columns]
    has = ", ".join(table.columns)
    found = [
        f"table {queue.table} has no column {name} (role {role}).{_near(name, table.columns)} It has: {has}"
        for role, name in missing
    ]
    found += _lock_key(queue, table)
    taken: dict[str, str] = {}
    for role, name in queue.roles.items():
        if taken.setdefault(name, role) != role and not _may_share(taken[name], role):
            found.append(f"column {name} cannot be both {taken[name]} and {role}. Give each role a column of its own.")
    return found


def _lock_key(queue: Queue[object], table: Table) -> list[str]:
    """Find columns of the lock's key that the table does not have; a malformed template is refused elsewhere."""
    template = queue.advisory_lock
    if template is None or lock_key.problem(template):
        return []
    return [
        f"table {queue.table} has no column {name} (advisory_lock={template!r}).{_near(name, table.columns)} It has: "
        f"{', '.join(table.columns)}"
        for name in lock_key.columns(template)
        if name not in table.columns
    ]


def _may_share(first: str, second: str) -> bool:
    """Tell whether one column may play both roles: those that shardrun only reads."""
    read_only = {"id", "payload", "headers", "group", "partition_key", "priority"}
    return {first, second} <= read_only


def _kinds(catalogue: Catalogue, subscription: Subscription, table: Table) -> list[str]:
    queue = subscription.queue
    columns = {role: table.columns[name] for role, name in queue.roles.items()}
    found = _identity(catalogue, queue, table, columns["id"])
    for role in ("retry_after", "processed_at", "locked_until"):
        column = columns.get(role)
        if column is not None and not _fits(catalogue, column, catalogue.time_kinds):
            wanted = " or ".join(catalogue.time_types or catalogue.time_kinds)
            found.append(f"column {column.name} (role {role}) is {column.type}; it must be {wanted}.")
    attempt, error, key = columns.get("attempt"), columns.get("last_error"), columns.get("partition_key")
    if attempt is not None and not _fits(catalogue, attempt, COUNTED):
        found.append(f"column {attempt.name} (role attempt) is {attempt.type}; it must be an integer.")
    if error is not None and not _fits(catalogue, error, ("text",)):
        found.append(f"column {error.name} (role last_error) is {error.type}; it must be text.")
    if key is not None and subscription.by_key and key.equality is None:
        found.append(
            f"column {key.name} (role partition_key) is {key.type}, whose equal values may differ in their bytes, so that "
            f"rows of one key could take two lanes. Use a column of text, a number or a uuid, or workers=n without order."
        )
    elif subscription.has_strands:
        found += _strand(columns["group" if queue.fifo else "partition_key"], queue.fifo)
    written = ("attempt", "locked_until", "retry_after", "processed_at", "last_error")
    for role in written:
        if role in columns and columns[role].generated:
            found.append(f"column {columns[role].name} (role {role}) is generated, and shardrun must write it.")
    return found


def _strand(column: Column, is_group: bool) -> list[str]:
    """Refuse a column whose values do not say, as parameters, which rows belong together."""
    if column.equality is not None and column.kind not in UNFIT_FOR_STRANDS:
        return []
    role, asked = ("group", "fifo=True") if is_group else ("partition_key", 'key_scope="cluster"')
    return [
        f"column {column.name} (role {role}) is {column.type}, whose equal values may differ in their bytes, and {asked} "
        f"must find the rows of one {role.split('_')[-1]} again by its value. Use a column of text, a whole number or a uuid."
    ]


def _fits(catalogue: Catalogue, column: Column, kinds: tuple[str, ...]) -> bool:
    return column.kind in kinds or (not catalogue.typed and column.kind in ("other", "numeric"))


def _identity(catalogue: Catalogue, queue: Queue[object], table: Table, column: Column) -> list[str]:
    if column.name in table.unique:
        if not (column.nullable and catalogue.typed):
            return []  # SQLite lets keys be NULL; a claim there leaves such rows out
        return [f"column {column.name} (role id) may be NULL. {catalogue.not_null(queue.table, column)}"]
    if len(table.primary_key) > 1:
        keys = ", ".join(table.primary_key)
        return [
            f"table {queue.table} has a primary key of several columns ({keys}). shardrun names rows by one: add a column "
            f"that is unique by itself and name it as id."
        ]
    if why := catalogue.no_index(queue.table, column):
        return [f"column {column.name} (role id) {why}"]
    return [f"column {column.name} (role id) is not unique. Make it the primary key, or give it a unique index."]


def _dead_letter(
    catalogue: Catalogue, subscription: Subscription, table: Table, dead: Table | None
) -> list[ShardrunError]:
    queue, name = subscription.queue, str(subscription.dead_letter)
    if dead is None:
        return [_no_table(catalogue, queue, name)]
    at = f"{where(queue)}: the dead letters of {subscription.name}"
    if dead.parts == table.parts:
        return [
            DeclarationProblem(
                f"{at} would go to {name}, which is the queue's own table and would be read again. "
                f"Name another table, or use dead_letter_group=."
            )
        ]
    kept = [column for column in table.columns.values() if not column.generated]
    lost = [column.name for column in kept if column.name not in dead.columns]
    asked = [
        column.name
        for column in dead.columns.values()
        if column.name not in table.columns and not (column.nullable or column.has_default or column.generated)
    ]
    texts = []
    if lost:
        texts.append(f"need the same columns: {name} has no {', '.join(lost)}. Add them.")
    if asked:
        texts.append(f"cannot be written: {name} wants {', '.join(asked)}, which {queue.table} does not have.")
    return [DeclarationProblem(f"{at} {text}") for text in texts]


def missing_index(layout: Layout) -> bool:
    """Tell whether no index gives the claim its order, or one that is kept small behind finished rows."""
    return not any(_serves(layout, index.columns, index.condition) for index in layout.table.indexes)


def _serves(layout: Layout, columns: Sequence[tuple[str, bool, bool | None]], condition: str | None) -> bool:
    wanted = layout.index
    if len(columns) < len(wanted):
        return False
    for role, (name, descending, nulls_first) in zip(wanted, columns, strict=False):
        column = layout.roles[role]
        if column.name != name or descending or (column.nullable and nulls_first not in (None, role == "retry_after")):
            return False
    processed = layout.column("processed_at")
    if processed is None:
        return condition is None
    return condition is not None and processed.name in condition and "is null" in condition.lower()
