"""Read tables from SQLite's schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from shardrun.db.sqlite.driver import naming_errors
from shardrun.db.sqlite.sql import quote
from shardrun.db.table import Column, Index, Table

KINDS = (
    ("JSON", "json"),
    ("INT", "int"),
    ("CHAR", "text"),
    ("CLOB", "text"),
    ("TEXT", "text"),
    ("BLOB", "binary"),
    ("REAL", "float"),
    ("FLOA", "float"),
    ("DOUB", "float"),
    ("DATE", "timestamp"),
    ("TIME", "timestamp"),
    ("DEC", "numeric"),
    ("NUM", "numeric"),
)
"""What a declared type holds, by the first of these that is in it; SQLite's own affinities go the same way."""

GENERATED = (2, 3)
ROWID_TYPE = "INTEGER"


def read(connection: sqlite3.Connection, parts: Sequence[str]) -> Table | None:
    """Read a table by the parts of its name; None where there is none."""
    if len(parts) > 2 or (len(parts) == 2 and parts[0].lower() != "main"):
        return None
    with naming_errors(connection):
        found = connection.execute(
            "select name, type, sql from main.sqlite_master where type in ('table', 'view') and name = ? collate nocase",
            (parts[-1],),
        ).fetchone()
        if found is None:
            return None
        name, kind, text = found
        rows = connection.execute(f"pragma main.table_xinfo({quote(name)})").fetchall()
        key = tuple(row[1] for row in sorted(rows, key=lambda row: int(row[5])) if row[5])
        rowid = key[0] if _is_rowid(rows, key, text or "") else None
        columns = [_column(connection, name, row, is_rowid=row[1] == rowid) for row in rows]
        indexes, unique = _indexes(connection, name, rowid)
    return Table(
        parts=("main", name),
        columns={column.name: column for column in columns},
        primary_key=key,
        unique=frozenset(unique | (set(key) if len(key) == 1 else set())),
        indexes=tuple(indexes),
        obstacle="is a view, and shardrun reads tables only" if kind == "view" else None,
    )


def names(connection: sqlite3.Connection) -> list[str]:
    """List the tables that there are."""
    with naming_errors(connection):
        rows = connection.execute("select name from main.sqlite_master where type = 'table'").fetchall()
    return [row[0] for row in rows if not row[0].startswith("sqlite_")]


def kind_of(declared: str) -> str:
    """Say what a declared type holds."""
    return next((kind for part, kind in KINDS if part in declared.upper()), "other")


def _column(connection: sqlite3.Connection, table: str, row: Sequence[object], is_rowid: bool) -> Column:
    _, name, declared, required, default, key, hidden = row
    kind = kind_of(str(declared))
    return Column(
        name=str(name),
        kind=kind,
        type=str(declared),
        nullable=not (required or is_rowid),
        has_default=default is not None or (bool(key) and str(declared).upper() == ROWID_TYPE),
        generated=hidden in GENERATED,
        digits=3,
        equality=_equality(connection, table, str(name)),
    )


def _equality(connection: sqlite3.Connection, table: str, column: str) -> str | None:
    """Ask SQLite how it compares a column's text: it tells no collation's name, but it compares."""
    text = (
        f"select value = 'A', value = 'a ' from (select {quote(column)} as value from main.{quote(table)} where 0 "
        f"union all select 'a')"
    )
    try:
        case, blank = connection.execute(text).fetchone()
    except sqlite3.OperationalError:
        return None  # a collation that only the user's program has
    return {(0, 0): "exact", (1, 0): "nocase", (0, 1): "trim"}.get((case, blank))


def _is_rowid(rows: Sequence[Sequence[object]], key: tuple[str, ...], text: str) -> bool:
    """Tell whether the primary key is the row's own number, which every index holds at its end."""
    if len(key) != 1 or re.search(r"\)\s*(strict\s*,\s*)?without\s+rowid", text, re.IGNORECASE):
        return False
    return any(row[1] == key[0] and str(row[2]).upper() == ROWID_TYPE for row in rows)


def _indexes(connection: sqlite3.Connection, table: str, rowid: str | None) -> tuple[list[Index], set[str]]:
    indexes = [Index("rowid", ((rowid, False, None),))] if rowid else []
    unique: set[str] = set()
    for _, name, is_unique, _, partial in connection.execute(f"pragma main.index_list({quote(table)})").fetchall():
        parts = connection.execute(f"pragma main.index_xinfo({quote(name)})").fetchall()
        columns = [(str(part[2] or ""), bool(part[3]), None) for part in parts if part[5]]
        if is_unique and not partial and len(columns) == 1 and columns[0][0]:
            unique.add(columns[0][0])
        if rowid and rowid not in (column[0] for column in columns):
            columns.append((rowid, False, None))
        indexes.append(Index(name, tuple(columns), _condition(connection, name) if partial else None))
    return indexes, unique


def _condition(connection: sqlite3.Connection, index: str) -> str:
    text = connection.execute(
        "select sql from main.sqlite_master where type = 'index' and name = ?", (index,)
    ).fetchone()
    return re.split(r"\bwhere\b", text[0] or "", flags=re.IGNORECASE)[-1]
