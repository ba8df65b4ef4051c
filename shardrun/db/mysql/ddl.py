"""Write what a declared queue needs on MySQL and MariaDB: its table, its claim indexes, its dead letters. Alters nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from shardrun.db import needed
from shardrun.db.mysql.catalogue import MysqlColumn, kind_of
from shardrun.db.table import Column, Index, Layout

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

CHARACTERS_OF_OTHERS = 12
"""As much as the other columns of a claim's index take of it."""

IF_NOT_EXISTS = {True: "if not exists ", False: "", None: "/*M! if not exists */ "}
"""How an index is made where it is not yet: MariaDB knows the words, MySQL does not, and takes that for a comment."""


def create_table(parts: Sequence[str], columns: dict[str, str]) -> str:
    """Write a table."""
    lines = ",\n".join(f"  {quote(name)} {kind}" for name, kind in columns.items())
    return f"create table if not exists {_dotted(parts)} (\n{lines}\n) {OPTIONS};"


def claim_index(layout: Layout) -> str | None:
    """Find the index that gives a claim its order, and its group's unfinished rows first; None where there is none."""
    return next((index.name for index in layout.table.indexes if _serves(layout, index)), None)


def _serves(layout: Layout, index: Index) -> bool:
    first, order = fixed(layout), _walked(layout)
    names = [name for name, _, _ in index.columns]
    walked = index.columns[len(first) : len(first) + len(order)]
    if any(descending for _, descending, _ in walked):
        return False
    return sorted(names[: len(first)]) == sorted(first) and [name for name, _, _ in walked] == order


def fixed(layout: Layout) -> list[str]:
    """List the columns that a claim holds to one value: finished rows stay behind it, since an index has no condition."""
    roles = ("processed_at", *(("group",) if layout.group is not None else ()))
    return [layout.roles[role].name for role in roles if role in layout.roles]


def _walked(layout: Layout) -> list[str]:
    """List the columns that follow, in which a claim goes from row to row, or from strand to strand."""
    roles = layout.index if layout.group is None else layout.index[1:]
    return [layout.roles[role].name for role in roles]


def index_of(layout: Layout, on_mariadb: bool | None) -> str:
    """Write the index that gives a claim its order."""
    names = [*fixed(layout), *_walked(layout)]
    purpose = "claim" if layout.group is None else "claim_in_group"
    name = index_name(layout.table.parts[-1], purpose if layout.strand is None else "claim_in_order")
    columns = ", ".join(quote(column) for column in names)
    return f"create index {IF_NOT_EXISTS[on_mariadb]}{quote(name)} on {_dotted(layout.table.parts)} ({columns});"


def unindexable(layout: Layout) -> list[Column]:
    """List the columns of the claim's index that no index takes whole, or else the longest where it takes not all of them."""
    columns = [layout.table.columns[name] for name in dict.fromkeys([*fixed(layout), *_walked(layout)])]
    texts = [column for column in columns if column.kind in ("text", "binary")]
    if long := [column for column in texts if _is_long(column)]:
        return long
    characters = sum(column.length or 0 for column in texts) + CHARACTERS_OF_OTHERS
    return [max(texts, key=lambda column: column.length or 0)] if texts and characters > LONGEST_KEY else []


def _is_long(column: Column) -> bool:
    is_kept_apart = re.match("(tiny|medium|long)?(text|blob)", column.type.lower()) is not None
    return is_kept_apart or (column.length or 0) > LONGEST_KEY


def not_null(table: str, column: Column) -> str:
    """Write what lets a column hold no NULL; its default must be said again."""
    said = ", and its default again" if column.has_default else ""
    return f"alter table {table} modify {quote(column.name)} {_copied(column)} not null{said}"


def cannot_be_unique(table: str, column: Column) -> str | None:
    """Say why a column has no index by which one row is found and locked, though it may be declared UNIQUE."""
    if not _is_long(column):
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


def _copied(column: Column) -> str:
    """Write a column's type with its collation, but for a document's, which has its own."""
    if column.kind == "json":
        return "json"
    collation = column.collation if isinstance(column, MysqlColumn) else None
    return f"{column.type} collate {collation}" if collation else column.type


def _imagined(name: str, kind: str) -> Column:
    plain = kind.partition(" ")[0]
    return Column(name=name, kind=kind_of(plain.partition("(")[0]), type=plain)


def writing(on_mariadb: bool | None) -> needed.Writing:
    """Tell how statements are written; `on_mariadb` is None where nobody has looked."""
    return needed.Writing(
        types=TYPES,
        imagine=_imagined,
        order_by_id=True,
        table=create_table,
        index=lambda layout: (
            index_of(layout, on_mariadb) if claim_index(layout) is None and not unindexable(layout) else None
        ),
        copied=lambda column, is_id: f"{_copied(column)} {'primary key' if is_id else 'null'}",
        lease=TYPES["locked_until"],
    )
