"""Hold the GIL, as a long call into C does."""

from __future__ import annotations

NUMBERS = 20_000_000
"""What one call adds up: about half a second."""


def hold_the_gil() -> None:
    """Run one C loop that neither releases the GIL nor looks for signals."""
    sum(range(NUMBERS))
