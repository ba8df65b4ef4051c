"""Live a child's life: run handlers for the coordinator until it says that it is enough.

    delivery ring -> read -> lane -> call -> outcome -> report -> report ring
                                       |
                                       +- lent connections (pools.py), logging (logs.py)

A child, in this order:
    1. arms itself to die with its coordinator, and lets signals pass: stopping is the coordinator's business (guard.py)
    2. imports the handlers, and says READY, or BROKEN and why
    3. runs rows on lanes, each lane one at a time; a lane says what runs before it looks whether it may (lanes.py)
    4. turns every ending into a report, which is in the ring before the lane's next row starts (call.py, reports.py)
    5. on CLOSE reports what is left, gives the user's threads and exit hooks a moment, and exits with 0
It claims, extends and settles nothing, and opens no connection that a handler has not asked for.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NotRequired, TypedDict

from shardrun import registry, ring
from shardrun.child import guard, logs, state
from shardrun.child.batch import BatchCall
from shardrun.child.call import Call, Draining
from shardrun.child.endings import error_text
from shardrun.child.lanes import Feed, Lane, Place, QueueFeed, ThreadFeed, places
from shardrun.child.pools import PATIENCE, Pool
from shardrun.child.reports import Reports
from shardrun.errors import ShardrunError, UsageProblem
from shardrun.handler import plan
from shardrun.queue import Subscription
from shardrun.ring.doorbell import wait
from shardrun.ring.wire import Frame, Frames
from shardrun.ring.words import BROKEN, CLOSE, CLOSED, DRAINING, READY, SESSION, lost

FAILED_TO_LOAD = 1
"""Exit code of a child whose handlers could not be loaded; the reason went into the report ring."""


class Spec(TypedDict):
    """What the coordinator writes for a child, as JSON."""

    path: list[str]  # sys.path
    cwd: str
    parent: int  # the coordinator's process id
    lifeline: NotRequired[int | None]  # the reading end of a pipe that ends with the coordinator
    modules: list[str]  # what registry.load takes
    subscriptions: list[str]  # labels
    payload_kinds: list[str | None]  # of each subscription: "json", "text", "binary"
    layouts: NotRequired[list[Any]]  # of each subscription that is transactional, as db/taking.py describes it
    lanes: list[int]  # of each lane: its subscription's index
    dsn: str
    pool: int  # connections
    pool_patience: NotRequired[float]  # seconds
    part: str  # how this child's connections are named to the server
    log_level: str
    deliveries: list[int]  # descriptors
    reports: list[int]
    size: int  # bytes of each ring
    delivery_words: int
    report_words: int


def live(spec: Spec) -> None:
    """Run one child from its first breath to its last."""
    guard.die_with_parent(spec["parent"], spec.get("lifeline"))
    state.become_child(os.getpid())
    guard.pass_over_signals()
    guard.notice_forks()
    state.become_child(os.getpid())
    guard.fill_standard_descriptors()
    deliveries = ring.attach(spec["deliveries"], spec["size"], spec["delivery_words"])
    reports = Reports(ring.attach(spec["reports"], spec["size"], spec["report_words"]))
    logs.forward(reports.say, spec["log_level"])
    pool = _pool(spec, reports)
    try:
        os.chdir(spec["cwd"])
        calls, is_async = _load(spec, pool, partial(_is_draining, deliveries.words), reports)
    except BaseException as problem:  # User code runs while it is imported, and may raise anything.
        reports.send((BROKEN, str(problem) if isinstance(problem, ShardrunError) else error_text(problem)))
        sys.exit(FAILED_TO_LOAD)
    gc.collect()
    gc.freeze()
    reports.send((READY, os.getpid()))
    lanes = [Lane(no, calls[index], deliveries.words, reports) for no, index in enumerate(spec["lanes"])]
    finish = _serve(_rows(deliveries, reports), lanes, places(spec["lanes"], is_async), reports)
    _leave(pool, reports, finish)


def _is_draining(words: memoryview[int], no: int, lane: int) -> bool:
    """Tell whether the replica drains, or the lock that holds this row is gone."""
    return bool(words[DRAINING]) or words[lost(lane)] == no


def _pool(spec: Spec, reports: Reports) -> Pool:
    def announce(session: str) -> None:
        reports.send((SESSION, session))

    def forget(session: str) -> None:
        reports.send((CLOSED, session))

    patience = spec.get("pool_patience", PATIENCE)
    return Pool(spec["dsn"], spec["pool"], spec["part"], announce, reports.wake, patience, forget=forget)


def _load(spec: Spec, pool: Pool, draining: Draining, reports: Reports) -> tuple[list[Call], list[bool]]:
    declared = registry.load(spec["modules"])
    by_label: dict[str, Subscription] = dict(zip(declared.labels, declared.subscriptions, strict=True))
    if gone := [label for label in spec["subscriptions"] if label not in by_label]:
        raise UsageProblem(
            f"{', '.join(spec['modules'])}: handler {gone[0]} is no longer declared there. Start shardrun anew."
        )
    subscriptions = [by_label[label] for label in spec["subscriptions"]]
    plans = [plan(*pair) for pair in zip(subscriptions, spec["payload_kinds"], strict=True)]
    calls = [
        (Call if each.batch is None else BatchCall)(each, how, pool.lend, draining)
        for each, how in zip(subscriptions, plans, strict=True)
    ]
    for index, layout in enumerate(spec.get("layouts", [])):
        if layout is not None:
            from shardrun.child.transactional import TransactionalCall  # memory that other children save
            from shardrun.child.transactional_batch import TransactionalBatchCall

            pool.prepare()
            kind = TransactionalCall if subscriptions[index].batch is None else TransactionalBatchCall
            calls[index] = kind(subscriptions[index], plans[index], pool, draining, layout, reports.wake)
    return calls, [plan.is_async for plan in plans]


def _rows(deliveries: ring.Ring, reports: Reports) -> Iterator[Frame]:
    """Read rows as they come, until CLOSE; all reports are published before this waits."""
    frames = Frames()
    while True:
        data = deliveries.read()
        if not data:
            reports.publish()
            wait([deliveries.reader_doorbell], None)
        for row in frames.feed(data):
            if row[0] == CLOSE:
                return
            yield row


def _serve(
    rows: Iterator[Frame], lanes: Sequence[Lane], where: Sequence[Place], reports: Reports
) -> Callable[[], None]:
    """Run rows until there are no more; returns what is left to do at the end."""
    if all(place is Place.MAIN_THREAD for place in where):
        reports.patient = True
        for row in rows:
            lanes[row[1]].take(row)
        return lambda: None
    return _serve_beside(rows, lanes, where)


def _serve_beside(rows: Iterator[Frame], lanes: Sequence[Lane], where: Sequence[Place]) -> Callable[[], None]:
    """Read rows on one thread and run them on others, the main thread among them."""
    main = QueueFeed()
    feed_of, finish = _feeds(main, where)
    feeds = set(feed_of)

    def read() -> None:
        try:
            for row in rows:
                feed_of[row[1]].put(lanes[row[1]], row)
            for feed in feeds | {main}:
                feed.close()
        except BaseException:  # Nothing of the user's runs here; without a reader no row would ever come again.
            guard.die("the reader")

    threading.Thread(target=read, name="shardrun-reader", daemon=True).start()
    main.run()
    for feed in feeds:
        feed.join()
    return finish


def _feeds(main: QueueFeed, where: Sequence[Place]) -> tuple[list[Feed], Callable[[], None]]:
    finish: Callable[[], None] = lambda: None  # noqa: E731
    event_loop: Feed = main
    if Place.EVENT_LOOP in where:
        from shardrun.child.event_loop import EventLoopFeed  # asyncio takes memory that other children save.

        loop = EventLoopFeed()
        event_loop, finish = loop, loop.shut
    feeds: list[Feed] = [
        main
        if place is Place.MAIN_THREAD
        else event_loop
        if place is Place.EVENT_LOOP
        else ThreadFeed(f"shardrun-lane-{no}")
        for no, place in enumerate(where)
    ]
    return feeds, finish


def _leave(pool: Pool, reports: Reports, finish: Callable[[], None]) -> None:
    """End well: what is reported is published, and nothing that user code left behind can hold this up for long."""
    reports.publish()
    guard.limit_farewell()
    finish()
    pool.close()
    guard.flush_streams()
