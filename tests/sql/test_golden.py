"""The text of every statement, so that a change of SQL is seen in review; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from shardrun.db.mysql import sql as mysql
from shardrun.db.postgres import sql as postgres
from shardrun.db.sqlite import sql as sqlite
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout, Table

FOLDER = Path(__file__).parent / "golden"
TYPES = {
    "id": ("int", "bigint"),
    "payload": ("jsonb", "jsonb"),
    "headers": ("jsonb", "jsonb"),
    "group": ("text", "text"),
    "partition_key": ("text", "text"),
    "priority": ("int", "integer"),
    "retry_after": ("timestamptz", "timestamp with time zone"),
    "attempt": ("int", "integer"),
    "processed_at": ("timestamptz", "timestamp with time zone"),
    "locked_until": ("timestamptz", "timestamp with time zone"),
    "last_error": ("text", "text"),
}
HOSTILE = {"id": "User Id", "payload": "pay%load", "group": "group", "partition_key": 'a"b', "retry_after": "%(id)s"}


def columns(*roles: str, **special: Column) -> dict[str, Column]:
    """Give each role a column of its own name and usual type."""
    usual = {role: Column(role, TYPES[role][0], TYPES[role][1], nullable=role != "id") for role in roles}
    return usual | special


def layout(roles: Mapping[str, Column], parts: tuple[str, ...] = ("app", "jobs"), **settings: object) -> Layout:
    """Lay these roles over a table that has no other columns."""
    table = Table(parts, {column.name: column for column in roles.values()})
    return Layout(table, roles, **settings)  # type: ignore[arg-type]


ALL = [role for role in TYPES if role != "processed_at"]
DEAD = Table(("app", "dead"), columns(*ALL))
NAIVE = {
    "locked_until": Column("locked_until", "timestamp", "timestamp(0) without time zone", digits=0),
    "processed_at": Column("processed_at", "timestamp", "timestamp without time zone"),
    "retry_after": Column("retry_after", "timestamp", "timestamp(3) without time zone", digits=3),
    "last_error": Column("last_error", "text", "character varying(50)", length=50),
}
LAYOUTS = {
    "least": layout(columns("id", "locked_until")),
    "standard": layout(columns(*ALL), by_key=True, dead=DEAD, copied=tuple(ALL)),
    "finished_rows_stay": layout(columns("id", "payload", "attempt", **NAIVE), lease=2.5),
    "group": layout(columns(*ALL), group="mails", dead_group="dead"),
    "hostile_names": layout(
        {role: Column(HOSTILE.get(role, role), *TYPES[role]) for role in ALL},
        parts=("My Schema", 'or"der %s'),
        by_key=True,
        group="a %s",
        dead=Table(("dead",), {HOSTILE.get(role, role): Column(HOSTILE.get(role, role), *TYPES[role]) for role in ALL}),
        copied=tuple(HOSTILE.get(role, role) for role in ALL),
    ),
    "numeric_key": layout(
        columns("id", "locked_until", partition_key=Column("partition_key", "numeric", "numeric")), by_key=True
    ),
}

MYSQL = {"timestamptz": "timestamp", "jsonb": "json"}


def as_mysql_has_it(laid: Layout) -> Layout:
    """Give a layout's columns the types that they would have there: other times, JSON and text."""

    def other(column: Column) -> Column:
        length = column.length or (255 if column.kind == "text" else None)
        return replace(column, kind=MYSQL.get(column.kind, column.kind), length=length)

    def table(there: Table) -> Table:
        key = laid.roles["id"].name
        return replace(there, columns={name: other(one) for name, one in there.columns.items()}, primary_key=(key,))

    roles = {role: other(column) for role, column in laid.roles.items()}
    return replace(laid, table=table(laid.table), roles=roles, dead=laid.dead and table(laid.dead))


VERBS: Mapping[ModuleType, Mapping[str, Callable[[Layout], Statement | None]]] = {
    postgres: {
        "claim": lambda laid: postgres.claim(laid, leaving_out=False),
        "claim, full lanes left out": lambda laid: postgres.claim(laid, leaving_out=True) if laid.by_key else None,
        **{
            name: getattr(postgres, name)
            for name in ("lease_end", "extend", "ack", "drop", "retry", "snooze", "bury", "release", "recount", "look")
        },
        "backlog": postgres.backlog,
        "waiting": postgres.waiting,
    },
    sqlite: {
        "candidates": lambda laid: sqlite.candidates(laid, 0),
        "candidates, full lanes left out": lambda laid: sqlite.candidates(laid, 2) if laid.by_key else None,
        "claim": lambda laid: sqlite.claim(laid, 2),
        "lease_end": sqlite.lease_end,
        "extend": lambda laid: sqlite.extend(laid, 2),
        "still_held": lambda laid: sqlite.still_held(laid, 2),
        "ack": lambda laid: sqlite.ack(laid, 2),
        **{name: getattr(sqlite, name) for name in ("drop", "retry", "snooze", "bury", "remove")},
        "release": lambda laid: sqlite.release(laid, 2),
        "recount": sqlite.recount,
        "look": lambda laid: sqlite.look(laid, 2),
        "backlog": sqlite.backlog,
        "waiting": sqlite.waiting,
        "awaited": lambda laid: sqlite.awaited(laid, 2),
    },
    mysql: {
        "candidates": lambda laid: mysql.candidates(laid, leaving_out=False),
        "candidates, full lanes left out": lambda laid: (
            mysql.candidates(laid, leaving_out=True) if laid.by_key else None
        ),
        **{
            name: getattr(mysql, name) for name in ("take", "claim", "claimed", "lease_end", "take_to_extend", "extend")
        },
        "hold_all": mysql.hold_all,
        "held": mysql.held,
        "held, locked": lambda laid: mysql.held(laid, "for update skip locked"),
        **{name: getattr(mysql, name) for name in ("ack", "drop", "retry", "snooze", "bury", "remove", "release")},
        **{name: getattr(mysql, name) for name in ("recount", "look", "backlog", "waiting")},
    },
}


def written(dialect: ModuleType, laid: Layout) -> str:
    """Write every statement of a layout under the name of its verb."""
    pieces = []
    for name, build in VERBS[dialect].items():
        statement = build(as_mysql_has_it(laid) if dialect is mysql else laid)
        if statement is not None:
            pieces.append(f"-- {name} ({', '.join(statement.parameters)})\n{statement.text};\n")
    return "\n".join(pieces)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dialect", VERBS, ids=lambda module: module.__name__.split(".")[-2])
def test_statements_read_as_they_were_reviewed(dialect: ModuleType, name: str) -> None:
    """A1, C92: names are quoted in every statement, hostile ones too."""
    file = FOLDER / f"{dialect.__name__.split('.')[-2]}_{name}.sql"
    text = written(dialect, LAYOUTS[name])
    if os.environ.get("SHARDRUN_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text


def test_all_dialects_have_the_same_verbs_in_the_same_order() -> None:
    """A1: what one dialect can do, the other can, and is found at the same place."""
    verbs = (
        "claim",
        "lease_end",
        "extend",
        "ack",
        "drop",
        "retry",
        "snooze",
        "bury",
        "release",
        "recount",
        "look",
        "backlog",
        "waiting",
    )
    for dialect in VERBS:
        order = [name for name in vars(dialect) if name in verbs]
        assert order == list(verbs)
