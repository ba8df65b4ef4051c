"""Read tables from the information schema of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardrun.db.mysql.driver import Connection, naming_errors
from shardrun.db.table import Column, Index, Table

KINDS = {
    "tinyint": "int",
    "smallint": "int",
    "mediumint": "int",
    "int": "int",
    "integer": "int",
    "bigint": "int",
    "year": "int",
    "decimal": "numeric",
    "float": "float",
    "double": "float",
    "char": "text",
    "varchar": "text",
    "tinytext": "text",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
    "datetime": "timestamp",
    "timestamp": "timestamptz",  # kept as UTC, and told in the session's zone, which is UTC for the coordinator
    "date": "date",
    "time": "time",
    "json": "json",
    "uuid": "uuid",
    "enum": "enum",
}
"""What a type holds; all others are "other"."""

PAD, NOPAD = "pad", "nopad"
"""How text compares: by its weights in its collation, which WEIGHT_STRING gives, with or without regard of trailing
spaces."""

OBSTACLES = {
    "VIEW": "is a view, and shardrun reads tables only",
    "SYSTEM VIEW": "is a view, and shardrun reads tables only",
    "SEQUENCE": "is a sequence, and shardrun reads tables only",
}

FIND = """\
select t.table_schema, t.table_name, t.table_type, t.engine, @@lower_case_table_names,
       exists (select * from information_schema.triggers g
                where g.event_object_schema = t.table_schema and g.event_object_table = t.table_name)
  from information_schema.tables t
 where t.table_schema = coalesce(%s, database()) and t.table_name = %s"""

COLUMNS = """\
select column_name, data_type, column_type, is_nullable, column_default, extra, generation_expression,
       character_maximum_length, datetime_precision, collation_name
  from information_schema.columns
 where table_schema = %s and table_name = %s
 order by ordinal_position"""

DOCUMENTS = """\
select check_clause
  from information_schema.check_constraints
 where constraint_schema = %s and table_name = %s and check_clause like 'json_valid(%%'"""
"""MariaDB's JSON is text with such a condition."""

INDEXES = """\
select *
  from information_schema.statistics
 where table_schema = %s and table_name = %s
 order by index_name, seq_in_index"""

GRANTS = (
    "select '%%', '' from information_schema.user_privileges where privilege_type = 'TRIGGER' and grantee = %s",
    "select table_schema, '' from information_schema.schema_privileges where privilege_type = 'TRIGGER' and grantee = %s",
    "select table_schema, table_name from information_schema.table_privileges where privilege_type = 'TRIGGER' and grantee = %s",
)
"""Where a user may see triggers: databases, as patterns, and tables. What a role grants is not among it."""

TABLES = """\
select case when table_schema = database() then table_name else concat(table_schema, '.', table_name) end
  from information_schema.tables
 where table_schema not in ('information_schema', 'mysql', 'performance_schema', 'sys')
 limit 10000"""


@dataclass(frozen=True, slots=True)
class MysqlColumn(Column):
    """A column with what a copy of it needs: its collation, and whether the server writes it at every update."""

    collation: str | None = None
    on_update: bool = False


def read(connection: Connection, parts: Sequence[str]) -> Table | None:
    """Read a table by the parts of its name, found as the server finds it; None where there is none."""
    if len(parts) > 2:
        return None
    with naming_errors(connection):
        found = _find(connection, parts)
        if found is None:
            return None
        schema, name, family, engine, rewrites = found
        values = (schema, name)
        documents = _documents(connection, values)
        rewrites = rewrites or not _sees_triggers(connection, schema, name)
        columns = [_column(row, documents) for row in connection.execute(COLUMNS, values).fetchall()]
        cursor = connection.execute(INDEXES, values)
        fields = [field[0].lower() for field in cursor.description]
        indexes = _indexes([dict(zip(fields, row, strict=True)) for row in cursor.fetchall()])
    key = next((tuple(column[0] for column in index.columns) for index, _ in indexes if index.name == "PRIMARY"), ())
    return Table(
        parts=(schema, name),
        columns={column.name: column for column in columns},
        primary_key=key,
        unique=frozenset(index.columns[0][0] for index, unique in indexes if unique and len(index.columns) == 1),
        indexes=tuple(_with_key(index, key) for index, _ in indexes),
        rewrites=rewrites,
        obstacle=OBSTACLES.get(family) or _engine(name, engine),
    )


