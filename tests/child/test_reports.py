"""When reports are published, and what user objects can do to an ending."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardrun import Backoff, Queue, Retry, ring
from shardrun.child import call, endings, event_loop, reports
from shardrun.child.call import Call
from shardrun.child.lanes import Lane
from shardrun.child.reports import Reports
from shardrun.handler import plan
from shardrun.ring import words
from shardrun.ring.wire import Frame, Frames
from tests.waiting import eventually

SIZE = 4096


class Rings:
    """Both sides of a report ring, and of the delivery ring's words."""

    def __init__(self) -> None:
        self.ours = ring.create(SIZE, words.report_words(3))
        self.theirs = ring.attach([os.dup(fd) for fd in self.ours.descriptors()], SIZE, words.report_words(3))
        self.deliveries = ring.create(SIZE, words.delivery_words(8))
        self.reports = Reports(self.ours)
        self.frames = Frames()

    def read(self) -> list[Frame]:
        """Read what was published."""
        return self.frames.feed(self.theirs.read())

    def close(self) -> None:
        for each in (self.ours, self.theirs, self.deliveries):
            each.close()


@pytest.fixture
def rings() -> Iterator[Rings]:
    """Give the rings of a child."""
    made = Rings()
    yield made
    made.close()


def test_reports_of_tiny_rows_are_published_together(rings: Rings) -> None:
    """P4: on the main lane the doorbell rings once for many tiny rows; each report is in the ring at once."""
    rings.reports.patient = True
    for no in range(1, reports.MOST_UNPUBLISHED):
        rings.reports.add((no, words.ACK, 1))
    assert rings.read() == []
    assert rings.ours.words[words.MARK] > 0
    rings.reports.add((reports.MOST_UNPUBLISHED, words.ACK, 1))
    assert len(rings.read()) == reports.MOST_UNPUBLISHED


@pytest.mark.parametrize("times", [[reports.SHORT_ROW + 1], [reports.LONGEST_UNPUBLISHED // 2 + 1] * 2])
def test_a_report_does_not_wait_behind_rows_that_take_time(rings: Rings, times: list[int]) -> None:
    """P3: after a row that took long, or several that did together, reports are published."""
    rings.reports.patient = True
    for no, elapsed in enumerate(times, 1):
        rings.reports.add((no, words.ACK, elapsed))
    assert [frame[0] for frame in rings.read()] == list(range(1, len(times) + 1))


def test_lanes_beside_each_other_publish_at_once(rings: Rings) -> None:
    """P3: a lane that has reported may have nothing more to do."""
    rings.reports.add((1, words.ACK, 1))
    assert rings.read() == [(1, words.ACK, 1)]


def test_a_full_ring_makes_the_writer_wait_until_there_is_space(rings: Rings) -> None:
    """H1: nothing is lost and nothing spins when the coordinator is slow to read."""
    text = "x" * (3 * SIZE)
    writer = threading.Thread(target=rings.reports.send, args=((1, words.DROP, 1, None, text, None),))
    writer.start()
    assert eventually(rings.read) == [(1, words.DROP, 1, None, text, None)]
    writer.join(10)


class Hostile:
    """An object whose every look at it fails."""

    def __repr__(self) -> str:
        raise SystemExit

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class Bad(Exception):
    def __str__(self) -> str:
        return Text("odd")


class Text(str):
    """A text with methods of its own."""

    def __getitem__(self, key: object) -> str:
        raise RuntimeError

    def __format__(self, spec: str) -> str:
        raise RuntimeError


def test_a_hostile_answer_is_a_failed_attempt() -> None:
    """C18, E1: the objects that a handler returns cannot break the child."""
    for answer in (Hostile(), Text("x"), object(), [Retry()], b"\0", float("nan")):
        assert _report(answer=answer)[1] == words.FAILED


def test_a_hostile_exception_is_a_failed_attempt() -> None:
    """C18, E2: neither can the exceptions that it raises."""
    for error in (Bad(), Exception(Hostile()), Exception(Text("x")), BaseException()):
        _, code, _, _, reason, _ = _report(error=error)
        assert code == words.FAILED
        assert reason


def _report(answer: Any = None, error: BaseException | None = None) -> Frame:
    queue = Queue("t", id="id", payload="payload", locked_until="locked_until")

    @queue.handler(workers=1)
    def work(body: str) -> Any:
        if error is not None:
            raise error
        return answer

    (subscription,) = queue.subscriptions
    made = Call(subscription, plan(subscription, "text"), _no_connection, lambda *_: False)
    return made.run((1, 0, 7, 1, 0.0, None, None, None, "body"), call.boot_time())


def _no_connection(handler: str, queue: str, row: Any) -> Any:
    raise AssertionError("nobody asked for a connection")


def test_an_error_text_is_cut_and_can_be_stored() -> None:
    """C43: NUL and lone surrogates are replaced, everything else stays as it is."""
    plain = "100% %s {0} 'x' \\ \N{PARTY POPPER}"
    text = endings.error_text(ValueError(f"a\0b\ud800 {plain}" + "y" * 5000))
    assert text.startswith(
        "ValueError: a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER} 100% %s {0} 'x' \\ \N{PARTY POPPER}y"
    )
    assert len(text) == endings.LONGEST_REASON


def test_attempts_without_end_still_give_a_delay() -> None:
    """C42: five thousand attempts do not overflow the back-off."""
    ending = endings.of_error(ValueError(), 5000, Backoff(first=5, factor=2, longest=600, jitter=0))
    assert ending.seconds == 600


def test_a_task_that_is_cancelled_before_it_begins_is_a_failed_attempt(rings: Rings) -> None:
    """C28, C34: a row whose task never ran its handler is reported, and its lane goes on."""
    queue = Queue("t", id="id", payload="payload", locked_until="locked_until")

    both_wait = threading.Event()

    @queue.handler(workers=3)
    async def work(body: str) -> None:
        if body == "block":
            assert both_wait.wait(10)
            return
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    (subscription,) = queue.subscriptions
    made = Call(subscription, plan(subscription, "text"), _no_connection, lambda *_: False)
    feed = event_loop.EventLoopFeed()
    for no, body in enumerate(("block", "cancel", "cancel"), 1):
        lane = Lane(no - 1, made, rings.deliveries.words, rings.reports)
        feed.put(lane, (no, no - 1, no, 1, call.boot_time() + 60, None, None, None, body))
    both_wait.set()
    feed.close()
    feed.join()
    feed.shut()
    assert [frame[:2] for frame in rings.read()] == [(1, words.ACK), (2, words.ACK), (3, words.FAILED)]
