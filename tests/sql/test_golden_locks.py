"""The text of the statements for rows that locks hold; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType

import pytest

from shardrun.db.mysql import locks_sql as mysql
from shardrun.db.postgres import locks_sql as postgres
from shardrun.db.sqlite import locks_sql as sqlite
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Index, Layout
from shardrun.lock_key import pieces
from shardrun.queue import Form
from tests.sql.test_golden import FOLDER, LAYOUTS, columns, layout

VERBS = ("ack", "drop", "retry", "snooze", "bury", "release", "recount")


def without_lease(laid: Layout, **more: object) -> Layout:
    """Take the lease's column out of a layout."""
    roles = {role: column for role, column in laid.roles.items() if role != "locked_until"}
    return replace(laid, roles=roles, **more)  # type: ignore[arg-type]


LAID = {
    "row_lock": without_lease(LAYOUTS["standard"], form=Form.ROW_LOCK, isolation="repeatable read"),
    "row_lock_least": layout(columns("id"), form=Form.ROW_LOCK),
    "advisory": without_lease(
        LAYOUTS["group"], form=Form.ADVISORY, lock_key=tuple(pieces("it's 100% \\ {{x}} {partition_key}"))
    ),
    "advisory_hostile_names": without_lease(
        LAYOUTS["hostile_names"], form=Form.ADVISORY, lock_key=tuple(pieces('{User Id}-{a"b}'))
    ),
    "advisory_finished_rows_stay": layout(
        columns("id", "attempt", processed_at=Column("processed_at", "timestamp", "timestamp without time zone")),
        form=Form.ADVISORY,
        lock_key=tuple(pieces("{id}")),
    ),
}


def indexed(laid: Layout) -> Layout:
    """Give a layout's table the index of its claims."""
    fixed = ["processed_at", *(["group"] if laid.group is not None else [])]
    names = [laid.roles[role].name for role in (*fixed, *laid.order) if role in laid.roles]
    index = Index("claim's `index`", tuple((name, False, None) for name in names))
    return replace(laid, table=replace(laid.table, indexes=(index,)))


def of_postgres(laid: Layout) -> Mapping[str, Callable[[Layout], Statement | None]]:
    """Map the statements of a form to what writes them."""
    claims = ("begin", "claim", "take_again") if laid.form is Form.ROW_LOCK else ("lock_key", "take")
    return {name: getattr(postgres, name) for name in (*claims, *VERBS)}


def of_mysql(laid: Layout) -> Mapping[str, Callable[[Layout], Statement | None]]:
    """Map the statements of a form to what writes them."""
    keyed = laid.by_key and "partition_key" in laid.roles
    if laid.form is Form.ROW_LOCK:
        claims: dict[str, Callable[[Layout], Statement | None]] = {
            "candidates": lambda laid: mysql.candidates(laid, keyed),
            "candidates, by their index": lambda laid: mysql.candidates(indexed(laid), keyed),
            "hold": mysql.hold,
        }
    else:
        claims = {
            "candidates": lambda laid: mysql.keyed_candidates(laid, keyed),
            "candidates, by their index": lambda laid: mysql.keyed_candidates(indexed(laid), keyed),
            "lock_first": lambda _: mysql.lock_first(2),
            "take": mysql.take,
            "count": mysql.count,
            "taken": mysql.taken,
        }
    return claims | {name: getattr(mysql, name) for name in (*VERBS, "look", "remove")}


def of_sqlite(laid: Layout) -> Mapping[str, Callable[[Layout], Statement | None]]:
    """Map the statements of the one form that is there to what writes them."""
    if laid.form is Form.ROW_LOCK:
        return {}
    full = 2 if laid.by_key else 0
    return {
        "candidates": lambda laid: sqlite.candidates(laid, 2, full),
        **{name: getattr(sqlite, name) for name in ("count", *VERBS, "remove")},
    }


@pytest.mark.parametrize("name", LAID)
@pytest.mark.parametrize(
    ("dialect", "statements"),
    [(postgres, of_postgres), (mysql, of_mysql), (sqlite, of_sqlite)],
    ids=["postgres", "mysql", "sqlite"],
)
def test_statements_read_as_they_were_reviewed(
    dialect: ModuleType, statements: Callable[[Layout], Mapping[str, Callable[[Layout], Statement | None]]], name: str
) -> None:
    """A1, B1, B4: names are quoted in every statement, and a key's text is text, hostile ones too."""
    laid = LAID[name]
    found = [(verb, build(laid)) for verb, build in statements(laid).items()]
    text = "\n".join(
        f"-- {verb} ({', '.join(one.parameters)})\n{one.text};\n" for verb, one in found if one is not None
    )
    file = FOLDER / f"{dialect.__name__.split('.')[-2]}_{name}.sql"
    if os.environ.get("SHARDRUN_GOLDEN") == "write" and text:
        file.write_text(text)
    assert (file.read_text() if file.exists() else "") == text
