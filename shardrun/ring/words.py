"""Name what both sides of a ring must agree on: the shared words, and the first numbers of frames.

A shared word has one writer, the process that writes the ring. What the child's words say is read only after its death,
or when it has been still for 20 ms.
"""

from __future__ import annotations

from typing import Final

from shardrun.policy.verbs import ACK as ACK
from shardrun.policy.verbs import DEAD_LETTER as DEAD_LETTER
from shardrun.policy.verbs import DROP as DROP
from shardrun.policy.verbs import FAILED as FAILED
from shardrun.policy.verbs import RETRY as RETRY
from shardrun.policy.verbs import SNOOZE as SNOOZE
from shardrun.policy.verbs import UNDECODABLE as UNDECODABLE

# Words of every ring.
MARK: Final = 0
"""Bytes ever written into this ring, published or not."""

# Words of the delivery ring: the coordinator writes them.
STOP: Final = 1
"""0: run. 1: start no more rows, report each as UNSTARTED."""
EXTENDED: Final = 2
"""CLOCK_BOOTTIME in nanoseconds: every row handed out before this was written is held at least until then."""
DRAINING: Final = 3
"""1: `delivery.draining` is true."""
_FIRST_LOST: Final = 4

# Coordinator to child: the first element is a delivery's number (1 and up), or
CLOSE: Final = 0
"""(0,): finish what the lanes run, then exit with 0."""
RESUME: Final = -1
"""(-1, lane): a lane that has refused a row refuses all rows up to this, so that none passes the one that comes again."""

# Child to coordinator: the first element is a delivery's number (1 and up: a report), or
READY: Final = -1
"""(-1, pid): the handlers are loaded."""
SESSION: Final = -2
"""(-2, session id): a server session that this child is about to use."""
LOG: Final = -3
"""(-3, level, logger, text, number of the running delivery or 0)."""
BROKEN: Final = -4
"""(-4, sentence): the handlers could not be loaded; the child exits."""
CLOSED: Final = -6
"""(-6, session id): a server session that this child has closed in good order."""
WAKE: Final = -5
"""(-5, [(table as declared, [group or nil, ...]), ...]): rows were inserted there and committed; no groups mean all."""

# The codes of reports: those of endings (policy/verbs.py), and
UNSTARTED: Final = 7
"""The lane refused to start the row: the stop word, or its deadline."""
MISSED: Final = 8
"""The child could not take the row in a transaction; `reason` says why, and nothing was changed."""
LOST: Final = 9
"""The row's transaction was in doubt, and the row is another's now."""
EACH: Final = 10
"""The report of a batch: after its time comes a list of reports, one for each row; any other report of it is all of theirs."""


FINAL: Final = (ACK, DROP)
"""Codes after which nothing of a key over all replicas waits for the row: after any other its lane stops, as after a refusal."""


def lost(lane: int) -> int:
    """Return the word of the delivery ring in which the coordinator names the delivery of `lane` whose lock is gone (0: none)."""
    return _FIRST_LOST + lane


def delivery_words(lanes: int) -> int:
    """Count the words of the delivery ring of a child with that many lanes."""
    return _FIRST_LOST + lanes


def running(lane: int) -> int:
    """Return the word of the report ring in which `lane` names the delivery that it runs (0: none)."""
    return 1 + lane


def report_words(lanes: int) -> int:
    """Count the words of the report ring of a child with that many lanes."""
    return 1 + lanes
