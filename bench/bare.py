"""Call a handler and nothing else, in as many processes as shardrun has children: run as a process.

The ideal that efficiency is measured against. The calls are dealt from a pipe, four at a time, so that no process waits
for another at the end.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from bench import handlers
from bench.children import start
from bench.measure import Meter, Result, answer, read_order

DEALT = 4
BODY = "x" * 100


def run(order: dict[str, Any]) -> Result:
    """Let the processes take all calls."""
    reader, writer = os.pipe()
    children = [start("bench.bare", order["queue"], (reader,)) for _ in range(handlers.CHILDREN)]
    os.close(reader)
    calls = b"." * order["rows"]
    for child in children:
        child.wait_until_ready()
    meter = Meter([child.pid for child in children])
    while calls:
        calls = calls[os.write(writer, calls) :]
    os.close(writer)
    for child in children:
        child.wait_for_end()
    result = meter.stop(order["rows"])
    for child in children:
        child.close()
    return result


def live(queue: str, calls: int) -> None:
    """Be one of the processes; its standard input and output are the pipes of `children.start`."""
    handle = handlers.function(queue)
    os.write(1, b"r")
    while dealt := os.read(calls, DEALT):
        for _ in dealt:
            handle(BODY)
    os.write(1, b"e")
    os.read(0, 1)


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        answer(run(read_order(os.getppid())))
    else:
        live(sys.argv[1], int(sys.argv[2]))
