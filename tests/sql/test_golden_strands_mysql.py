"""The text of the statements that claim strand by strand on MySQL and MariaDB; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from shardrun.db.mysql import ddl, locks_sql, sql, strands_sql
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Index, Layout
from shardrun.queue import Form
from tests.sql.test_golden import FOLDER, LAYOUTS, as_mysql_has_it, columns, layout
from tests.sql.test_golden_locks import without_lease

ATTEMPT = Column("attempt", "int", "integer", nullable=False)
LAID = {
    "fifo": replace(LAYOUTS["standard"], strand="group", by_key=False),
    "fifo_least": layout(columns("id", "group", "locked_until", "processed_at", attempt=ATTEMPT), strand="group"),
    "fifo_row_lock": without_lease(LAYOUTS["group"], form=Form.ROW_LOCK, strand="group"),
    "cluster_hostile_names": replace(LAYOUTS["hostile_names"], strand="partition_key"),
}


def indexed(laid: Layout) -> Layout:
    """Give a layout's table the index of its claims."""
    names = [*ddl.fixed(laid), *(laid.roles[role].name for role in laid.index)]
    index = Index("in `order`", tuple((name, False, None) for name in dict.fromkeys(names)))
    return replace(laid, table=replace(laid.table, indexes=(index,)))


def statements(laid: Layout) -> dict[str, Statement]:
    """Map the statements of a layout to what they are for."""
    found = {
        "walk, from the first": strands_sql.walk(laid, after=False),
        "walk": strands_sql.walk(laid, after=True),
        "these": strands_sql.these(laid, 2),
        "guard": strands_sql.guard(2),
        "strands of rows": strands_sql.strands_of(laid),
        "guard of a row": strands_sql.guard_of(laid),
        "unlock": strands_sql.UNLOCK,
        "waiting": sql.waiting(laid),
        "index": Statement(ddl.index_of(laid, on_mariadb=True).rstrip(";")),
    }
    if not laid.is_fifo:
        found["prefix"] = strands_sql.prefix(laid)
    if laid.form is Form.ROW_LOCK:
        return found | {
            "hold": locks_sql.hold(laid),
            "rows of no strand": locks_sql.candidates(laid, leaving_out=False),
        }
    return found | {
        "take": sql.take(laid, of_strands=True),
        "rows of no strand": sql.candidates(laid, leaving_out=False),
        "take rows of no strand": sql.take(laid),
    }


@pytest.mark.parametrize("name", LAID)
def test_statements_of_strands_read_as_they_were_reviewed(name: str) -> None:
    """A1, D3, D4, R5, R6, R10: names are quoted; looks lock nothing, go by their index, and ask of each strand by equality."""
    found = statements(indexed(as_mysql_has_it(LAID[name])))
    text = "\n".join(f"-- {verb} ({', '.join(one.parameters)})\n{one.text};\n" for verb, one in found.items())
    file = FOLDER / f"mysql_strands_{name}.sql"
    if os.environ.get("SHARDRUN_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text
