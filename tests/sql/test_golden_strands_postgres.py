"""The text of the statements that claim strand by strand on PostgreSQL; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from shardrun.db.postgres import ddl, locks_sql, sql, strands_sql
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout
from shardrun.queue import Form
from tests.sql.test_golden import FOLDER, LAYOUTS, columns, layout
from tests.sql.test_golden_locks import without_lease

ATTEMPT = Column("attempt", "int", "integer", nullable=False)
LAID = {
    "fifo": replace(LAYOUTS["standard"], strand="group", by_key=False),
    "fifo_least": layout(columns("id", "group", "locked_until", "processed_at", attempt=ATTEMPT), strand="group"),
    "fifo_row_lock": without_lease(LAYOUTS["group"], form=Form.ROW_LOCK, strand="group"),
    "cluster_hostile_names": replace(LAYOUTS["hostile_names"], strand="partition_key"),
}


def statements(laid: Layout) -> dict[str, Statement]:
    """Map the statements of a layout to what they are for."""
    holds_rows = laid.form is Form.ROW_LOCK
    found = {
        "walk, from the first": strands_sql.walk(laid, goes_on=False),
        "walk": strands_sql.walk(laid, goes_on=True),
        "these": strands_sql.these(laid),
        "guard": strands_sql.guard(laid, first_alone=holds_rows),
        "choose": strands_sql.choose(laid),
        "waiting": sql.waiting(laid),
        "index": Statement(ddl.index_of(laid).rstrip(";")),
    }
    if holds_rows:
        return found | {"guard of a row": strands_sql.guard_of(laid), "rows of no strand": locks_sql.claim(laid)}
    return found | {"rows of no strand": sql.claim(laid, leaving_out=False)}


@pytest.mark.parametrize("name", LAID)
def test_statements_of_strands_read_as_they_were_reviewed(name: str) -> None:
    """A1, D3, D4, R5, R6: names are quoted; the guard and the choice of rows are statements of their own."""
    found = statements(LAID[name])
    text = "\n".join(f"-- {verb} ({', '.join(one.parameters)})\n{one.text};\n" for verb, one in found.items())
    file = FOLDER / f"postgres_strands_{name}.sql"
    if os.environ.get("SHARDRUN_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text
