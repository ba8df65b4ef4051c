"""Turn signals into events: a handler only queues, the loop acts (H5)."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from shardrun.coordinator.waiting import Events

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def watched(events: Events, callback: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call back in the loop for each SIGTERM, SIGINT and SIGHUP while the block runs.

    Outside the main thread Python cannot watch signals: they keep the meaning that the program gave them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def read() -> None:
        for number in os.read(reader.fileno(), 4096):
            if number in WATCHED:
                callback(signal.Signals(number))

    events.watch(reader.fileno(), read)
    woken_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, _do_nothing) for number in WATCHED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        events.unwatch(reader.fileno())
        reader.close()
        writer.close()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Leave it to the loop, which reads the number from the wake-up descriptor."""
