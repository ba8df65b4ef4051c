"""Read the clock that leases are timed by: monotonic, and it counts the time that the machine was suspended (R14)."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Read seconds since some fixed point; the children read the same clock."""
    return time.clock_gettime(_CLOCK)
