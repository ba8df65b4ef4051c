"""A handler module of several queues: every outcome, every kind of failure, async handlers and thread lanes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from shardrun import Ack, Answer, Backoff, DeadLetter, Delivery, Drop, Queue, Retry, Snooze
from tests.witness import Witness

witness = Witness(Path(os.environ.get("ACTS_FOLDER", "")) / "witness")
SOON = Backoff(first=0.05, factor=1, jitter=0)

outcomes: Queue[dict[str, Any]] = Queue.standard("q")
asynchronous: Queue[dict[str, Any]] = Queue.standard("slow")
threaded: Queue[dict[str, Any]] = Queue.standard("threaded")


class OfTheUser(BaseException):
    """An exception that no `except Exception` catches."""


ANSWERS: dict[str, Any] = {
    "none": None,
    "ack": Ack(),
    "retry": Retry(),
    "retry later": Retry(after=0.2),
    "snooze": Snooze(0.2),
    "drop": Drop("not wanted"),
    "dead letter": DeadLetter("by hand"),
    "number": 42,
    "class": Retry,
    "bad delay": Retry(after=float("inf")),
}

FAILURES: dict[str, BaseException] = {
    "exception": ValueError("some reason"),
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "base": OfTheUser("mine"),
    "stop": StopIteration(),
    "recursion": RecursionError("deep"),
    "unstorable": ValueError("a\x00b \ud800 " + "x" * 100_000),
}


@outcomes.handler(workers_by_key=2, max_attempts=3, retry=SOON, transactional="TRANSACTIONAL" in os.environ)
def end(body: dict[str, Any], delivery: Delivery) -> Answer:
    """End as the payload says at the first attempts, and well at the third run."""
    witness.start(delivery.id, delivery.key, delivery.attempt)
    times = witness.runs(delivery.id)
    witness.end(delivery.id, delivery.key, delivery.attempt)
    if body["end"] in FAILURES:
        raise FAILURES[body["end"]]
    answer = ANSWERS[body["end"]]
    if times > 1 and body["end"] in ("retry", "retry later", "snooze"):
        return None
    return answer  # type: ignore[no-any-return]


@asynchronous.handler(workers=6)
async def wait(body: dict[str, Any], delivery: Delivery) -> None:
    """Wait as long as the payload says, beside other rows of this child."""
    witness.start(f"async {delivery.id}", threading.current_thread().name, delivery.attempt)
    await asyncio.sleep(body["for"])
    witness.end(f"async {delivery.id}", threading.current_thread().name, delivery.attempt)


@threaded.handler(workers=6)
def block(body: dict[str, Any], delivery: Delivery) -> None:
    """Wait until so many rows of this handler have started."""
    witness.start(f"thread {delivery.id}", None, delivery.attempt)
    while sum(str(row).startswith("thread") for row in witness.rows()) < body["together"]:
        threading.Event().wait(0.01)
    witness.end(f"thread {delivery.id}", None, delivery.attempt)
