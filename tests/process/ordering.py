"""The handler module of the tests of order over replicas: rows take a moment, and go wrong now and then in all ways.

Each run leaves two lines: its start, and how it ended. `form` in the test's folder says how the queue is declared.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from shardrun import DeadLetter, Delivery, Queue, Retry, Snooze
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
form = json.loads((FOLDER / "form").read_text())
is_fifo, trouble = form["order"] == "fifo", form["trouble"]
witness = Witness(FOLDER / "witness")
writing = threading.Lock()
lease: dict[str, Any] = {"locked_until": "locked_until"} if form["form"] == "lease" else {}
queue: Queue[Any] = Queue(
    "q",
    id="id",
    payload="payload",
    group="name",
    fifo=is_fifo,
    partition_key="partition_key",
    retry_after="retry_after",
    attempt="attempt",
    last_error="last_error",
    **lease,
)
settings: dict[str, Any] = {"lease": 2} if lease else {}
settings |= {"workers": 8} if is_fifo else {"workers_by_key": 8, "key_scope": "cluster"}


bind: Callable[[Callable[..., Any]], Callable[..., Any]] = queue.handler(
    **settings, max_attempts=50, dead_letter="q_dead"
)
ACK: tuple[str, Any] = ("ack", None)


@bind
def handle(body: dict[str, Any], delivery: Delivery) -> Any:
    """Take a moment, and with the given chance fail, go back at once or later, die, or give up."""
    strand = delivery.group if is_fifo else delivery.key
    with writing:
        witness.start(delivery.id, strand, delivery.attempt)
    time.sleep(body.get("for", 0.001))
    chance = Random(f"{delivery.id} {delivery.attempt} {time.monotonic_ns()}").random()
    how, answer = ACK
    if chance < trouble:
        how, answer = (
            ("fail", None),
            ("retry", Retry()),
            ("retry", Retry(0.2)),
            ("snooze", Snooze(0.2)),
            ("dead", DeadLetter("no use")),
            ("die", None),
        )[int(6 * chance / trouble)]
    with writing:  # no other lane of this child writes a line after its death was written
        if how == "die":
            witness.die()
        witness.note(how, delivery.id, strand, delivery.attempt)
    if how == "fail":
        raise ValueError("now and then")
    return answer
