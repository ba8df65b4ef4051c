"""The text of the statements that claim strand by strand on SQLite; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from shardrun.db.sqlite import ddl, sql, strands_sql
from shardrun.db.statement import Statement
from tests.sql.test_golden import FOLDER, LAYOUTS, columns, layout

LAID = {
    "fifo": replace(LAYOUTS["standard"], strand="group", by_key=False),
    "fifo_least": layout(columns("id", "group", "attempt", "locked_until", "processed_at"), strand="group"),
    "cluster_hostile_names": replace(LAYOUTS["hostile_names"], strand="partition_key"),
}


@pytest.mark.parametrize("name", LAID)
def test_statements_of_strands_read_as_they_were_reviewed(name: str) -> None:
    """A1, D3, D4, R6: names are quoted in every statement; which rows are looked at, and in which order."""
    laid = LAID[name]
    found = {
        "walk, from the first": strands_sql.walk(laid, goes_on=False),
        "walk": strands_sql.walk(laid, goes_on=True),
        "one": strands_sql.one(laid),
        "line": strands_sql.line(laid),
        "rows": strands_sql.rows(laid, 2),
        "candidates of no strand": sql.candidates(laid, 0),
        "waiting": sql.waiting(laid),
        "index": Statement(ddl.index_of(laid).rstrip(";")),
    }
    text = "\n".join(f"-- {verb} ({', '.join(one.parameters)})\n{one.text};\n" for verb, one in found.items())
    file = FOLDER / f"sqlite_strands_{name}.sql"
    if os.environ.get("SHARDRUN_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text
