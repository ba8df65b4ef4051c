"""The one place where the coordinator waits: descriptors, timers, and what other threads post."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from shardrun.coordinator import clock
from shardrun.coordinator.waiting import Events

PATIENCE = 10.0


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


class Bell:
    """A descriptor that can be rung."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)

    def ring(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def hush(self) -> None:
        os.eventfd_read(self.descriptor)


@pytest.fixture
def bells() -> Iterator[list[Bell]]:
    made = [Bell(), Bell()]
    yield made
    for bell in made:
        os.close(bell.descriptor)


def soon() -> float:
    """Say until when a wait that must be woken waits."""
    return clock.now() + PATIENCE


def test_a_wait_ends_when_its_time_has_come(events: Events) -> None:
    """Architecture 4: nothing polls; each wait has a deadline."""
    until = clock.now() + 0.02
    events.wait(until)
    assert until - 0.002 <= clock.now() < until + 5


def test_timers_run_in_the_order_of_their_times_and_not_before(events: Events) -> None:
    """Architecture 4: timers are events; equal times keep the order in which they were set."""
    start, seen = clock.now(), list[str]()
    for name, after in (("late", 0.02), ("first", 0.0), ("second", 0.0), ("never", 1000.0)):
        events.at(start + after, lambda name=name: seen.append(name))  # type: ignore[misc]
    events.wait(soon())
    assert seen[:2] == ["first", "second"]
    while "late" not in seen:
        events.wait(soon())
    assert clock.now() >= start + 0.02
    assert seen == ["first", "second", "late"]


def test_a_timer_may_set_the_next_one_for_now(events: Events) -> None:
    """Architecture 4: it runs in a later wait, so that descriptors have their turn."""
    seen = list[int]()

    def again() -> None:
        seen.append(len(seen))
        events.at(clock.now(), again)

    events.at(clock.now(), again)
    for turn in range(1, 4):
        events.wait(soon())
        assert len(seen) >= turn


def test_what_threads_post_runs_in_the_waiting_thread_in_their_order(events: Events) -> None:
    """Architecture 4: state is changed by one thread; many posts need no room in a pipe."""
    seen: list[tuple[int, int]] = []
    here = threading.get_ident()

    def note(thread: int, number: int) -> None:
        assert threading.get_ident() == here
        seen.append((thread, number))

    def post(thread: int) -> None:
        for number in range(5000):
            events.post(lambda number=number: note(thread, number))  # type: ignore[misc]

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    while len(seen) < 15_000:
        events.wait(soon())
    for number, thread in enumerate(threads):
        thread.join()
        assert [each for who, each in seen if who == number] == list(range(5000))


def test_a_post_before_the_wait_is_not_slept_over(events: Events) -> None:
    """Architecture 4: no lost wake-up."""
    seen = list[str]()
    events.post(lambda: seen.append("posted"))
    events.wait(float("inf"))
    assert seen == ["posted"]


def test_a_descriptor_calls_back_while_it_is_readable_and_watched(events: Events, bells: list[Bell]) -> None:
    """Architecture 4: doorbells and deaths are events."""
    seen, bell = list[str](), bells[0]
    events.watch(bell.descriptor, lambda: seen.append("rang"))
    bell.ring()
    events.wait(soon())
    events.wait(soon())
    assert seen == ["rang", "rang"]
    events.unwatch(bell.descriptor)
    events.wait(clock.now())
    assert seen == ["rang", "rang"]


def test_a_callback_may_unwatch_another_descriptor_of_the_same_batch(events: Events, bells: list[Bell]) -> None:
    """Architecture 4: a child's death unwatches its doorbell, which may have rung in the same moment."""
    seen = list[int]()

    def take_out_the_other(number: int) -> None:
        seen.append(number)
        bells[number].hush()
        events.unwatch(bells[1 - number].descriptor)

    for number, bell in enumerate(bells):
        events.watch(bell.descriptor, lambda number=number: take_out_the_other(number))  # type: ignore[misc]
        bell.ring()
    events.wait(soon())
    assert len(seen) == 1


def test_a_descriptor_that_takes_a_closed_ones_number_is_not_called_for_it(events: Events, bells: list[Bell]) -> None:
    """Architecture 4: a replacement's doorbell may have the number of the dead child's, and has not rung."""
    seen, fresh = list[str](), list[int]()

    def replace(number: int) -> None:
        seen.append("died")
        bells[number].hush()
        other = bells[1 - number]
        events.unwatch(other.descriptor)
        os.close(other.descriptor)
        fresh.append(os.eventfd(0, os.EFD_NONBLOCK))
        assert fresh[0] == other.descriptor
        events.watch(fresh[0], lambda: seen.append("the fresh one"))

    for number, bell in enumerate(bells):
        events.watch(bell.descriptor, lambda number=number: replace(number))  # type: ignore[misc]
        bell.ring()
    events.wait(soon())
    assert seen == ["died"]
    os.eventfd_write(fresh[0], 1)
    events.wait(soon())
    assert seen == ["died", "the fresh one"]
