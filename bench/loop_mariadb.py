"""Drain a MariaDB table by hand in one process, over PyMySQL, with shardrun's own statements: run as a process.

As shardrun does it, a claim reads candidates, locks them by id and writes their lease in a transaction; another acks them.
"""

from __future__ import annotations

import os
from typing import Any

from bench import handlers
from bench.measure import Meter, Result, answer, read_order
from shardrun.db.connect import database
from shardrun.db.mysql import sql
from shardrun.db.mysql.store import MysqlStore

BODY = 8
"""Where the payload is in a row that was taken; the token is third."""


def drain(order: dict[str, Any]) -> Result:
    """Claim, call and delete until all rows are done."""
    target = database(order["dsn"])
    connection = target.connect("shardrun bench")
    store = target.store(connection, handlers.QUEUES[order["queue"]].subscriptions[0])
    assert isinstance(store, MysqlStore)
    layout = store.layout
    candidates, take, claim = (
        sql.candidates(layout, leaving_out=False).text,
        sql.take(layout).text,
        sql.claim(layout).text,
    )
    lock, ack = sql.hold_all(layout).text, sql.ack(layout).text
    handle = handlers.function(order["queue"])
    execute = connection.execute
    done = 0
    meter = Meter([])
    while done < order["rows"]:
        found = execute(candidates, {"limit": order["claim"], "avoided": [None]}).fetchall()
        execute("start transaction")
        rows = execute(take, {"ids": [row[0] for row in found]}).fetchall()
        held = {"ids": [row[0] for row in rows], "token": rows[0][2]}
        execute(claim, held)
        connection.commit()
        for row in rows:
            handle(row[BODY])
        execute("start transaction")
        execute(lock, held)
        done += execute(ack, held).rowcount
        connection.commit()
    result = meter.stop(done)
    target.close(connection)
    return result


if __name__ == "__main__":
    answer(drain(read_order(os.getppid())))
