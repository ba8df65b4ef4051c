"""`shardrun status`: what the queues hold, and who is connected."""

from __future__ import annotations

import json

import pytest

from tests.cli.terminal import Terminal
from tests.servers import PASSWORD

QUEUES = """
import os
from shardrun import Queue

mails = Queue.standard("mails")
orders = Queue("orders", id="id", payload="payload", group="name", locked_until="locked_until", last_error="last_error")
produced = Queue("produced", id="id", locked_until="held_until", retry_after="due_at")


@mails.handler(max_attempts=1)
def send(mail: dict) -> None:
    if os.environ.get("BROKEN"):
        raise KeyError("smtp")


@orders.handler(group="live", dead_letter_group="gone")
def ship(order: dict) -> None: ...
"""

UNINDEXED = """
from shardrun import Queue

invoices = Queue("invoices", id="id", retry_after="retry_after", locked_until="locked_until")
"""


def new_database(request: pytest.FixtureRequest, server: str) -> str:
    """Create an empty database and give its DSN."""
    made = request.getfixturevalue(server)
    return str(made.url("mysql", made.new_database()) if server == "mariadb" else made.new_database())


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def queues(request: pytest.FixtureRequest, terminal: Terminal) -> Terminal:
    """Give a folder with three queues, whose tables are in a database of each kind in turn."""
    terminal.write("queues.py", QUEUES)
    if request.param != "sqlite":
        terminal.environment["DATABASE_URL"] = new_database(request, request.param)
    assert terminal.run("ddl", "queues.py", "--apply").code == 0
    return terminal


def enqueue(terminal: Terminal, queue: str, count: int, *flags: str) -> None:
    """Insert rows."""
    assert terminal.run("enqueue", f"queues.py:{queue}", *flags, stdin='{"a": 1}\n' * count).code == 0


def test_status_says_what_each_queue_holds(queues: Terminal) -> None:
    """K1, text 2.5: a line per handler, and one for a queue that has none; a column that lacks shows as -."""
    enqueue(queues, "mails", 3)
    enqueue(queues, "mails", 2, "--after", "3600")
    enqueue(queues, "orders", 1, "--group", "live")
    enqueue(queues, "orders", 4, "--group", "gone")
    said = queues.run("status", "queues.py")
    assert (said.code, said.err) == (0, "")
    table, _, footer = said.out.partition("replicas ")
    assert table == (
        "queue     group  table     due  in work  later  dead  oldest due\n"
        "mails     -      mails       3        0      2     0           -\n"
        "orders    live   orders      1        0      -     4           -\n"
        "produced  -      produced    0        0      0     -           -\n"
    )
    if "DATABASE_URL" in queues.environment:
        limit = 97 if queues.environment["DATABASE_URL"].startswith("postgres") else 151
        assert footer.startswith(f"    none is connected\nconnections  0 of the server's {limit} are shardrun's, ")
    else:
        assert footer == "    -\nconnections  -\n"
    assert PASSWORD not in said.out


def test_status_for_programs_is_json(queues: Terminal) -> None:
    """K1: null is what cannot be known."""
    enqueue(queues, "mails", 2, "--after", "-60")
    said = queues.run("status", "queues.py:mails", "--json")
    document = json.loads(said.out)
    age = document["queues"][0].pop("oldest_due_seconds")
    assert 60 <= age < 120
    assert document["queues"] == [
        {
            "queue": "mails",
            "handler": "send",
            "table": "mails",
            "group": None,
            "form": "lease 30 s",
            "due": 2,
            "in_work": 0,
            "later": 0,
            "dead": 0,
            "more": [],
            "indexed": True,
            "blocked": None,
        }
    ]
    if "DATABASE_URL" in queues.environment:
        assert document["replicas"] == []
        assert set(document["connections"]) == {"shardrun", "in_use", "limit"}
    else:
        assert (document["replicas"], document["connections"]) == (None, None)
    assert PASSWORD not in said.out


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_status_names_the_replicas_that_are_connected(
    terminal: Terminal, server: str, request: pytest.FixtureRequest
) -> None:
    """K1: by what they call themselves on the server, each once however many connections it has."""
    terminal.environment["DATABASE_URL"] = new_database(request, server)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    process = terminal.start("handlers.py", "-p", "1")
    said = terminal.run("status", "handlers.py")
    assert f"-{process.pid}\n" in said.out.partition("replicas     ")[2]
    assert said.out.count(f"-{process.pid}") == 1
    found = json.loads(terminal.run("status", "handlers.py", "--json").out)
    assert [name.rpartition("-")[2] for name in found["replicas"]] == [str(process.pid)]
    assert found["connections"]["shardrun"] >= 1


def test_status_warns_where_it_could_not_look_far(ready: Terminal) -> None:
    """K1: without the claim's index the counts are of one end of the table, and status says so."""
    ready.write("handlers.py", UNINDEXED)
    said = ready.run("status", "handlers.py")
    assert said.code == 0
    assert said.out.splitlines()[-1] == (
        "invoices: no index serves the claim, so that only 110,000 rows at one end of invoices were looked at; "
        "shardrun check prints the index"
    )


def test_status_of_what_does_not_fit_says_what_check_would(terminal: Terminal) -> None:
    """K1, A5: no file (exit code 3), no table (4), no queue (2)."""
    assert terminal.run("status", "handlers.py").code == 3
    terminal.write("shardrun.db", "")
    said = terminal.run("status", "handlers.py")
    assert (said.code, said.out) == (4, "")
    assert "there is no table invoices in " in said.err
    terminal.write("none.py", "")
    assert terminal.run("status", "none.py") == (2, "", "shardrun: none.py declares no queue.\n")
