"""Drain a PostgreSQL table by hand, as well as we can: the prototype that shardrun is compared with. Run as a process.

    claim (its thread and connection) -> pipe -> child: handler, row by row -> pipe -> ack (its thread and connection)

The statements are shardrun's own for the table, prepared, on sessions set up as shardrun's are. A claim of `claim` rows
is dealt in pieces of `piece` rows, one msgpack array each, to the child with the fewest rows in hand; a child holds
`window` rows at most. A child answers each piece with the ids that it has handled. The rows of a claim share a token and
are deleted by one statement once all have come back. Claims and acks overlap, and every wait blocks.

It knows nothing else: no lease is extended, no death noticed, no error handled, no order kept.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Any

import msgpack

from bench import handlers
from bench.children import Child, start
from bench.measure import Meter, Result, answer, read_order
from shardrun.db.connect import database
from shardrun.db.postgres import sql
from shardrun.db.postgres.store import PostgresStore

READ_MOST = 65536


class Prototype:
    """The coordinator: the calling thread acks, another claims."""

    def __init__(self, order: dict[str, Any], children: list[Child]) -> None:
        self.dsn: str = order["dsn"]
        self.rows: int = order["rows"]
        self.claim: int = order["claim"]
        self.piece: int = order["piece"]
        self.window: int = order["window"]
        self.children = children
        self.in_hand = [0] * len(children)
        self.room = threading.Condition()
        self.claims: dict[int, tuple[str, int, list[int]]] = {}  # token, rows, ids that came back
        target = database(order["dsn"])
        self.claiming, self.acking = (target.connect(f"shardrun bench {number}") for number in range(2))
        store = target.store(self.claiming, handlers.QUEUES[order["queue"]].subscriptions[0])
        assert isinstance(store, PostgresStore)
        for connection in (self.claiming, self.acking):
            store.prepare(connection)
        self.claim_text = sql.claim(store.layout, leaving_out=False).text
        self.ack_text = sql.ack(store.layout).text

    def drain(self) -> Result:
        """Claim and ack until all rows are done."""
        thread = threading.Thread(target=self._claim_all, daemon=True)
        meter = Meter([child.pid for child in self.children])
        thread.start()
        self._ack_all()
        return meter.stop(self.rows, self.dsn)

    def _claim_all(self) -> None:
        pack = msgpack.Packer().pack
        values = {"limit": self.claim, "group": None}
        left = self.rows
        while left > 0:
            rows = self.claiming.execute(self.claim_text, values, prepare=True).fetchall()
            left -= len(rows)
            number = len(self.claims)
            ids = [row[0] for row in rows]
            bodies = [row[8] for row in rows]
            self.claims[number] = (rows[0][1], len(rows), [])
            for at in range(0, len(rows), self.piece):
                some = ids[at : at + self.piece]
                self._deal(pack((number, some, bodies[at : at + self.piece])), len(some))

    def _deal(self, piece: bytes, count: int) -> None:
        with self.room:
            while (least := min(self.in_hand)) >= self.window:
                self.room.wait()
            index = self.in_hand.index(least)
            self.in_hand[index] += count
        self.children[index].send(piece)

    def _ack_all(self) -> None:
        poll = select.poll()
        index_of = {child.reads: index for index, child in enumerate(self.children)}
        for descriptor in index_of:
            poll.register(descriptor, select.POLLIN)
        unpackers = [msgpack.Unpacker() for _ in self.children]
        left = self.rows
        while left > 0:
            complete: list[int] = []
            for descriptor, _ in poll.poll():
                index = index_of[descriptor]
                unpackers[index].feed(os.read(descriptor, READ_MOST))
                complete += self._note(index, unpackers[index])
            for number in complete:
                left -= self._ack(number)

    def _note(self, index: int, pieces: Any) -> list[int]:
        """Note what a child has handled; returns the claims that are complete."""
        came = 0
        complete = []
        for number, ids in pieces:
            came += len(ids)
            _, count, done = self.claims[number]
            done += ids
            if len(done) == count:
                complete.append(number)
        if came:
            with self.room:
                self.in_hand[index] -= came
                self.room.notify()
        return complete

    def _ack(self, number: int) -> int:
        token, count, ids = self.claims[number]
        ids.sort()
        values = {"ids": "{" + ",".join(map(str, ids)) + "}", "token": token}
        acked: int = self.acking.execute(self.ack_text, values, prepare=True).rowcount
        if acked != count:
            raise SystemExit(f"the prototype acked {acked} rows of {count}")
        return acked

    def close(self) -> None:
        """Close the connections."""
        self.claiming.close()
        self.acking.close()


def drain(order: dict[str, Any]) -> Result:
    """Start everything, drain, end everything."""
    children = [start("bench.prototype", order["queue"]) for _ in range(handlers.CHILDREN)]
    for child in children:
        child.wait_until_ready()
    prototype = Prototype(order, children)
    result = prototype.drain()
    prototype.close()
    for child in children:
        child.close()
    return result


def live(queue: str) -> None:
    """Be a child: call the handler for each row of a piece, and answer with the ids."""
    handle = handlers.function(queue)
    pieces = msgpack.Unpacker()
    pack = msgpack.Packer().pack
    os.write(1, b"r")
    while data := os.read(0, READ_MOST):
        pieces.feed(data)
        for number, ids, bodies in pieces:
            done = []
            for id, body in zip(ids, bodies, strict=True):
                handle(body)
                done.append(id)
            os.write(1, pack((number, done)))


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        answer(drain(read_order(os.getppid())))
    else:
        live(sys.argv[1])
