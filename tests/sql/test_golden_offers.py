"""The text of the statements that offer rows and take them; SHARDRUN_GOLDEN=write writes it anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import pytest

from shardrun.db.mysql import offers_sql as mysql
from shardrun.db.postgres import offers_sql as postgres
from shardrun.db.sqlite import offers, taking_offered
from shardrun.db.statement import Statement
from shardrun.db.table import Layout
from shardrun.queue import Form
from tests.sql.test_golden import FOLDER
from tests.sql.test_golden_locks import LAID

NAMES = ("row_lock", "advisory_hostile_names", "advisory_finished_rows_stay")


def of_postgres(laid: Layout) -> Mapping[str, Statement]:
    """List what PostgreSQL is asked."""
    looked, there = postgres.fate(laid)
    asked = {"offer": postgres.offer(laid, these=laid.form is Form.ADVISORY), "take": postgres.take(laid, "nowait")}
    if laid.form is Form.ADVISORY:
        asked |= {
            "free_keys": postgres.free_keys(laid),
            "key_number": postgres.key_number(laid),
        }
    return asked | {"stamped": postgres.stamped(laid), "fate": looked} | ({"dead": there} if there else {})


def of_mysql(laid: Layout) -> Mapping[str, Statement]:
    """List what MySQL and MariaDB are asked."""
    looked, there = mysql.fate(laid)
    asked = {"take": mysql.take(laid, "nowait"), "stamped": mysql.stamped(laid)}
    if laid.form is Form.ADVISORY:
        asked |= {"read": mysql.read(laid), "key_of": mysql.key_of(laid), "are_free": mysql.are_free(2)}
    else:
        asked["hold"] = mysql.hold(laid)
    return asked | {"fate": looked} | ({"dead": there} if there else {})


def of_sqlite(laid: Layout) -> Mapping[str, Statement]:
    """List what SQLite is asked, beside the claim's candidates."""
    if laid.form is Form.ROW_LOCK:
        return {}
    looked, there = taking_offered.fate(laid)
    return {"stamp": offers.Stamps(laid).statement, "fate": looked} | ({"dead": there} if there else {})


@pytest.mark.parametrize("name", NAMES)
def test_statements_of_offers_read_as_they_were_reviewed(name: str) -> None:
    """A1, B5, R3: names are quoted in every statement; what a row's stamp covers, and in which order things are locked."""
    laid = LAID[name] if name != "row_lock" else replace(LAID[name], isolation=None)
    for dialect, build in (("postgres", of_postgres), ("mysql", of_mysql), ("sqlite", of_sqlite)):
        found = build(laid).items()
        text = "\n".join(f"-- {verb} ({', '.join(one.parameters)})\n{one.text};\n" for verb, one in found)
        file = FOLDER / f"{dialect}_offers_{name}.sql"
        if os.environ.get("SHARDRUN_GOLDEN") == "write" and text:
            file.write_text(text)
        assert (file.read_text() if file.exists() else "") == text
