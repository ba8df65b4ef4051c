"""What operators' commands print: tables that fit a terminal and are whole in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from shardrun import listings
from shardrun.db.operate import Blocked, Blocking, Count, Counts, Failure, Failures, Sessions
from shardrun.operate import QueueStatus, Status

FULL = Counts(Count(100_000, True), Count(96), Count(310), Count(3), 3.14, indexed=True)
BARE = Counts(Count(0), None, None, None, None, indexed=True)
SERVER = Sessions(
    100, 58, ["shardrun a-1", "shardrun a-1 child 1", "shardrun status"], ["shardrun a-1 child 12", "shardrun b-22"]
)


def found(table: str, sessions: Sessions | None = SERVER) -> Status:
    """Make a status of two queues."""
    queues = [
        QueueStatus("invoices", "render", table, None, "lease 30 s", FULL),
        QueueStatus("mails", None, "app.mails", None, "row lock", BARE),
    ]
    return Status("PostgreSQL 15.18 at db/app", queues, sessions)


def test_status_reads_as_it_was_drawn() -> None:
    """K1, text 2.5: counts that stopped have a +, what cannot be known is -; replicas are told by name, commands are not."""
    assert listings.status(found("billing.invoice_jobs"), None) == [
        "queue     table                      due  in work  later  dead  oldest due",
        "invoices  billing.invoice_jobs  100,000+       96    310     3       3.1 s",
        "mails     app.mails                    0        -      -     -           -",
        "replicas     a-1, b-22",
        "connections  3 of the server's 100 are shardrun's, 58 in use in all",
    ]


def test_status_names_what_a_failed_row_keeps_waiting() -> None:
    """K1, D3, text 2.5: the group, the row, how often it failed and when it is tried again; the error's first line last."""
    this_year = datetime.now(UTC).year
    listed = [
        Blocking("118", 99120, 3, 41.2, f"{this_year}-11-30 12:01:07", "ConnectionError: refused\nat line 3"),
        Blocking("a\tb", 5, 1, 90.0, None, None),
    ]
    full = replace(FULL, blocked=Blocked(listed, 14, True))
    orders = QueueStatus("orders", "ship", "orders", None, "lease 30 s", full, "account", "group")
    status = Status("SQLite", [orders], None)
    lines = listings.status(status, None)
    assert lines[-3:] == [
        "blocked groups (orders): account 118, row 99120 failed 3 times, last tried 11-30 12:01:07, next try in 41.2 s: "
        "ConnectionError: refused",
        "                         account a b, row 5 failed once, next try in 1 min 30 s",
        "                         +12 more, and not all of the table was looked at",
    ]
    assert max(map(len, listings.status(status, 90))) == 90
    blocked = json.loads(listings.status_json(status))["queues"][0]["blocked"]
    assert (blocked["number"], blocked["more"], blocked["listed"][1]) == (
        14,
        True,
        {
            "value": "a\tb",
            "row": "5",
            "attempts": 1,
            "last_tried": None,
            "next_try_seconds": 90.0,
            "last_error": None,
        },
    )


def test_status_does_not_say_whose_connections_are_where_the_server_keeps_no_names() -> None:
    """K1: MariaDB as it is installed; unknown is not none."""
    unnamed = found("q", Sessions(151, 58, None, None))
    assert listings.status(unnamed, None)[-2:] == [
        "replicas     -",
        "connections  58 of the server's 151 are in use; whose they are is not known",
    ]
    document = json.loads(listings.status_json(unnamed))
    assert (document["replicas"], document["connections"]) == (None, {"shardrun": None, "in_use": 58, "limit": 151})


def test_a_table_gives_way_to_a_narrow_terminal_and_is_whole_in_a_file() -> None:
    """K1: the name of the table is cut, so that the numbers stay in one line."""
    long = found("a_schema_with_a_name.a_table_with_a_name_as_well")
    narrow = listings.status(long, 80)
    assert max(map(len, narrow)) <= 80
    assert narrow[1].startswith("invoices  a_schema_with_a_name")
    assert "…" in narrow[1]
    assert "a_schema_with_a_name.a_table_with_a_name_as_well " in listings.status(long, None)[1]


@pytest.mark.parametrize("width", [80, 120])
def test_errors_are_cut_at_the_terminals_edge_and_nowhere_else(width: int) -> None:
    """E3: one line each, whatever characters an error holds."""
    error = "ValueError: \x1b[31mred\t" + "x" * 200
    failures = Failures(
        [Failure(error, 1200, "2020-01-02 03:04:05", None, 7), Failure(None, 1, None, None, 8)], 52, 1300, True
    )
    lines = listings.failures("table d", failures, None, width)
    assert lines[0].split() == ["rows", "first", "due", "last", "due", "a", "row", "error"]
    assert len(lines[1]) == width
    assert lines[1].startswith("1,200  2020-01-02         -      7  ValueError:  [31mred x")
    assert lines[2].endswith("(none was recorded)")
    assert lines[3:] == [
        "and 50 more errors in 99 rows",
        "only 110,000 dead letters were looked at; there are more",
    ]
    assert listings.failures("table d", failures, None, None)[1].endswith("x" * 200)
