"""Work off rows of your own SQL tables on all cores, in order per key, within a connection limit."""

from __future__ import annotations

import sys

if (
    sys.argv[:1] == ["-m"]
    and ("-m", "shardrun") in zip(sys.orig_argv, (each.partition(".")[0] for each in sys.orig_argv[1:]), strict=False)
    and not sys.flags.safe_path
):
    # `python -m` looks into the working directory first, and a json.py there is no reason to fail. It comes last, as it
    # does for the `shardrun` command.
    sys.path.append(sys.path.pop(0))

from typing import Any

from shardrun.db.insert import Inserts
from shardrun.delivery import Delivery
from shardrun.outcome import Ack, Answer, Backoff, BatchAnswer, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.queue import Queue
from shardrun.summary import Summary

Queue.writer = Inserts()

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Answer",
    "Backoff",
    "BatchAnswer",
    "DeadLetter",
    "Delivery",
    "Drop",
    "Outcome",
    "Queue",
    "Retry",
    "Snooze",
    "Summary",
    "run",
]


def run(*declared: object, **settings: Any) -> Summary:
    """Be `shardrun start` from Python: serve queues, handlers or sources; keywords are the command's flags with `_`.

    Stands under `if __name__ == "__main__":`, since children import the file. Raises `shardrun.errors.ShardrunError`.
    """
    from shardrun import boot  # children import this package and need none of it

    return boot.run(*declared, **settings)
