"""Name how a handler's run can end, as a report says it, and what a settlement can write."""

from __future__ import annotations

import enum
from typing import Final

# The codes of reports.
ACK: Final = 0
RETRY: Final = 1
SNOOZE: Final = 2
DROP: Final = 3
DEAD_LETTER: Final = 4
FAILED: Final = 5
"""The attempt failed (an exception, a bad answer); `seconds` is the delay that the retry rule gives."""
UNDECODABLE: Final = 6
"""The body did not fit the handler; `seconds` is the delay that the retry rule gives."""


class Verb(enum.Enum):
    """What a settlement writes. Each takes effect only while the row still carries the token."""

    ACK = enum.auto()  # done: delete the row, or set processed_at
    DROP = enum.auto()  # as ACK, with the reason where the row stays
    RETRY = enum.auto()  # due again after `delay`; the row keeps its count of attempts
    SNOOZE = enum.auto()  # due again after `delay`; this attempt is taken back
    BURY = enum.auto()  # move to the dead letters, with the reason
    RELEASE = enum.auto()  # unstarted: free at once, this attempt is taken back
    RECOUNT = enum.auto()  # keep the lease, write `attempt` (and the reason, where there is one)
