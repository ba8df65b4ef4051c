"""Measure one drain: wall-clock time and CPU between its first claim and its last ack, in the process that drains.

Start-up is excluded: the children run, their modules are imported and they have said so before a `Meter` begins.
CPU of the coordinator is getrusage's difference (all its threads). CPU of other processes is what Linux's scheduler
accounts to their threads, in nanoseconds, else psutil's cpu_times (in ticks of 10 ms); sampled while they still live.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import psycopg

from shardrun.child import guard

SESSIONS = """
select pid from pg_stat_activity
 where datname = current_database() and application_name like 'shardrun %' and backend_type = 'client backend'"""


@dataclass(frozen=True, slots=True)
class Result:
    """One drain: seconds of wall-clock time, and seconds of CPU where they were measured."""

    rows: int
    seconds: float
    coordinator: float | None = None
    children: float | None = None
    server: float | None = None  # the sessions of the coordinator, without the server's own background processes

    @property
    def rate(self) -> float:
        """Give rows per second."""
        return self.rows / self.seconds


class Meter:
    """A stopwatch for time and CPU; `children` are process ids."""

    def __init__(self, children: Sequence[int]) -> None:
        self._children = children
        self._children_before = _cpu(children)
        self._own_before = _own_cpu()
        self._began = perf_counter()

    def stop(self, rows: int, dsn: str | None = None) -> Result:
        """Read the stopwatch; `dsn` is where to ask for the server's processes, if they run on this machine."""
        seconds = perf_counter() - self._began
        coordinator = _own_cpu() - self._own_before
        children = _cpu(self._children) - self._children_before
        server = None if dsn is None or not dsn.startswith("postgresql:") else _server_cpu(dsn)
        return Result(rows, seconds, coordinator, children, server)


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(_cpu_of, pids))


def _cpu_of(pid: int) -> float:
    try:
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        spent = sum(int(thread.read_text().split()[0]) for thread in threads)
    except (OSError, ValueError, IndexError):
        spent = 0
    if spent:
        return spent / 1e9
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _server_cpu(dsn: str) -> float | None:
    with psycopg.connect(dsn) as connection:
        pids = [row[0] for row in connection.execute(SESSIONS)]
    try:
        return _cpu(pids)
    except psutil.Error:
        return None  # a server of another machine


def read_order(parent: int) -> dict[str, Any]:
    """Read what the bench wants of this process, which ends with the bench."""
    guard.die_with_parent(parent, None)
    order: dict[str, Any] = json.loads(sys.argv[1])
    return order


def answer(result: Result) -> None:
    """Hand the result to the bench."""
    print(json.dumps(asdict(result)))
