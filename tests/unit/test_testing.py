"""Users test a handler by calling it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from shardrun import Answer, Delivery, Queue, Retry
from shardrun.testing import delivery

invoices = Queue[str]("invoice_jobs", id="id", payload="payload")


@invoices.handler()
def render(invoice: str, delivery: Delivery) -> Answer:
    if delivery.attempt < 2 or delivery.draining:
        return Retry(after=30)
    with delivery.connection() as db:
        db.execute("INSERT INTO done (invoice) VALUES (?)", (invoice,))
        if invoice == "bad":
            raise ValueError(invoice)
    return None


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE done (invoice)")
    yield connection
    connection.close()


def test_a_delivery_has_what_it_is_given(connection: sqlite3.Connection) -> None:
    """K4: the fields of Delivery, each with a default."""
    made = delivery(id=118, key="a", attempt=3, headers={"h": 1}, group="g", draining=True)
    assert (made.id, made.key, made.attempt, made.headers, made.group) == (118, "a", 3, {"h": 1}, "g")
    assert made.draining
    assert (delivery().id, delivery().attempt, delivery().draining) == (1, 1, False)
    assert render("7", delivery()) == Retry(after=30)


def test_a_lent_connection_commits_or_rolls_back(connection: sqlite3.Connection) -> None:
    """K4: as in a child; it stays open for the test to look."""
    assert render("7", delivery(attempt=2, connection=connection)) is None
    assert not connection.in_transaction
    with pytest.raises(ValueError, match="bad"):
        render("bad", delivery(attempt=2, connection=connection))
    assert connection.execute("SELECT invoice FROM done").fetchall() == [("7",)]


def test_without_a_connection_the_message_says_how_to_give_one() -> None:
    """K4."""
    with pytest.raises(RuntimeError, match=r"give it one: delivery\(connection=\.\.\.\)"):
        delivery().connection()
