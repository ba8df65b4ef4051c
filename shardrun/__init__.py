"""Work off rows of your own SQL tables on all cores, in order per key, within a connection limit."""

from shardrun.boot import Summary, run
from shardrun.delivery import Delivery
from shardrun.outcome import Ack, Answer, Backoff, BatchAnswer, DeadLetter, Drop, Outcome, Retry, Snooze
from shardrun.queue import Queue

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
