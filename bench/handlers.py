"""The handlers that are measured. All queues are the same table; each contender serves one of them.

The loops beside shardrun call the very same functions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from shardrun import Queue

TABLE = "bench_rows"
CHILDREN = 2
HANDLER_SECONDS = 0.003
"""CPU time of the handlers of P2."""

BEGUN = "SHARDRUN_BENCH_BEGUN"
"""The variable that names the pipe of `tell_when`."""

noop: Queue[str] = Queue(TABLE, id="id", payload="payload", locked_until="locked_until")
noop_by_key: Queue[str] = Queue(
    TABLE, id="id", payload="payload", partition_key="partition_key", locked_until="locked_until"
)
counted_by_key: Queue[str] = Queue(
    TABLE, id="id", payload="payload", partition_key="partition_key", locked_until="locked_until", attempt="attempt"
)
in_order: Queue[str] = Queue(
    TABLE, id="id", payload="payload", partition_key="partition_key", locked_until="locked_until", attempt="attempt"
)
spin: Queue[str] = Queue(TABLE, id="id", payload="payload", locked_until="locked_until")
spin_by_key: Queue[str] = Queue(
    TABLE, id="id", payload="payload", partition_key="partition_key", locked_until="locked_until"
)
wake: Queue[str] = Queue(TABLE, id="id", payload="payload", partition_key="partition_key", locked_until="locked_until")


@noop.handler()
@noop_by_key.handler(workers_by_key=CHILDREN)
@counted_by_key.handler(workers_by_key=CHILDREN)
@in_order.handler(workers_by_key=CHILDREN, key_scope="cluster")
def do_nothing(body: str) -> None:
    """Do nothing with a row."""


@spin.handler()
@spin_by_key.handler(workers_by_key=CHILDREN)
def use_cpu(body: str) -> None:  # noqa: ARG001
    """Use the CPU for 3 ms of this thread's own time, however many others want it."""
    end = time.thread_time() + HANDLER_SECONDS
    while time.thread_time() < end:
        sum(range(200))


@wake.handler()
def tell_when(body: str) -> None:  # noqa: ARG001
    """Say when it began, to who waits at the other end of a named pipe."""
    began = time.monotonic_ns()
    pipe = os.open(os.environ[BEGUN], os.O_WRONLY)
    os.write(pipe, f"{began}\n".encode())
    os.close(pipe)


QUEUES = {"noop": noop, "noop_by_key": noop_by_key, "spin": spin, "spin_by_key": spin_by_key}


def function(queue: str) -> Callable[[str], None]:
    """Give the function that handles a queue's rows."""
    return QUEUES[queue].subscriptions[0].function
