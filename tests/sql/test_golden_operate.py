"""The text of the statements that operators' commands run; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from shardrun.db.mysql import dead as mysql_dead
from shardrun.db.mysql import status as mysql_status
from shardrun.db.postgres import dead as postgres_dead
from shardrun.db.postgres import status as postgres_status
from shardrun.db.sqlite import dead as sqlite_dead
from shardrun.db.sqlite import status as sqlite_status
from shardrun.db.statement import Statement
from shardrun.db.table import Layout
from tests.sql.test_golden import ALL, FOLDER, LAYOUTS, columns, layout

CHOSEN: Mapping[str, Layout] = {
    **{name: LAYOUTS[name] for name in ("least", "standard", "finished_rows_stay", "group", "hostile_names")},
    "no_due_times": layout(columns("id", "priority", "locked_until")),
    "nullable_priority": layout(columns("id", "priority", "retry_after", "locked_until")),
    "group_in_a_table": layout(columns(*ALL), group="mails", dead=LAYOUTS["standard"].dead),
}

Build = Callable[[Layout], Statement | None]


def mysql_counts(laid: Layout) -> Statement:
    """Build the statement that counts a priority, or all rows where none has a due time."""
    return mysql_status.counts(laid) if "retry_after" in laid.roles else mysql_status.counts_without_due_times(laid)


STATUS: Mapping[str, Mapping[str, Build]] = {
    "postgres": {
        "counts": postgres_status.counts,
        "counts_by_id": postgres_status.counts_by_id,
        "dead": lambda laid: postgres_status.dead(laid, indexed=True),
        "dead, without an index": lambda laid: postgres_status.dead(laid, indexed=False),
    },
    "sqlite": {
        "counts": sqlite_status.counts,
        "counts_by_id": sqlite_status.counts_by_id,
        "dead": lambda laid: sqlite_status.dead(laid, indexed=True),
        "dead, without an index": lambda laid: sqlite_status.dead(laid, indexed=False),
    },
    "mysql": {
        "counts": mysql_counts,
        "first_level": lambda laid: mysql_status.first_level(laid) if "priority" in laid.roles else None,
        "next_level": mysql_status.next_level,
        "counts_by_id": mysql_status.counts_by_id,
        "dead": lambda laid: mysql_status.dead(laid, indexed=True),
        "dead, without an index": lambda laid: mysql_status.dead(laid, indexed=False),
    },
}

DEAD: Mapping[str, Mapping[str, Build]] = {
    "postgres": {
        "failures": postgres_dead.failures,
        "choose": lambda laid: postgres_dead.choose(laid, named=False),
        "choose, of a list": lambda laid: postgres_dead.choose(laid, named=True),
        "stuck": postgres_dead.stuck,
        "requeue": postgres_dead.requeue,
        "purge": postgres_dead.purge,
        "waiting": postgres_dead.waiting,
        "idle": postgres_dead.idle,
        "park": postgres_dead.park,
    },
    "sqlite": {
        "failures": sqlite_dead.failures,
        "choose": lambda laid: sqlite_dead.choose(laid, 0),
        "choose, of a list": lambda laid: sqlite_dead.choose(laid, 2),
        "stuck": lambda laid: sqlite_dead.stuck(laid, 2),
        "requeue": lambda laid: sqlite_dead.requeue(laid, 2),
        "remove": lambda laid: sqlite_dead.remove(laid, 2),
        "purge": lambda laid: sqlite_dead.purge(laid, 2),
        "waiting": lambda laid: sqlite_dead.waiting(laid, 2),
        "idle": lambda laid: sqlite_dead.idle(laid, 2),
        "park": lambda laid: sqlite_dead.park(laid, 2),
        "parked": lambda laid: sqlite_dead.parked(laid, 2),
    },
    "mysql": {
        "failures": mysql_dead.failures,
        "choose": lambda laid: mysql_dead.choose(laid, named=False),
        "choose, of a list": lambda laid: mysql_dead.choose(laid, named=True),
        "stuck": mysql_dead.stuck,
        "standing": mysql_dead.standing,
        "take": mysql_dead.take,
        "put_back": mysql_dead.put_back,
        "remove": mysql_dead.remove,
        "waiting": mysql_dead.waiting,
        "idle": mysql_dead.idle,
        "park": mysql_dead.park,
        "parked": mysql_dead.parked,
    },
}


ORDERED: Mapping[str, Layout] = {
    "fifo": replace(LAYOUTS["standard"], strand="group", by_key=False),
    "cluster": replace(LAYOUTS["group"], strand="partition_key", by_key=True),
}
"""Layouts whose rows have an order over replicas."""


@pytest.mark.parametrize("name", ORDERED)
def test_statements_of_a_status_in_order_read_as_they_were_reviewed(name: str) -> None:
    """A1, K1, D3: what blocks a group or a key is looked for within bounds."""
    laid = ORDERED[name]
    for dialect, module in (("postgres", postgres_status), ("sqlite", sqlite_status), ("mysql", mysql_status)):
        file = FOLDER / f"{dialect}_status_{name}.sql"
        texts = [module.counts_in_order(laid).text, module.blocked(laid).text]
        text = "".join(f"{each};\n\n" for each in texts)
        if os.environ.get("SHARDRUN_GOLDEN") == "write":
            file.write_text(text)
        assert file.read_text() == text


def written(dialect: str, laid: Layout) -> str:
    """Write every statement of a layout under its name; those for dead letters where it has any."""
    builders = dict(STATUS[dialect])
    if laid.dead is not None or laid.dead_group is not None:
        builders |= DEAD[dialect]
    pieces = []
    for name, build in builders.items():
        statement = build(laid)
        if statement is not None:
            pieces.append(f"-- {name} ({', '.join(statement.parameters)})\n{statement.text};\n")
    return "\n".join(pieces)


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("dialect", STATUS)
def test_operators_statements_read_as_they_were_reviewed(dialect: str, name: str) -> None:
    """A1, E3, K1: names are quoted in every statement, and every count has its bound."""
    file = FOLDER / f"{dialect}_operate_{name}.sql"
    text = written(dialect, CHOSEN[name])
    if os.environ.get("SHARDRUN_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("dialect", STATUS)
def test_every_read_of_a_count_is_limited(dialect: str, name: str) -> None:
    """K1: no count reads a table without a limit on the rows that it looks at."""
    for build in STATUS[dialect].values():
        statement = build(CHOSEN[name])
        if statement is not None:
            reads = statement.text.count("as c where") + statement.text.count("from (select * from")
            assert statement.text.count(" limit ") + statement.text.count("min(") >= reads
