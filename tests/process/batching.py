"""The handler module of the batch tests: a batch does what its first row's payload says, between lines of the witness."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from shardrun import Ack, Backoff, Delivery, Drop, Queue, Retry
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
FORM = FOLDER / "form"
form = json.loads(FORM.read_text()) if FORM.exists() else {"locked_until": "locked_until"}
transactional = form.pop("transactional", False)
witness = Witness(FOLDER / "witness")
queue: Queue[Any] = Queue(
    "q",
    id="id",
    payload="payload",
    group="name",
    partition_key="partition_key",
    priority="priority",
    retry_after="retry_after",
    attempt="attempt",
    last_error="last_error",
    **form,
)
SETTINGS = {
    "batch": 10,
    "workers": 1,
    "retry": Backoff(first=0, jitter=0),
    "dead_letter": "q_dead",
    "transactional": transactional,
}


def bind(**settings: Any) -> Any:
    """Bind a handler of batches, with the settings of all, then its own, then those of the test."""
    return queue.handler(**{**SETTINGS, **settings, **json.loads(os.environ.get("ACTS", "{}"))})


def begin(deliveries: list[Delivery]) -> None:
    """Write down the batch, and that its rows run."""
    with open(FOLDER / "batches", "a") as file:
        file.write(json.dumps([each.id for each in deliveries]) + "\n")
    for each in deliveries:
        witness.start(each.id, each.key, each.attempt)


def end(deliveries: list[Delivery]) -> None:
    """Write down that the rows have run."""
    for each in deliveries:
        witness.end(each.id, each.key, each.attempt)


MIXED = [None, Ack(), None, Ack(), None, None, Ack(), Retry(), Retry(1), Drop()]
MALFORMED: dict[str, Any] = {
    "one short": [Ack()] * 9,
    "one extra": [Ack()] * 11,
    "pairs": [(1, Ack()), (1, Retry())] * 5,
    "by name": {str(id): Ack() for id in range(10)},
    "a number": 10,
}


def answering(kind: str, answer: Any) -> None:
    """Bind a handler for a group, whose first answer to a batch of ten is this one."""

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> Any:
        begin(deliveries)
        if kind == "raise" and deliveries[0].attempt == 1:
            for each in deliveries[:4]:
                witness.end(each.id, each.key, each.attempt)
            raise ValueError("half way")
        end(deliveries)
        return answer if deliveries[0].attempt == 1 else None

    handle.__name__ = kind.replace(" ", "_")
    bind(group=kind)(handle)


def acting(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> None:
    """Do what the rows say: kill the child, hang, or nothing."""
    begin(deliveries)
    for row in rows:
        if row.get("do") == "kill":
            witness.die()
        if row.get("do") == "hang":
            time.sleep(60)
    end(deliveries)


if os.environ.get("KIND") == "answers":
    for kind, answer in {"mixed": MIXED, "raise": None, **MALFORMED}.items():
        answering(kind, answer)
else:
    bind()(acting)
