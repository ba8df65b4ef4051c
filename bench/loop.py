"""Drain a SQLite table by hand in one process, with shardrun's own statements: run as a process.

As shardrun does it, a claim is one transaction and its settlement another (both in one would be about a tenth faster).
"""

from __future__ import annotations

import os
from typing import Any

from bench import handlers
from bench.measure import Meter, Result, answer, read_order
from shardrun.db.connect import database
from shardrun.db.sqlite import sql
from shardrun.db.sqlite.store import SqliteStore


def drain(order: dict[str, Any]) -> Result:
    """Claim, call and delete until all rows are done."""
    target = database(order["dsn"])
    connection = target.connect("shardrun bench")
    store = target.store(connection, handlers.QUEUES[order["queue"]].subscriptions[0])
    assert isinstance(store, SqliteStore)
    size = order["claim"]
    candidates, claim, ack = sql.candidates(store.layout, 0), sql.claim(store.layout, size), sql.ack(store.layout, size)
    handle = handlers.function(order["queue"])
    execute = connection.execute
    done = 0
    meter = Meter([])
    while done < order["rows"]:
        execute("begin immediate")
        rows = execute(candidates.text, (size,)).fetchall()
        ids = [row[0] for row in rows]
        ids += [None] * (size - len(ids))
        tokens = {token for _, token, _ in execute(claim.text, ids)}
        execute("commit")
        for row in rows:
            handle(row[6])
        execute("begin immediate")
        for token in tokens:
            done += len(execute(ack.text, (token, *ids)).fetchall())
        execute("commit")
    result = meter.stop(done)
    target.close(connection)
    return result


if __name__ == "__main__":
    answer(drain(read_order(os.getppid())))
