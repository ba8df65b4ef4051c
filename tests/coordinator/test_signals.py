"""Signals become events of the loop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from shardrun.coordinator import clock
from shardrun.coordinator.signals import WATCHED, watched
from shardrun.coordinator.waiting import Events


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


@pytest.mark.parametrize("number", WATCHED)
def test_a_signal_wakes_the_loop_and_calls_back_in_it(events: Events, number: signal.Signals) -> None:
    """H5: the handler only queues."""
    seen: list[signal.Signals] = []
    with watched(events, seen.append):
        os.kill(os.getpid(), number)
        assert seen == []
        events.wait(clock.now() + 10)
        assert seen == [number]


def test_each_of_several_signals_is_told_in_its_order(events: Events) -> None:
    """H5: a second one ends at once, so none may be swallowed."""
    seen: list[signal.Signals] = []
    with watched(events, seen.append):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        while len(seen) < 3:
            events.wait(clock.now() + 10)
    assert seen == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


def test_the_programs_own_handlers_are_back_afterwards(events: Events) -> None:
    """Contract 1: `shardrun.run` is called from users' programs."""
    before = {number: signal.getsignal(number) for number in WATCHED}
    with watched(events, lambda _: None):
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in WATCHED} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_outside_the_main_thread_signals_keep_their_meaning(events: Events) -> None:
    """Contract 1: Python cannot watch them there; nothing fails."""
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with watched(events, lambda _: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
