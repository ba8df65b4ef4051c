"""Wait for doorbells: the only place that blocks on a ring, and always with a deadline of the caller's."""

from __future__ import annotations

import select
from collections.abc import Iterable


def wait(descriptors: Iterable[int], timeout: float | None) -> list[int]:
    """Block until a descriptor is readable, hung up or closed, and return those that are; none after `timeout` seconds.

    None waits for ever; zero or less only looks. Fractions of a millisecond are rounded up. Python's signal handlers
    run meanwhile, and the wait goes on.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    milliseconds = None if timeout is None else max(0.0, timeout * 1000)
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]
