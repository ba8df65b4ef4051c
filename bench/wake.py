"""Measure how long a row that another process commits waits for its handler while nothing else is to do (P3, by NOTIFY).

`python -m bench wake`. The poll interval is far longer than the run, so that NOTIFY alone wakes. Each row is committed when
the one before has run and everything has been idle for a while. P3 speaks of the time from the return of COMMIT to the
first statement of the handler; that from before COMMIT is given, too, which has the disk in it.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import psycopg

from bench import handlers, places, report

IDLE = 0.02
"""Seconds of rest before each row, at most twice as many. Larger: processes and cores sleep more deeply."""

PATIENCE = 20.0
"""Seconds after which a row that has not begun ends the bench."""

LISTENS = "select count(*) from pg_stat_activity where application_name like 'shardrun % listener'"


def main(arguments: list[str]) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="bench wake", description="Measure the time from a commit to its handler.")
    parser.add_argument("--rows", type=int, default=500, help="rows that are committed, one by one (500)")
    rows = parser.parse_args(arguments).rows
    with places.postgres() as server, tempfile.TemporaryDirectory(prefix="shardrun-bench-") as folder:
        server.fill(0)
        print(", ".join(f"{name} {value}" for name, value in report.machine({"postgres": server.describe()}).items()))
        begun = Path(folder, "begun")
        os.mkfifo(begun)
        replica = _start(server.dsn, begun)
        try:
            measured = _commit(server.dsn, rows, begun)
        finally:
            replica.terminate()
            replica.wait()
    _show("from the return of COMMIT", [started - returned for _, returned, started in measured])
    _show("from before COMMIT", [started - sent for sent, _, started in measured])


def _start(dsn: str, begun: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shardrun", "start", "bench.handlers:wake", "--dsn", dsn, "--listen-notify"]
    flags = ["--poll-interval", "3600", "-p", str(handlers.CHILDREN), "--log-level", "warning"]
    return subprocess.Popen([*command, *flags], env={**os.environ, handlers.BEGUN: str(begun)})


def _commit(dsn: str, rows: int, begun: Path) -> list[tuple[int, int, int]]:
    """Insert rows one by one; returns when each COMMIT was sent, when it had returned, and when the handler began."""
    measured = []
    reader = os.open(begun, os.O_RDWR)  # with a writer of its own it never ends
    with psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + PATIENCE
        while connection.execute(LISTENS).fetchone() == (0,):
            if time.monotonic() > deadline:
                raise SystemExit("the replica does not listen")
            time.sleep(0.1)
        time.sleep(1.0)  # its first claims have found nothing by then
        for _ in range(rows):
            time.sleep(random.uniform(IDLE, 2 * IDLE))
            connection.execute("begin")
            handlers.wake.insert(connection, payload="x", partition_key="key", notify=True)
            sent = time.monotonic_ns()
            connection.execute("commit")
            returned = time.monotonic_ns()
            if not select.select([reader], [], [], PATIENCE)[0]:
                raise SystemExit(f"a row has not begun within {PATIENCE:g} s")
            measured.append((sent, returned, int(os.read(reader, 64))))
    os.close(reader)
    return measured


def _show(what: str, nanoseconds: list[int]) -> None:
    cuts = quantiles([each / 1e6 for each in nanoseconds], n=100, method="inclusive")
    print(
        f"{what:26} p50 {cuts[49]:.2f} ms   p90 {cuts[89]:.2f} ms   p99 {cuts[98]:.2f} ms   of {len(nanoseconds)} rows"
    )
