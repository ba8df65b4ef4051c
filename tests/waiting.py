"""Waiting for something to become true, with a deadline; the only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], seconds: float = 10.0) -> T:
    """Call `look` until it returns something true, and return that; fail with what it last returned."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; last seen: {seen!r}")
        time.sleep(0.01)
    return seen
