"""Let contenders drain the same rows in turn, round by round, each in a process of its own with a table of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from bench.measure import Result

LONGEST_DRAIN = 120.0
"""Seconds after which one drain is ended, and the bench with it."""


class Place(Protocol):
    """A database that can be filled anew."""

    dsn: str

    def fill(self, rows: int, in_order: bool = False) -> None: ...

    def left(self) -> int: ...


@dataclass(frozen=True)
class Contender:
    """One way to work off the rows: a module of this package, and what it is told."""

    name: str
    module: str
    queue: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False  # it touches no database


@dataclass(frozen=True)
class Contest:
    """Contenders over the same rows of the same place."""

    name: str
    title: str
    place: str
    rows: int
    contenders: tuple[Contender, ...]
    in_order: bool = False  # the table counts attempts, and has the index of claims that keep an order over replicas


Results = dict[str, dict[str, list[Result]]]
"""Per contest and contender: the results of the rounds, in order."""


ORDERS = (
    ("order", "postgres", "PostgreSQL"),
    ("order-mariadb", "mariadb", "MariaDB"),
    ("order-sqlite", "sqlite", "SQLite"),
)
"""The contests of order over replicas: name, place, database."""


def contests(rows: int, spin_rows: int, connections: int) -> list[Contest]:
    """List what is measured."""
    shardrun = {"connections": connections}
    pieces = {"claim": 200, "piece": 100, "window": 400}
    few = {"claim": 40, "piece": 4, "window": 8}
    return [
        Contest(
            "noop",
            "PostgreSQL, lease, no-op handler, 2 children",
            "postgres",
            rows,
            (
                Contender("prototype", "prototype", "noop", pieces),
                Contender("shardrun", "drain", "noop", shardrun),
                Contender("shardrun by key", "drain", "noop_by_key", shardrun),
            ),
        ),
        Contest(
            "sqlite",
            "SQLite, lease, no-op handler (loop: 1 process; shardrun: 2 children)",
            "sqlite",
            rows,
            (
                Contender("loop", "loop", "noop", {"claim": 200}),
                Contender("shardrun", "drain", "noop", shardrun),
            ),
        ),
        Contest(
            "mariadb",
            "MariaDB, lease, no-op handler (loop: 1 process; shardrun: 2 children)",
            "mariadb",
            rows,
            (
                Contender("loop", "loop_mariadb", "noop", {"claim": 200}),
                Contender("shardrun", "drain", "noop", shardrun),
            ),
        ),
        Contest(
            "spin",
            "PostgreSQL, lease, handler of 3 ms of CPU, 2 children",
            "postgres",
            spin_rows,
            (
                Contender("bare", "bare", "spin", is_bare=True),
                Contender("prototype", "prototype", "spin", few),
                Contender("shardrun", "drain", "spin", shardrun),
                Contender("shardrun by key", "drain", "spin_by_key", shardrun),
            ),
        ),
        *(
            Contest(
                name,
                f"{database}, lease, no-op handler, by key, 2 children",
                place,
                rows,
                (
                    Contender("order in a replica", "drain", "counted_by_key", shardrun),
                    Contender("order over replicas", "drain", "in_order", shardrun),
                ),
                in_order=True,
            )
            for name, place, database in ORDERS
        ),
    ]


def rounds(
    places: dict[str, Place], chosen: list[Contest], count: int, seconds: float, say: Callable[[str], None]
) -> Results:
    """Run rounds, contenders in turn and each round in another order.

    Starts no round that would not end within `seconds` if it took as long as the longest before it.
    """
    results: Results = {contest.name: {each.name: [] for each in contest.contenders} for contest in chosen}
    began = monotonic()
    longest = 0.0
    for number in range(count):
        start = monotonic()
        if number and start - began + longest > seconds:
            say(f"no time for round {number + 1}: {seconds:.0f} s are the limit")
            break
        for contest in chosen:
            shift = number % len(contest.contenders)
            for contender in contest.contenders[shift:] + contest.contenders[:shift]:
                say(f"round {number + 1} of {count}: {contest.name}, {contender.name}")
                results[contest.name][contender.name].append(_drain(places[contest.place], contest, contender))
        longest = max(longest, monotonic() - start)
    return results


def _drain(place: Place, contest: Contest, contender: Contender) -> Result:
    if not contender.is_bare:
        place.fill(contest.rows, contest.in_order)
    order = {"dsn": place.dsn, "queue": contender.queue, "rows": contest.rows, **contender.settings}
    result = Result(**json.loads(_run(contender.module, order).splitlines()[-1]))
    if not contender.is_bare and (left := place.left()):
        raise SystemExit(f"{contest.name}, {contender.name}: {left} rows are left")
    return result


def _run(module: str, order: dict[str, Any]) -> str:
    argv = [sys.executable, "-m", f"bench.{module}", json.dumps(order)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LONGEST_DRAIN)
    except BaseException:  # the time is up, or ctrl-C: its whole session goes
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise SystemExit(f"{module} of {order['queue']} ended with {process.returncode}")
    return output
