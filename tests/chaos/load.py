"""The handler module of the kill matrix: rows that take a moment, each with one effect, and some that are poison.

CHAOS holds the cell and the settings. What a row in a transaction writes is written before it does its harm.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardrun import Backoff, Delivery, Queue
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
CHAOS = json.loads(os.environ["CHAOS"])
HELD_BY: dict[str, dict[str, Any]] = {
    "row lock": {},
    "lease": {"locked_until": "locked_until"},
    "advisory lock": {"advisory_lock": "chaos-{partition_key}"},
}
witness = Witness(FOLDER / "witness")
fifo, transactional = CHAOS["fifo"], CHAOS["transactional"]
strands: dict[str, Any] = {"group": "name", "fifo": True} if fifo else {"partition_key": "partition_key"}
lanes: dict[str, Any] = {"workers": 2} if fifo else {"workers_by_key": 2}
if CHAOS["form"] == "lease":
    lanes |= {"lease": CHAOS["lease"]} | ({} if fifo else {"key_scope": "cluster"})
if CHAOS["timeout"]:
    lanes |= {"timeout": CHAOS["timeout"]}
queue: Queue[Any] = Queue(
    "q",
    id="id",
    payload="payload",
    retry_after="retry_after",
    attempt="attempt",
    last_error="last_error",
    **strands,
    **HELD_BY[CHAOS["form"]],
)

with open(FOLDER / "parents", "a") as parents:  # by the coordinator and by each child
    parents.write(f"{os.getpid()} {os.getppid()}\n")

bind: Callable[[Callable[..., Any]], Callable[..., Any]] = queue.handler(
    **lanes,
    transactional=transactional,
    max_attempts=CHAOS["most"],
    dead_letter="q_dead",
    retry=Backoff(first=0.05, factor=1, jitter=0),
)


@bind
def handle(body: dict[str, Any], delivery: Delivery) -> None:
    """Take a moment, or do what the row is poisoned with."""
    key = delivery.group if fifo else delivery.key
    witness.start(delivery.id, key, delivery.attempt)
    try:
        if transactional:
            mark = "?" if isinstance(delivery.tx, sqlite3.Connection) else "%s"
            delivery.tx.cursor().execute(f"insert into effects (no) values ({mark})", (delivery.id,))
        if "do" in body:
            POISONS[body["do"]](delivery)
        time.sleep(body["for"])
    finally:
        witness.end(delivery.id, key, delivery.attempt)


def die_once(delivery: Delivery) -> None:
    """Die at the first run, as the out-of-memory killer ends a process."""
    mark = FOLDER / f"died-{delivery.id}"
    if not mark.exists():
        mark.touch()
        witness.die()


def leave(_: Delivery) -> None:
    """Leave without a word."""
    witness.died(os.getpid())
    os._exit(0)


def segfault(_: Delivery) -> None:
    """Read address 0."""
    witness.died(os.getpid())
    ctypes.string_at(0)


def loop(_: Delivery) -> None:
    """Never end."""
    while True:
        sum(range(100_000))


def recurse(delivery: Delivery) -> None:
    """Call itself until Python gives up."""
    recurse(delivery)


def say_nul(_: Delivery) -> None:
    """Fail with a text that PostgreSQL cannot store."""
    raise ValueError("before\0after")


def say_surrogates(_: Delivery) -> None:
    """Fail with a text that cannot be encoded."""
    raise ValueError("\ud800 alone \udfff")


POISONS: dict[str, Callable[[Delivery], None]] = {
    "die once": die_once,
    "os._exit": leave,
    "segfault": segfault,
    "endless loop": loop,
    "recursion": recurse,
    "NUL in its error": say_nul,
    "lone surrogates in its error": say_surrogates,
}
