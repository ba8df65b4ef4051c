"""Write what a declared queue needs on MySQL and MariaDB: its table, its claim indexes, its dead letters. Alters nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from shardrun.db.mysql.catalogue import MysqlColumn, kind_of
from shardrun.db.table import Column, Index, Layout, Table, lay
from shardrun.queue import Queue, Subscription, split_name

TYPES = {
    "id": "bigint auto_increment primary key",
    "payload": "json",
    "headers": "json",
    "group": "varchar(255)",
    "partition_key": "varchar(255)",
    "priority": "int not null default 0",
    "retry_after": "datetime(6)",
    "attempt": "int not null default 0",
    "processed_at": "datetime(6)",
    "locked_until": "datetime(6)",
    "last_error": "longtext",
}

OPTIONS = "engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin"
"""Texts are equal when their characters are, as on the other databases; what is made by hand may compare as it likes."""

NAME_LENGTH = 64
"""Characters that a name may have."""

LONGEST_KEY = 768
"""Characters of utf8mb4 that an index takes whole."""

IF_NOT_EXISTS = {True: "if not exists ", False: "", None: "/*M! if not exists */ "}
"""How an index is made where it is not yet: MariaDB knows the words, MySQL does not, and takes that for a comment."""

Reader = Callable[[Sequence[str]], Table | None]


def statements(
    queue: Queue[Any], subscriptions: Sequence[Subscription], read: Reader, on_mariadb: bool | None
) -> list[str]:
    """Write the statements for what `read` does not find, in order; `on_mariadb` is None where nobody has looked."""
    parts = split_name(queue.table)
    table = read(parts)
    written = [] if table else [create_table(parts, columns_of(queue))]
    table = table or _imagined(parts, queue)
    if all(name in table.columns for name in queue.roles.values()):
        roles = {role: table.columns[name] for role, name in queue.roles.items()}
        layouts = [lay(table, subscription) for subscription in subscriptions] or [Layout(table, roles)]
        wanted = [
            index_of(layout, on_mariadb)
            for layout in layouts
            if claim_index(layout) is None and not unindexable(layout)
        ]
        written += list(dict.fromkeys(wanted))
    for name in dict.fromkeys(one.dead_letter for one in subscriptions if one.dead_letter):
        dead = split_name(name)
        if read(dead) is None and dead != parts:
            written.append(create_table(dead, _dead_columns(queue, table)))
    return written


def columns_of(queue: Queue[Any]) -> dict[str, str]:
    """Map each column of a declared queue to its type."""
    columns: dict[str, str] = {}
    for role, name in queue.roles.items():
        columns.setdefault(name, TYPES[role])
    return columns


def create_table(parts: Sequence[str], columns: dict[str, str]) -> str:
    """Write a table."""
    lines = ",\n".join(f"  {quote(name)} {kind}" for name, kind in columns.items())
    return f"create table if not exists {_dotted(parts)} (\n{lines}\n) {OPTIONS};"


def claim_index(layout: Layout) -> str | None:
    """Find the index that gives a claim its order, and its group's unfinished rows first; None where there is none."""
    return next((index.name for index in layout.table.indexes if _serves(layout, index)), None)


def _serves(layout: Layout, index: Index) -> bool:
    first, order = _fixed(layout), [layout.roles[role].name for role in layout.order]
    names = [name for name, _, _ in index.columns]
    walked = index.columns[len(first) : len(first) + len(order)]
    if any(descending for _, descending, _ in walked):
        return False
    return sorted(names[: len(first)]) == sorted(first) and [name for name, _, _ in walked] == order


def _fixed(layout: Layout) -> list[str]:
    """List the columns that a claim holds to one value: finished rows stay behind it, since an index has no condition."""
    roles = ("processed_at", *(("group",) if layout.group is not None else ()))
    return [layout.roles[role].name for role in roles if role in layout.roles]


def index_of(layout: Layout, on_mariadb: bool | None) -> str:
    """Write the index that gives a claim its order."""
    names = [*_fixed(layout), *(layout.roles[role].name for role in layout.order)]
    name = index_name(layout.table.parts[-1], "claim_in_group" if layout.group is not None else "claim")
    columns = ", ".join(quote(column) for column in names)
    return f"create index {IF_NOT_EXISTS[on_mariadb]}{quote(name)} on {_dotted(layout.table.parts)} ({columns});"


def unindexable(layout: Layout) -> list[Column]:
    """List the columns of the claim's index that no index takes whole."""
    names = [*_fixed(layout), *(layout.roles[role].name for role in layout.order)]
    columns = (layout.table.columns[name] for name in names)
    return [column for column in columns if column.kind in ("text", "binary") and (column.length or 0) > LONGEST_KEY]


def not_null(table: str, column: Column) -> str:
    """Write what lets a column hold no NULL; its default must be said again."""
    said = ", and its default again" if column.has_default else ""
    return f"alter table {table} modify {quote(column.name)} {_copied(column)} not null{said}"


def cannot_be_unique(table: str, column: Column) -> str | None:
    """Say why a column has no index by which one row is found and locked, though it may be declared UNIQUE."""
    if not re.match("(tiny|medium|long)?(text|blob)", column.type.lower()) and (column.length or 0) <= LONGEST_KEY:
        return None
    return (
        f"is {column.type}, which no index takes whole: what is UNIQUE there is kept by a hash, by which no row is locked "
        f"alone. alter table {table} modify {quote(column.name)} varchar(255) not null"
    )


def index_name(table: str, purpose: str) -> str:
    """Name an index after its table; a name that would be too long gets a hash instead of its end."""
    name = f"{table}_{purpose}"
    if len(name) <= NAME_LENGTH:
        return name
    kept = table[: NAME_LENGTH - len(purpose) - 10]
    return f"{kept}_{hashlib.sha256(table.encode()).hexdigest()[:8]}_{purpose}"


def quote(name: str) -> str:
    """Quote a name for people and servers; these statements take no parameters."""
    return "`" + name.replace("`", "``") + "`"


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)


def _dead_columns(queue: Queue[Any], table: Table) -> dict[str, str]:
    """Copy a table's columns for dead letters: any value that the row had fits."""
    lock, columns = queue.locked_until, {}
    for name, column in table.columns.items():
        if not column.generated:
            columns[name] = f"{_copied(column)} {'primary key' if name == queue.id else 'null'}"
    return columns if lock is None or lock in columns else {**columns, lock: TYPES["locked_until"]}


def _copied(column: Column) -> str:
    """Write a column's type with its collation, but for a document's, which has its own."""
    if column.kind == "json":
        return "json"
    collation = column.collation if isinstance(column, MysqlColumn) else None
    return f"{column.type} collate {collation}" if collation else column.type


def _imagined(parts: tuple[str, ...], queue: Queue[Any]) -> Table:
    """Describe the table that `create_table` would make."""
    columns = {}
    for name, kind in columns_of(queue).items():
        plain = kind.partition(" ")[0]
        columns[name] = Column(name=name, kind=kind_of(plain.partition("(")[0]), type=plain)
    return Table(parts=parts, columns=columns, indexes=(Index("PRIMARY", ((queue.id, False, None),)),))
