"""Where rows run, in which order, and when they are refused."""

from __future__ import annotations

import os
import signal
import time

from shardrun.child import lanes
from shardrun.child.lanes import Place
from shardrun.ring import words
from tests.child.conftest import Spawn
from tests.waiting import eventually

GATE = """

@queue.handler(workers=1)
def work(body, delivery: Delivery):
    while body == "wait" and not os.path.exists("open"):
        time.sleep(0.005)
    return Drop(threading.current_thread().name)
"""


def test_places_follow_the_number_of_lanes() -> None:
    """R19: a subscription's only lane here is on the main thread, several are threads, async ones are on the loop."""
    assert lanes.places([0, 1, 1, 2, 2, 3], [False, False, True, False]) == [
        Place.MAIN_THREAD,
        Place.THREAD,
        Place.THREAD,
        Place.EVENT_LOOP,
        Place.EVENT_LOOP,
        Place.MAIN_THREAD,
    ]


def test_a_childs_only_lane_runs_on_its_main_thread_in_order(spawn: Spawn) -> None:
    """H7, R19: asyncio.run, signals and libraries that insist on the main thread work."""
    child = spawn(
        """
        import asyncio, signal
        lock = asyncio.Lock()
        seen = []
        async def locked():
            async with lock:
                return threading.current_thread() is threading.main_thread()
        @queue.handler(workers=1)
        def work(body):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seen.append(body)
            return Drop(f"{asyncio.run(locked())} {seen}")
        """
    )
    for no in (1, 2, 3):
        child.give(no, no)
    assert child.report(3).reason == "True [1, 2, 3]"
    assert list(child.reports) == [1, 2, 3]


def test_two_subscriptions_with_one_lane_each_take_turns_on_the_main_thread(spawn: Spawn) -> None:
    """R7: one synchronous handler at a time, in order of arrival."""
    child = spawn(
        """
        other = Queue("u", id="id", payload="payload", locked_until="locked_until")
        seen = []
        @queue.handler(workers=1)
        def work(body): seen.append(body)
        @other.handler(workers=1)
        def look(body): return Drop(f"{threading.current_thread() is threading.main_thread()} {seen}")
        """,
        subscriptions=["queue/work", "other/look"],
        lanes=[0, 1],
    )
    child.give(1, "a", lane=0)
    child.give(2, lane=1)
    child.give(3, "b", lane=0)
    assert child.run(no=4, lane=1).reason == "True ['a', 'b']"
    assert child.reports[2].reason == "True ['a']"


MEETING = """
met = threading.Barrier(2)
@queue.handler(workers=2)
def work(body):
    met.wait(20)
    return Drop(threading.current_thread().name)
"""


def test_several_lanes_are_threads_that_run_side_by_side(spawn: Spawn) -> None:
    """H7, R19: two rows on two lanes meet, and the words name both while they run."""
    child = spawn(MEETING, lanes=[0, 0])
    child.give(1, lane=0)
    eventually(lambda: child.running(0) == 1)
    assert child.running(1) == 0
    child.give(2, lane=1)
    assert {child.report(1).reason, child.report(2).reason} == {"shardrun-lane-0", "shardrun-lane-1"}
    eventually(lambda: child.running(0) == child.running(1) == 0)
    assert child.close() == 0


def test_async_lanes_are_tasks_of_one_loop_that_run_side_by_side(spawn: Spawn) -> None:
    """H7, R19, C34: async rows meet in one thread, each lane keeps its order, module-global locks work."""
    child = spawn(
        """
        import asyncio
        met, lock, seen = asyncio.Barrier(2), asyncio.Lock(), []
        @queue.handler(workers=2)
        async def work(body):
            async with lock:
                seen.append(body)
            await asyncio.wait_for(met.wait(), 20)
            return Drop(f"{threading.current_thread().name} {sorted(seen)}")
        """,
        lanes=[0, 0],
    )
    for no, body in enumerate(("a", "b", "c", "d"), 1):
        child.give(no, body, lane=(no - 1) % 2)
    assert child.report(1).reason == "shardrun-event-loop ['a', 'b']"
    assert child.report(4).reason == "shardrun-event-loop ['a', 'b', 'c', 'd']"
    assert child.close() == 0


def test_async_handlers_may_cancel_everything_and_stop_the_loop(spawn: Spawn) -> None:
    """C28, C34: whatever a handler does to the loop's tasks, each row has one report and the next rows run."""
    child = spawn(
        """
        import asyncio
        @queue.handler(workers=2)
        async def work(body):
            if body == "cancel all":
                for task in asyncio.all_tasks():
                    task.cancel()
            elif body == "stop":
                asyncio.get_running_loop().stop()
            elif body == "leave":
                asyncio.create_task(asyncio.sleep(3600))
            elif body == "sleep":
                await asyncio.sleep(3600)
        """,
        lanes=[0, 0],
    )
    child.give(1, "sleep", lane=0)
    eventually(lambda: child.running(0) == 1)
    child.give(2, "cancel all", lane=1)
    assert child.report(1).reason == "CancelledError"
    assert child.report(2).code == words.ACK
    for no, body in enumerate(("stop", "leave", "fine"), 3):
        assert child.run(body, no=no).code == words.ACK
    assert child.close() == 0


