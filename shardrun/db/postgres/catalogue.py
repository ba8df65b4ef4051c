"""Read tables from PostgreSQL's catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardrun.db.postgres.driver import Connection, naming_errors
from shardrun.db.table import Column, Index, Table

KINDS = {
    "int2": "int",
    "int4": "int",
    "int8": "int",
    "float4": "float",
    "float8": "float",
    "varchar": "text",
    "bpchar": "text",
    "name": "text",
    "char": "text",
    "citext": "text",
    "bytea": "binary",
}
"""Types whose kind has another name; those in SAME are named alike, all others are "other"."""

SAME = ("numeric", "text", "json", "jsonb", "bool", "uuid", "timestamp", "timestamptz", "date", "time")

SPELT = ("inet", "cidr", "macaddr", "macaddr8", "oid", "timetz", "money")
"""Types of other kinds whose equal values have equal texts."""

OTHERS = {"v": "view", "m": "materialized view", "f": "foreign table"}
OBSTACLES = {kind: f"is a {name}, and shardrun reads tables only" for kind, name in OTHERS.items()}

FIND = """
select c.oid, n.nspname, c.relname, c.relkind::text, c.relhastriggers or c.relhasrules or c.relrowsecurity,
       array(select h.inhrelid::regclass::text from pg_inherits h
              where h.inhparent = c.oid and c.relkind = 'r' order by 1)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid = to_regclass(%s)"""

COLUMNS = """
with recursive bases as (
  select a.attnum, a.atttypid as type, a.atttypmod as modifier
    from pg_attribute a where a.attrelid = %(table)s and a.attnum > 0 and not a.attisdropped
  union all
  select b.attnum, t.typbasetype, case when b.modifier = -1 then t.typtypmod else b.modifier end
    from bases b join pg_type t on t.oid = b.type and t.typtype = 'd'
)
select a.attname, t.typname, t.typtype::text, e.typname, format_type(b.type, b.modifier), b.modifier,
       a.attnotnull, a.attgenerated <> '', a.atthasdef or a.attidentity <> '', coalesce(l.collisdeterministic, true)
  from pg_attribute a
  join bases b on b.attnum = a.attnum
  join pg_type t on t.oid = b.type and t.typtype <> 'd'
  left join pg_type e on e.oid = t.typelem and t.typcategory = 'A'
  left join pg_collation l on l.oid = a.attcollation
 where a.attrelid = %(table)s
 order by a.attnum"""

INDEXES = """
select i.indexrelid::regclass::text, i.indisunique and i.indpred is null, i.indisprimary,
       pg_get_expr(i.indpred, i.indrelid), i.indnkeyatts,
       array(select coalesce(a.attname::text, '') from unnest(i.indkey) with ordinality k(number, place)
               left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number and k.number > 0
              where k.place <= i.indnkeyatts order by k.place),
       array(select o.bits::int from unnest(i.indoption) with ordinality o(bits, place) order by o.place),
       m.amname
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am m on m.oid = c.relam
 where i.indrelid = %(table)s and i.indisvalid
 order by 1"""

TABLES = """
select case when n.nspname = any (current_schemas(false)) then c.relname else n.nspname || '.' || c.relname end
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p', 'v') and n.nspname not in ('pg_catalog', 'information_schema')
   and n.nspname not like 'pg\\_%%' limit 10000"""


KEEPING = """
select t.tgname
  from pg_trigger t join pg_proc p on p.oid = t.tgfoid
 where t.tgrelid = to_regclass(%s) and not t.tgisinternal and t.tgenabled in ('O', 'A')
   and t.tgtype & 11 = 11 and p.prosrc ~* 'return\\s+null'
 order by 1"""
"""11: for each row, before, on delete."""

KEEPS = (
    "trigger {}, before delete, can return NULL. A row whose deletion it swallows counts as lost when it ends, and runs "
    "again and again. Have it return OLD, or let finished rows stay: processed_at=."
)


def read(connection: Connection, parts: Sequence[str]) -> Table | None:
    """Read a table by the parts of its name, found as the server finds it; None where there is none."""
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    with naming_errors(connection):
        found = connection.execute(FIND, (quoted,)).fetchone()
        if found is None:
            return None
        oid, schema, name, kind, rewrites, heirs = found
        columns = [_column(row) for row in connection.execute(COLUMNS, {"table": oid})]
        indexes = connection.execute(INDEXES, {"table": oid}).fetchall()
    return Table(
        parts=(schema, name),
        columns={column.name: column for column in columns},
        primary_key=next((tuple(row[5]) for row in indexes if row[2]), ()),
        unique=frozenset(row[5][0] for row in indexes if row[1] and row[4] == 1 and row[5][0]),
        indexes=tuple(_index(row) for row in indexes if row[7] == "btree"),
        rewrites=rewrites,
        obstacle=_inherited(heirs) if heirs else OBSTACLES.get(kind),
    )


def keeping_rows(connection: Connection, table: Table) -> list[str]:
    """Say which triggers of a table may swallow a DELETE, as far as the text of their functions tells."""
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in table.parts)
    with naming_errors(connection):
        return [KEEPS.format(row[0]) for row in connection.execute(KEEPING, (quoted,))]


def names(connection: Connection) -> list[str]:
    """List the tables that there are, as one would write their names."""
    with naming_errors(connection):
        return [row[0] for row in connection.execute(TABLES)]


def _inherited(heirs: Sequence[str]) -> str:
    return (
        f"is inherited from by {', '.join(heirs)}, whose ids may be the same. Make them partitions, or name each heir as a "
        f"queue of its own"
    )


def _column(row: Sequence[Any]) -> Column:
    name, base, family, element, spelling, modifier, required, generated, default, deterministic = row
    kind = kind_of(base, family, element)
    length = modifier - 4 if base in ("varchar", "bpchar") and modifier > 4 else None
    return Column(
        name=name,
        kind=kind,
        type=spelling,
        nullable=not required,
        has_default=default,
        generated=generated,
        digits=modifier if kind in ("timestamp", "timestamptz") and 0 <= modifier <= 6 else 6,
        length=length,
        equality=_equality(base, kind, deterministic),
    )


def kind_of(base: str, family: str, element: str | None) -> str:
    """Say what a type holds, by its name, its family and its elements' name."""
    if family == "e":
        return "enum"
    if element is not None:
        return "array" if element in SAME or element in KINDS else "other"
    return base if base in SAME else KINDS.get(base, "other")


def _equality(base: str, kind: str, deterministic: bool) -> str | None:
    """Say how values compare: None where two spellings of one value cannot be told to be equal."""
    if not deterministic or kind in ("json", "jsonb", "array"):
        return None
    if kind == "other":
        return "exact" if base in SPELT else None
    return "nocase" if base == "citext" else "exact"


def _index(row: Sequence[Any]) -> Index:
    columns = tuple((name, bool(bits & 1), bool(bits & 2)) for name, bits in zip(row[5], row[6], strict=False))
    return Index(name=row[0], columns=columns, condition=row[3])
