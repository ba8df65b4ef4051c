"""Ways to break claims of strands, each one step of them, so that a test of them can be seen to find it (R5, R6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shardrun.db.postgres import driver as postgres_driver
from shardrun.db.postgres import strands as postgres_strands
from shardrun.db.postgres import strands_sql as postgres_sql
from shardrun.db.postgres.driver import array_of
from shardrun.db.sqlite import driver as sqlite_driver
from shardrun.db.sqlite import strands as sqlite_strands
from shardrun.db.sqlite import strands_sql as sqlite_sql
from shardrun.db.store import Connection
from tests.store.place import Place

Spoil = Callable[[Any], None]
"""Breaks a store that was built."""

Break = Callable[[Place, pytest.MonkeyPatch], Spoil | None]


def guard_always_granted(place: Place, patch: pytest.MonkeyPatch) -> Spoil | None:
    """R5: the guard keeps nobody out."""
    if place.dialect == "postgres":
        real = postgres_sql._guarded
        patch.setattr(postgres_sql, "_guarded", lambda layout, name: f"{real(layout, name)} is not null")
        return None

    @contextmanager
    def writing(connection: Connection) -> Iterator[None]:
        with sqlite_driver.naming_errors(connection):
            yield

    patch.setattr(sqlite_strands, "driver", SimpleNamespace(**{**vars(sqlite_driver), "writing": writing}))
    return None


def take_believes_the_look(place: Place, patch: pytest.MonkeyPatch) -> Spoil | None:
    """R5, R6: rows are not read again behind the guard."""
    return believes_on_a_server(patch) if place.dialect == "postgres" else believes_in_a_file


def believes_on_a_server(patch: pytest.MonkeyPatch) -> Spoil:
    chosen: dict[int, tuple[Any, Any, dict[str, list[Any]]]] = {}  # by each store's statement: in which life, by strand

    def run(connection: Connection, statement: Any, values: Any) -> Any:
        store, life, seen = chosen.get(id(statement), (None, None, {}))
        names = re.findall(r"\w+", values["strands"]) if store is not None and store.strands is life else []
        if names and all(name in seen for name in names):
            pairs = [(name, id) for name in names for id in seen[name]]
            return SimpleNamespace(fetchall=lambda: pairs[: values["limit"]])
        return postgres_driver.run(connection, statement, values)

    patch.setattr(postgres_strands, "driver", SimpleNamespace(**{**vars(postgres_driver), "run": run}))

    def spoil(store: Any) -> None:
        look, line, key = store.look, store._line, store.layout.roles["id"]
        real_values = type(line).values

        def looking(
            connection: Connection, these: Any, after: Any, visits: int, full: Any, held: Collection[Any]
        ) -> Any:
            left, walked = look(connection, these, after, visits, full, held)
            names = [each.strand for each in (*left, *walked) if each.is_free]
            more = {"strands": f"{{{','.join(names)}}}", "limit": 99, "most": 8, "ids": array_of(key)([])}
            values = real_values(line, held, [], **more)
            found = connection.execute(line.choose.text, values).fetchall() if names else []
            if connection.info.transaction_status.name != "IDLE":
                connection.rollback()
            seen = {name: [each for its, each in found if its == name] for name in names}
            chosen[id(line.choose)] = store, store.strands, seen
            return left, walked

        store.look = looking

    return spoil


def believes_in_a_file(store: Any) -> None:
    look, free, chosen, life = store.look, store._free, dict[Any, list[Any]](), [store.strands]

    def looking(connection: Connection, these: Any, after: Any, visits: int, full: Any, held: Collection[Any]) -> Any:
        chosen.clear()
        left, walked = look(connection, these, after, visits, full, held)
        seen = {each.strand: list(free(connection, each.strand, 8, held)) for each in (*left, *walked)}
        chosen.update(seen)
        life[0] = store.strands
        return left, walked

    def believing(connection: Connection, strand: Any, limit: int, held: Collection[Any]) -> Any:
        if life[0] is not store.strands:  # that was before the replica has started again
            chosen.clear()
        return iter(chosen[strand][:limit]) if strand in chosen else free(connection, strand, limit, held)

    store.look, store._free = looking, believing


def begun_rows_pass(*roles: str) -> Break:
    """R5: rows of a group that have begun and are held, or put off, are passed over."""

    def passing(place: Place, patch: pytest.MonkeyPatch) -> Spoil | None:
        if place.dialect == "sqlite":
            real = sqlite_sql._begun
            patch.setattr(sqlite_sql, "_begun", lambda layout: f"{real(layout)} and {sqlite_sql._free_and_due(layout)}")
            return None
        begun, arm = postgres_sql._begun, postgres_sql._arm

        def blind(layout: Any) -> str:
            return begun(replace(layout, roles={role: it for role, it in layout.roles.items() if role not in roles}))

        def arm_of_free(layout: Any, at: int, conditions: Sequence[str], count: str) -> str:
            return arm(
                layout, at, [*conditions, *(postgres_sql._free(layout) if at == postgres_sql.BEGUN else [])], count
            )

        patch.setattr(postgres_sql, "_begun", blind)
        patch.setattr(postgres_sql, "_arm", arm_of_free)
        return None

    passing.__name__ = f"begun_rows_pass_{'_'.join(roles)}"
    return passing


def begun_rows_have_no_precedence(place: Place, patch: pytest.MonkeyPatch) -> Spoil | None:
    """R5, R6: rows that have begun stand where they would stand if they had not."""
    if place.dialect == "postgres":
        patch.setattr(postgres_sql, "BEGUN", postgres_sql.NOT_BEGUN)
        return None

    def as_one(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def written(layout: Any) -> Any:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(sqlite_sql, "_begun", lambda _layout: "0")
                inner.setattr(sqlite_sql, "_unbegun", lambda _layout: ["1"])
                return write(layout)

        return written

    patch.setattr(sqlite_sql, "_head", as_one(sqlite_sql._head))
    patch.setattr(sqlite_sql, "line", as_one(sqlite_sql.line))
    return None


def rows_of_others_pass(place: Place, _patch: pytest.MonkeyPatch) -> Spoil | None:
    """R6: rows that another replica holds are passed as if this one held them."""

    def everyones() -> list[Any]:
        return [id for (id,) in place.run(f"select id from q where locked_until > {place.seconds(0)}")]

    def spoil(store: Any) -> None:
        look, take = store.look, store.take
        store.look = lambda *given: look(*given[:-1], everyones())
        store.take = lambda *given: take(*given[:-1], everyones())

    return spoil


def rows_pass_those_before_them(place: Place, patch: pytest.MonkeyPatch) -> Spoil | None:
    """R6: a row of a key is claimed whatever stands before it."""
    if place.dialect == "postgres":
        real = postgres_sql._prefix_chosen

        def chosen(layout: Any) -> str:
            text = real(layout)
            assert "bool_and(l.is_free) over line as goes" in text
            return text.replace("bool_and(l.is_free) over line as goes", "l.is_free as goes")

        patch.setattr(postgres_sql, "_prefix_chosen", chosen)
        return None

    def spoil(store: Any) -> None:
        def free(connection: Connection, strand: Any, limit: int, held: Collection[Any]) -> Any:
            rows = connection.execute(store._line.text, store._values(strand)).fetchall()
            return iter([id for id, is_free in rows if is_free and id not in held][:limit])

        store._free = free

    return spoil


FIFO = ("postgres lease", "postgres row lock", "sqlite lease")
CLUSTER = ("postgres cluster", "sqlite cluster")

BREAKS: list[tuple[str, Break]] = [
    *((form, each) for form in FIFO + CLUSTER for each in (guard_always_granted, take_believes_the_look)),
    *((form, begun_rows_have_no_precedence) for form in FIFO + CLUSTER),
    *((form, begun_rows_pass("retry_after")) for form in FIFO),
    ("postgres lease", begun_rows_pass("locked_until")),
    *((form, each) for form in CLUSTER for each in (rows_of_others_pass, rows_pass_those_before_them)),
]
"""Forms, and what may be broken there. On a file what is held and what is put off is one condition."""