def names(connection: Connection) -> list[str]:
    """List the tables that there are, as one would write their names."""
    with naming_errors(connection):
        return [row[0] for row in connection.execute(TABLES).fetchall()]


def kind_of(name: str) -> str:
    """Say what a type holds, by its name without length or sign."""
    return KINDS.get(name.lower(), "other")


def _find(connection: Connection, parts: Sequence[str]) -> tuple[str, str, str, str | None, bool] | None:
    """Find a table: by its very name, or by another case of it where the server takes that for the same."""
    rows = connection.execute(FIND, (parts[0] if len(parts) == 2 else None, parts[-1])).fetchall()
    same = [row for row in rows if row[1] == parts[-1]] or [row for row in rows if row[4]]
    if not same:
        return None
    schema, name, family, engine, _, rewrites = same[0]
    return schema, name, family, engine, bool(rewrites)


def _sees_triggers(connection: Connection, schema: str, name: str) -> bool:
    """Tell whether a table's triggers would be told; where that is not plain, rather not: then claims read their rows again."""
    user, _, host = connection.execute("select current_user()").fetchall()[0][0].rpartition("@")
    granted = [row for text in GRANTS for row in connection.execute(text, (f"'{user}'@'{host}'",)).fetchall()]
    return any(_is_like(schema, pattern) and table in ("", name) for pattern, table in granted)


def _is_like(text: str, pattern: str) -> bool:
    """Tell whether a name is like a pattern of a grant."""
    parts = re.findall(r"\\?.", pattern, re.DOTALL)
    spelt = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(spelt, text, re.DOTALL) is not None


def _engine(name: str, engine: str | None) -> str | None:
    if (engine or "").lower() == "innodb":
        return None
    return (
        f"is kept by the engine {engine or 'NONE'}, which has no transactions and locks no rows. "
        f"alter table `{name.replace('`', '``')}` engine = InnoDB"
    )


def _documents(connection: Connection, values: tuple[str, str]) -> set[str]:
    if not connection.on_mariadb:
        return set()
    clauses = (row[0] for row in connection.execute(DOCUMENTS, values).fetchall())
    found = (re.fullmatch(r"json_valid\(`(.*)`\)", clause, re.IGNORECASE) for clause in clauses)
    return {match[1].replace("``", "`") for match in found if match}


def _column(row: Sequence[Any], documents: set[str]) -> MysqlColumn:
    name, family, spelling, nullable, default, extra, expression, length, digits, collation = row
    kind = "json" if name in documents else kind_of(family)
    extra = extra.lower()
    return MysqlColumn(
        name=name,
        kind=kind,
        type=_text(spelling),
        nullable=nullable == "YES",
        has_default=default not in (None, "NULL") or "auto_increment" in extra or "default_generated" in extra,
        generated=bool(expression),
        digits=int(digits or 0) if kind in ("timestamp", "timestamptz") else 6,
        length=int(length) if length is not None and kind == "text" else None,
        equality=_equality(kind, collation),
        collation=collation,
        on_update="on update" in extra,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _equality(kind: str, collation: str | None) -> str | None:
    """Say how values compare; equal documents may be written in several ways."""
    if kind == "json":
        return None
    if kind != "text" or collation is None:
        return "exact"
    return NOPAD if "nopad" in collation or "_0900_" in collation else PAD


def _indexes(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Index, bool]]:
    """Gather indexes that can be walked in order; a part that is an expression or a prefix has no name."""
    columns: dict[str, list[tuple[str, bool, bool | None]]] = {}
    unique: dict[str, bool] = {}
    for row in rows:
        hidden = row.get("is_visible") == "NO" or row.get("ignored") == "YES"
        if row["index_type"] == "BTREE" and not hidden:
            whole = row["sub_part"] is None and row["column_name"] is not None
            name = row["column_name"] if whole else ""
            columns.setdefault(row["index_name"], []).append((name, row["collation"] == "D", None))
        if row["index_type"] in ("BTREE", "HASH"):
            unique[row["index_name"]] = not int(row["non_unique"]) and row["sub_part"] is None
    return [
        (Index(name, tuple(parts), is_unique=unique[name] and len(parts) == 1), unique[name])
        for name, parts in columns.items()
    ]


def _with_key(index: Index, key: Sequence[str]) -> Index:
    """Add the primary key, which every other index ends with."""
    named = {name for name, _, _ in index.columns}
    return replace(index, columns=(*index.columns, *((name, False, None) for name in key if name not in named)))