def test_mixed_places_run_side_by_side(spawn: Spawn) -> None:
    """H7: a main lane, thread lanes and async lanes of one child do not wait for each other."""
    child = spawn(
        """
        import asyncio
        threads = Queue("u", id="id", payload="payload", locked_until="locked_until")
        loop = Queue("v", id="id", payload="payload", locked_until="locked_until")
        met = threading.Barrier(4)
        @queue.handler(workers=1)
        def work(body): met.wait(20)
        @threads.handler(workers=2)
        def thread(body): met.wait(20)
        @loop.handler(workers=1)
        async def coroutine(body): await asyncio.to_thread(met.wait, 20)
        """,
        subscriptions=["queue/work", "threads/thread", "loop/coroutine"],
        lanes=[0, 1, 1, 2],
    )
    for no, lane in enumerate((0, 1, 2, 3), 1):
        child.give(no, lane=lane)
    assert [child.report(no).code for no in (1, 2, 3, 4)] == [words.ACK] * 4
    assert child.close() == 0


def test_stop_lets_the_running_row_end_and_returns_the_others(spawn: Spawn) -> None:
    """H5: unstarted rows come back at once, none lost, none started."""
    child = spawn(GATE)
    child.give(1, "wait")
    eventually(lambda: child.running() == 1)
    for no in (2, 3):
        child.give(no)
    child.deliveries.words[words.STOP] = 1
    open(f"{child.spec['cwd']}/open", "w").close()
    assert child.report(1).code == words.DROP
    assert [child.report(no).code for no in (2, 3)] == [words.UNSTARTED] * 2
    assert child.close() == 0


def test_no_row_starts_past_its_deadline_unless_its_lease_was_extended(spawn: Spawn) -> None:
    """R14: a row that waited too long is returned unstarted; the word that says EXTENDED lets it start."""
    child = spawn(GATE)
    assert child.run(no=1, deadline=-1).code == words.UNSTARTED
    assert child.running() == 0
    child.deliveries.words[words.EXTENDED] = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 3_600 * 10**9
    child.send((words.RESUME, 0))
    assert child.run(no=2, deadline=-1).code == words.DROP
    child.deliveries.words[words.EXTENDED] = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 10**9
    assert child.run(no=3, deadline=-1).code == words.UNSTARTED


def test_a_lane_that_refused_a_row_refuses_all_until_it_is_told_to_go_on(spawn: Spawn) -> None:
    """D1, R14: a row handed out before the refusal was known never passes the refused one, which comes again behind it."""
    child = spawn(GATE)
    assert child.run(no=1, deadline=-1).code == words.UNSTARTED
    assert child.run(no=2).code == words.UNSTARTED
    child.send((words.RESUME, 0))
    assert child.run(no=3).code == words.DROP


def test_stopped_lanes_beside_each_other_return_their_rows_too(spawn: Spawn) -> None:
    """H5: rows that wait for threads or for the loop come back unstarted."""
    child = spawn(
        """
        loop = Queue("v", id="id", payload="payload", locked_until="locked_until")
        @queue.handler(workers=2)
        def work(body):
            while not os.path.exists("open"):
                time.sleep(0.005)
        @loop.handler(workers=1)
        async def coroutine(body):
            import asyncio
            while not os.path.exists("open"):
                await asyncio.sleep(0.005)
        """,
        subscriptions=["queue/work", "loop/coroutine"],
        lanes=[0, 0, 1],
    )
    for no, lane in enumerate((0, 2, 0, 2), 1):
        child.give(no, lane=lane)
    eventually(lambda: (child.running(0), child.running(2)) == (1, 2))
    child.deliveries.words[words.STOP] = 1
    open(f"{child.spec['cwd']}/open", "w").close()
    assert {no: child.report(no).code for no in (1, 2, 3, 4)} == {1: 0, 2: 0, 3: words.UNSTARTED, 4: words.UNSTARTED}
    assert child.close() == 0


def test_a_killed_child_leaves_the_row_that_ran_and_every_report_behind(spawn: Spawn) -> None:
    """R7: after SIGKILL the words name the running row, and the ring holds each report up to the mark."""
    child = spawn(GATE)
    for no in range(1, 11):
        child.give(no)
    child.give(11, "wait")
    child.give(12)
    eventually(lambda: child.running() == 11)
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.ended() == -signal.SIGKILL
    assert child.running() == 11
    assert sorted(child.reports) == list(range(1, 11))


def test_a_row_larger_than_the_ring_arrives_and_so_does_its_report(spawn: Spawn) -> None:
    """H1: bodies and reports pass in pieces; a full report ring makes the child wait, not fail."""
    child = spawn(
        """
        import logging
        @queue.handler(workers=1)
        def work(body):
            for no in range(100):
                logging.warning("%d %s", no, "x" * 10_000)
            return Drop(str(len(body)))
        """
    )
    assert child.run("x" * 1_000_000).reason == "1000000"
    assert [notice[3].split()[0] for notice in child.notices if notice[0] == words.LOG] == [
        str(no) for no in range(100)
    ]
