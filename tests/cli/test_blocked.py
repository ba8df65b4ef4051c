"""A group that a failed row blocks: `shardrun status` names it, and `shardrun dead park` moves the row out of the way."""

from __future__ import annotations

import json

import pytest

from tests.cli.terminal import Terminal
from tests.cli.test_dead import execute
from tests.cli.test_status import new_database

ORDERS = """
from shardrun import Delivery, Queue, Retry

orders = Queue("orders", id="id", payload="payload", group="account", attempt="attempt", retry_after="due_at",
               locked_until="held_until", last_error="error", fifo=True)


@orders.handler(dead_letter="orders_dead", workers=1)
def book(order: dict, delivery: Delivery) -> Retry | None:
    print("booked", delivery.id)
    return Retry(after=3600) if order["wrong"] else None
"""


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def blocked(request: pytest.FixtureRequest, terminal: Terminal) -> Terminal:
    """Give a folder whose queue has a group that is blocked, in a database of each kind in turn."""
    terminal.write("handlers.py", ORDERS)
    if request.param != "sqlite":
        terminal.environment["DATABASE_URL"] = new_database(request, request.param)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    soon = {"sqlite": "datetime('now', '+50 seconds')", "postgres": "now() + interval '50 seconds'"}
    due = soon.get(request.param, "utc_timestamp() + interval 50 second")
    execute(
        terminal,
        "insert into orders (id, payload, account, attempt, due_at, error) values "
        f"(1, '{{\"wrong\": 1}}', '118', 3, {due}, 'no such account'), (2, '{{\"wrong\": 0}}', '118', 0, null, null)",
    )
    return terminal


def test_a_blocked_group_is_named_and_its_row_parked(blocked: Terminal) -> None:
    """K1, D3, E3: what keeps it waiting, and a way out by the ids that it shows."""
    said = blocked.run("status", "handlers.py")
    assert (said.code, said.err) == (0, "")
    before, after = said.out.splitlines()[-1].split(", next try in ")
    assert before == "blocked groups (orders): account 118, row 1 failed 3 times"
    assert after.endswith(" s: no such account")
    (queue,) = json.loads(blocked.run("status", "handlers.py", "--json").out)["queues"]
    assert (queue["blocked"]["number"], queue["blocked"]["listed"][0]["row"]) == (1, "1")
    park = ("dead", "park", "handlers.py:orders")
    assert blocked.run(*park, "1", "--dry-run") == (0, "would park 1 row in table orders_dead\n", "")
    assert blocked.run(*park, "1") == (0, "parked 1 row in table orders_dead\n", "")
    assert "blocked" not in blocked.run("status", "handlers.py").out
    assert blocked.run("dead", "list", "handlers.py:orders").out.splitlines()[1].endswith("1  parked by an operator")


def test_what_cannot_be_parked_is_said(blocked: Terminal) -> None:
    """E3, C6: rows in work, ids of no row, and no ids at all."""
    execute(blocked, "update orders set held_until = due_at where id = 1")
    park = ("dead", "park", "handlers.py:orders")
    assert blocked.run(*park, "1", "2", "7", "--reason", "wrong account") == (
        1,
        "parked 1 row in table orders_dead\n",
        "shardrun: 1 row was left, since it is in work: 1. There is no unfinished row in orders with the id 7.\n",
    )
    assert "wrong account" in blocked.run("dead", "list", "handlers.py:orders").out
    assert blocked.run(*park).code == blocked.run(*park, "x").code == 2
    assert "shardrun status" in blocked.run(*park).err


@pytest.mark.parametrize("blocked", ["sqlite"], indirect=True)
def test_a_group_goes_on_behind_a_parked_row(blocked: Terminal) -> None:
    """D3: a replica takes up the next row of the group."""
    assert blocked.run("dead", "park", "handlers.py:orders", "1").code == 0
    said = blocked.run("start", "handlers.py", "--until-empty", "-p", "1", "--poll-interval", "0.1")
    assert said.out.startswith("booked 2\n1 acked")


GROUPS = """
from shardrun import Queue

orders = Queue("orders", id="id", payload="payload", group="account", locked_until="held_until")


@orders.handler(group="a", dead_letter_group="gone")
def book(order: dict) -> None: ...


@orders.handler(group="b", dead_letter_group="gone")
def pay(order: dict) -> None: ...
"""


def test_rows_of_each_handler_of_a_queue_are_found(terminal: Terminal) -> None:
    """E3, B5: also where their dead letters lie together."""
    terminal.write("handlers.py", GROUPS)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    execute(terminal, "insert into orders (id, payload, account) values (1, '{}', 'a'), (2, '{}', 'b'), (3, '{}', 'c')")
    said = terminal.run("dead", "park", "handlers.py:orders", "1", "2", "3")
    assert said.out == "parked 1 row in group gone of orders\n" * 2
    assert said.err == "shardrun: There is no unfinished row in orders with the id 3.\n"
    assert execute(terminal, "select account from orders order by id") == [("gone",), ("gone",), ("c",)]
