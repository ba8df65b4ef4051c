"""Drain a table with shardrun, as `shardrun start --until-empty` does, and say how long it took: run as a process.

The clock starts at the first turn of the coordinator's loop in which it serves (all children are ready; the first claim
was handed to a database thread in that turn, which then opens its connection) and ends in the turn in which all are acked.
"""

from __future__ import annotations

import os
from typing import Any

from bench.handlers import CHILDREN
from bench.measure import Meter, Result, answer, read_order
from shardrun import boot, config, registry
from shardrun.coordinator.replica import Life, Replica


class Watch:
    """Looks at the replica at every turn of its loop."""

    def __init__(self, rows: int, dsn: str) -> None:
        self.result: Result | None = None
        self._rows = rows
        self._dsn = dsn
        self._meter: Meter | None = None

    def __call__(self, replica: Replica) -> None:
        """Start the stopwatch when it serves, and stop it when everything is acked."""
        if self._meter is None:
            if replica.life is Life.SERVING:
                self._meter = Meter([child.pid for child in replica.children])
        elif self.result is None and replica.services[0].counts.acked >= self._rows:
            self.result = self._meter.stop(self._rows, self._dsn)


def drain(order: dict[str, Any]) -> Result:
    """Run one replica until the table is empty."""
    declared = registry.load([f"bench.handlers:{order['queue']}"])
    flags = {"dsn": order["dsn"], "processes": CHILDREN, "pool_size": order["connections"], "until_empty": True}
    watch = Watch(order["rows"], order["dsn"])
    summary = boot.start(boot.open_all(config.load(flags, None, {}, os.getcwd()), declared), watch)
    if watch.result is None or summary.acked != order["rows"]:
        raise SystemExit(f"shardrun was to ack {order['rows']} rows: {summary}")
    return watch.result


if __name__ == "__main__":
    answer(drain(read_order(os.getppid())))
