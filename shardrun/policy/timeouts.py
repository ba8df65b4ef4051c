"""Decide which deliveries have run for longer than they may, from looks at what the lanes run; never too early."""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_STEP = 0.5
"""Seconds that count between two looks. Larger: a stop of the whole replica (Ctrl-Z, a suspended machine) is taken for time
that handlers ran. Smaller: a coordinator that is kept from looking ends late rows later."""


class Runs:
    """How long each running delivery of one child has been seen to run.

    Only time between two looks that both saw it counts, so a row is ended up to two looks later than its timeout says.
    """

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}  # seconds by delivery number
        self._looked = 0.0

    def look(self, timeouts: Mapping[int, float], now: float) -> list[int]:
        """Note what runs, each with its timeout, and list what is late."""
        step = max(0.0, min(now - self._looked, LONGEST_STEP))
        self._looked = now
        self._seen = {no: self._seen[no] + step if no in self._seen else 0.0 for no in timeouts}
        return [no for no, timeout in timeouts.items() if self._seen[no] >= timeout]
