"""Run a queue's own SELECT (`fetch=`) over the ids of a claim, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from shardrun import fetching
from shardrun.db import fetched
from shardrun.db.postgres import catalogue
from shardrun.db.postgres.driver import Connection, array_of, name_error, naming_errors
from shardrun.db.postgres.parts import identity, quote, type_of, value
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout
from shardrun.errors import StatementFailed

KINDS = """
select t.oid, t.typname, t.typtype::text, e.typname
  from pg_type t left join pg_type e on e.oid = t.typelem and t.typcategory = 'A'
 where t.oid = any (%s)"""

Spell = Callable[[Iterable[Any]], str]


class Fetch:
    """The SELECT over a list of ids, around the user's own: values come as they do in row mode."""

    def __init__(self, layout: Layout, text: str, columns: Sequence[Column]) -> None:
        key = quote(layout.roles["id"].name)
        ids = f"%(ids)s::{type_of(layout.roles['id'])}[]"
        chosen = [identity(f"f.{key}", layout), *(value(f"f.{quote(column.name)}", column) for column in columns)]
        condition = "" if fetching.names_ids(text) else f"\n where f.{key} = any ({ids})"
        lines = ",\n       ".join(chosen)
        self.statement = Statement(f"select {lines}\n  from (\n{_inner(layout, text)}\n) as f{condition}", ("ids",))
        self._names = [column.name for column in columns]
        self._spell: Spell = array_of(layout.roles["id"])

    def bodies(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, Any]:
        """Fetch the bodies of rows that were just claimed, inside the claim's transaction."""

        def run(some: Sequence[Any]) -> list[tuple[Any, ...]]:
            try:
                with connection.transaction():  # a savepoint: what fails here must not undo the claim
                    given = {"ids": self._spell(some)}
                    return connection.execute(self.statement.text, given, prepare=True).fetchall()
            except psycopg.Error as error:
                raise name_error(error, connection) from error
            except (ValueError, RecursionError) as error:  # a loader's
                raise StatementFailed(f"a value cannot be read: {error}") from error

        return fetched.bodies(ids, self._names, run) if ids else {}


def build(connection: Connection, layout: Layout, text: str, where: str) -> Fetch:
    """Ask the server what the SELECT returns; raises `DeclarationProblem` where that does not do."""
    try:
        with naming_errors(connection):
            looked = connection.execute(f"select *\n  from (\n{_inner(layout, text)}\n) as f limit 0", {"ids": "{}"})
            described = [(column.name, column.type_code) for column in looked.description or ()]
            kinds = {row[0]: row[1:] for row in connection.execute(KINDS, ([code for _, code in described],))}
    except StatementFailed as error:
        raise fetched.refused(where, error) from error
    key = layout.roles["id"]
    fetched.check(where, key.name, [name for name, _ in described])
    columns = [_column(name, kinds[code]) for name, code in described]
    own = next(column for column in columns if column.name == key.name)
    if own.kind != key.kind:
        raise fetched.other_type(where, key.name, own.type, key.type)
    return Fetch(layout, text, columns)


def _inner(layout: Layout, text: str) -> str:
    """Write the user's SELECT with the driver's placeholder; a line of its own ends a comment in it."""
    return fetching.expand(text.replace("%", "%%"), f"select unnest(%(ids)s::{type_of(layout.roles['id'])}[])")


def _column(name: str, kind: Sequence[Any]) -> Column:
    base, family, element = kind
    return Column(name=name, kind=catalogue.kind_of(base, family, element), type=base)
