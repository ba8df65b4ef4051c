"""The handler module of the contract: rows that do what their payload says, held and delivered as the test's cell says.

CELL holds the form, the mode, and how many replicas can run rows at once. A row that ends well writes into `effects`, unless
it is a bare one; where a transaction undoes what a row wrote, it writes there at every run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from shardrun import Backoff, DeadLetter, Delivery, Drop, Queue, Retry, Snooze
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
CELL = json.loads(os.environ["CELL"])
BATCH = 4
HELD_BY: dict[str, dict[str, Any]] = {
    "row lock": {},
    "lease": {"locked_until": "locked_until"},
    "advisory lock": {"advisory_lock": "contract-{id}"},
}
OUTCOMES: dict[str, Any] = {
    "ack": None,
    "retry": Retry(),
    "snooze": Snooze(0.1),
    "drop": Drop("not wanted"),
    "dead": DeadLetter("by hand"),
}
witness = Witness(FOLDER / "witness")
queue: Queue[Any] = Queue(
    "q",
    id="id",
    payload="payload",
    group="name",
    priority="priority",
    retry_after="retry_after",
    attempt="attempt",
    last_error="last_error",
    **HELD_BY[CELL["form"]],
)
SETTINGS: dict[str, Any] = {
    "workers": 1,
    "max_attempts": 3,
    "retry": Backoff(first=0.05, factor=1, jitter=0),
    "transactional": CELL["transactional"],
    "batch": BATCH if CELL["batch"] else None,
    **CELL["dead"],
}
ALONE = ("raise", "kill", "late")
"""What comes in no batch with others, since it is done to all of them: whatever it wrote is undone."""


def wait_for(gate: str) -> None:
    """Wait until the test opens a gate."""
    while not (FOLDER / gate).exists():
        time.sleep(0.01)


def meet() -> None:
    """Wait until as many children as can run rows at once have begun a row."""
    while len({event.pid for event in witness.events()}) < CELL["at_once"]:
        time.sleep(0.01)


def act(body: Any, delivery: Delivery) -> Any:
    """Do what a row says at its first run, and nothing later."""
    do = body["do"]
    if do == "last":
        wait_for("last")
    if do == "raise":
        raise ValueError("always")
    if witness.runs(delivery.id) > 1 or do == "ack":
        return None
    if do == "kill":
        witness.die()
    if do == "meet":
        meet()
    if do == "gate":
        wait_for(f"gate-{os.getppid()}")  # of its coordinator
    if do == "late":
        late(delivery)
    if do == "delete":
        delete(delivery)
    return OUTCOMES.get(do)


def late(delivery: Delivery) -> None:
    """Wait until another has the row; in a transaction end that, so that another could have it."""
    if CELL["transactional"]:
        delivery.tx.cursor().execute("rollback")
    else:
        wait_for("late")


def delete(delivery: Delivery) -> None:
    """Delete the row as somebody else, where nothing locks it, and write down whether something does."""
    refused = (psycopg.OperationalError, pymysql.OperationalError, sqlite3.OperationalError)
    try:
        if CELL["file"]:
            with sqlite3.connect(CELL["file"], timeout=0) as other:
                other.execute("delete from q where id = ?", (delivery.id,))
        else:
            with delivery.connection() as other:
                other.cursor().execute("select id from q where id = %s for update nowait", (delivery.id,))
                other.cursor().execute("delete from q where id = %s", (delivery.id,))
        said = "deleted"
    except refused as error:
        said = f"refused: {error}"
    (FOLDER / "delete").write_text(said)


def write(deliveries: list[Delivery]) -> None:
    """Write an effect for each row."""
    if not deliveries:
        return
    text = f"insert into effects (no) values ({'?' if CELL['file'] else '%s'})"
    numbers = [(each.id,) for each in deliveries]
    if CELL["transactional"]:
        deliveries[0].tx.cursor().executemany(text, numbers)
        return
    with deliveries[0].connection() as connection:
        connection.cursor().executemany(text, numbers)


def handle(bodies: list[Any], deliveries: list[Delivery]) -> list[Any]:
    """Work off some rows, in the order given."""
    with open(FOLDER / "batches", "a") as file:
        file.write(json.dumps([each.id for each in deliveries]) + "\n")
    writing = [each for body, each in zip(bodies, deliveries, strict=True) if body["do"] != "bare"]
    undone = CELL["transactional"] and (not CELL["batch"] or bodies[0]["do"] in ALONE)
    if undone:
        write(writing)
    answers = []
    for body, delivery in zip(bodies, deliveries, strict=True):
        witness.start(delivery.id, None, delivery.attempt)
        try:
            answers.append(act(body, delivery))
        finally:
            witness.end(delivery.id, None, delivery.attempt)
    if not undone:
        write([each for each, answer in zip(deliveries, answers, strict=True) if each in writing and answer is None])
    return answers


def handle_one(body: dict[str, Any], delivery: Delivery) -> Any:
    """Work off one row."""
    return handle([body], [delivery])[0]


def handle_some(bodies: list[dict[str, Any]], deliveries: list[Delivery]) -> list[Any]:
    """Work off some rows at once."""
    return handle(bodies, deliveries)


bind: Callable[[Callable[..., Any]], Callable[..., Any]] = queue.handler(group="main", **SETTINGS)
bind(handle_some if CELL["batch"] else handle_one)
