"""A handler module whose rows each write one effect through their transaction, and may end their child at a marked point."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardrun import Answer, Backoff, Delivery, Queue, Retry
from shardrun.child import transactional
from tests.witness import Witness

FOLDER = Path(os.environ.get("ACTS_FOLDER", ""))
witness = Witness(FOLDER / "witness")
transfers: Queue[Any] = Queue.standard("q")
if (form := os.environ.get("FORM", "lease")) != "lease":
    roles: Any = {name: column for name, column in transfers.roles.items() if name != "locked_until"}
    transfers = Queue("q", **roles, advisory_lock="row-{id}" if form == "advisory" else None)
beside: Queue[Any] = Queue.standard("beside")
LEASE = float(os.environ.get("LEASE", "30"))


def die(*_: Any) -> None:
    """End this child at once."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Body:
    """A payload; one that is marked so ends the child once as it is read: its row is taken, and its handler has not begun."""

    at: str = ""
    last: float = 0

    def __post_init__(self) -> None:
        """Look for the mark."""
        if self.at == "take" and not (FOLDER / "taken").exists():
            (FOLDER / "taken").touch()
            die()


@transfers.handler(
    workers=int(os.environ.get("WORKERS", "1")),
    transactional=True,
    max_attempts=int(os.environ.get("MOST", "5")),
    dead_letter="q_dead",
    retry=Backoff(first=0.05, jitter=0),
    lease=LEASE,
    timeout=float(os.environ["TIMEOUT"]) if "TIMEOUT" in os.environ else None,
)
def move(body: Body, delivery: Delivery) -> Answer:
    """Write an effect, and do at the first attempt what the payload says."""
    at = body.at if delivery.attempt == 1 else ""
    witness.start(delivery.id, delivery.key, delivery.attempt)
    if at == "before its write" or body.at == "always":
        die()
    tx = delivery.tx
    on_sqlite = isinstance(tx, sqlite3.Connection)
    if on_sqlite and at == "settlement":
        tx.create_function("die", 0, die)
        tx.execute("create temp trigger killing before delete on main.q begin select die(); end")
    mark = "?" if on_sqlite else "%s"
    tx.cursor().execute(
        f"insert into effects (no, attempt) values ({mark}, {mark})", (delivery.id, delivery.attempt if at else 0)
    )
    if at == "after its write":
        die()
    if at == "behind our back":
        tx.cursor().execute("commit")
    if at == "before the report":  # which is timed when the transaction has committed
        transactional._micros = die  # type: ignore[assignment]
    time.sleep(body.last)
    witness.end(delivery.id, delivery.key, delivery.attempt)
    return Retry() if at == "retry" else None


@beside.handler(workers=1, lease=LEASE)
def hold(body: dict[str, Any], delivery: Delivery) -> None:
    """Keep a row, under a lease that must live on, until the gate opens."""
    witness.start(f"beside {delivery.id}", None, delivery.attempt)
    while not (FOLDER / "gate").exists():
        time.sleep(0.01)
    witness.end(f"beside {delivery.id}", None, delivery.attempt)
