"""How a child dies, and what it must not die of."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardrun.child import guard
from shardrun.ring import words
from tests.child.children import PATIENCE
from tests.child.conftest import Spawn
from tests.waiting import eventually

STAND_IN = """
import sys
from pathlib import Path
from tests.child.children import Child
from tests.waiting import eventually
child = Child(Path(sys.argv[1]), sys.argv[2])
if sys.argv[3] != "at once":
    child.ready()
if sys.argv[3] == "running":
    child.give(1)
    eventually(lambda: child.running() == 1)
print(child.process.pid, flush=True)
child.process.wait()
"""

HOLDS_THE_GIL = "@queue.handler(workers=1)\ndef work(body): sum(range(10**12))"


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[list[int]]:
    """Collect pidfds of processes that must end, and end them."""
    pidfds: list[int] = []
    yield pidfds
    for pidfd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@pytest.mark.parametrize("state", ["at once", "ready", "running"])
def test_a_child_dies_with_its_coordinator(tmp_path: Path, orphan: list[int], state: str) -> None:
    """H3, R9, C13: a coordinator killed by SIGKILL takes its child along: while it starts, idle, and under the GIL."""
    command = [sys.executable, "-c", STAND_IN, str(tmp_path), HOLDS_THE_GIL, state]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as coordinator:
        assert coordinator.stdout is not None
        orphan.append(os.pidfd_open(int(coordinator.stdout.readline())))
        coordinator.kill()
    ended, _, _ = select.select(orphan, [], [], 5)
    assert ended == orphan


def test_a_child_whose_parent_is_another_ends_at_once(spawn: Spawn) -> None:
    """R9: the parent is looked at after arming, lest it died before."""
    child = spawn("@queue.handler(workers=1)\ndef work(body): pass", wait=False, parent=1)
    assert child.ended() == guard.ORPHANED
    assert child.notices == []


def test_a_child_dies_when_its_lifeline_ends(spawn: Spawn) -> None:
    """R9: where there is no parent-death signal, the end of a pipe that only the coordinator writes does it."""
    reader, writer = os.pipe()
    child = spawn("@queue.handler(workers=1)\ndef work(body): pass", lifeline=reader, inherit=(reader,))
    os.close(reader)
    assert child.run().code == words.ACK
    os.close(writer)
    assert child.ended() == -signal.SIGKILL


def test_signals_to_the_whole_group_are_not_seen_by_handlers(spawn: Spawn) -> None:
    """C22, H5: Ctrl-C, three times, and SIGTERM reach the group; the row that runs ends as if nothing had been."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body):
            seen = []
            while not os.path.exists("open"):
                try:
                    time.sleep(0.01)
                except BaseException as error:
                    seen.append(repr(error))
            return Drop(repr(seen))
        """
    )
    child.give(1)
    eventually(lambda: child.running() == 1)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(child.process.pid, number)
    (Path(child.spec["cwd"]) / "open").touch()
    assert child.report(1).reason == "[]"
    assert child.close() == 0


def test_an_idle_child_passes_signals_over(spawn: Spawn) -> None:
    """C22: a child that waits for rows goes on waiting."""
    child = spawn("@queue.handler(workers=1)\ndef work(body): pass")
    os.killpg(child.process.pid, signal.SIGINT)
    os.killpg(child.process.pid, signal.SIGTERM)
    assert child.run().code == words.ACK


def test_os_exit_is_a_death_with_its_code(spawn: Spawn) -> None:
    """H7: the exit code is the coordinator's to see, the words still name the row."""
    child = spawn("@queue.handler(workers=1)\ndef work(body): os._exit(9)")
    child.give(1)
    assert child.ended() == 9
    assert child.running() == 1
    assert child.reports == {}


FORKS = """
@queue.handler(workers={workers})
def work(body, delivery: Delivery):
    if body is None:
        return Drop("next")
    pid = os.fork()
    if pid:
        return Drop(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    if body == "exit":
        sys.exit(3)
    if body == "raise":
        raise ValueError("in the fork")
    if body == "log":
        import logging
        logging.warning("from a fork")
    if body == "lend":
        with delivery.connection():
            pass
"""


@pytest.mark.parametrize("lanes", [[0], [0, 0]])
def test_a_fork_of_a_handlers_never_reports(spawn: Spawn, tmp_path: Path, lanes: list[int]) -> None:
    """H7, R9: a process that a handler forked and that returns, exits or raises ends there, with a script's exit code."""
    with open(tmp_path / "err", "w") as err:
        child = spawn(FORKS.format(workers=len(lanes)), lanes=lanes, stderr=err)
        endings = {"return": "0", "exit": "3", "raise": "1", "log": "0", "lend": "1"}
        for no, (body, code) in enumerate(endings.items(), 1):
            assert child.run(body, no=no).reason == code, body
        assert child.run(no=9).reason == "next"
        assert child.close() == 0
    said = (tmp_path / "err").read_text()
    assert "ValueError: in the fork" in said
    assert "from a fork" in said
    assert "cannot use its parent's connections" in said


def test_handlers_may_start_processes_of_their_own(spawn: Spawn) -> None:
    """C36, H7: multiprocessing by fork and by spawn, subprocesses and os.wait give right results and exit codes."""
    child = spawn(
        """
        import concurrent.futures, multiprocessing, subprocess
        @queue.handler(workers=1)
        def work(body):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                squares = pool.map(abs, [-1, -2])
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                squares += pool.map(abs, [-3])
            code = subprocess.run(["sh", "-c", "exit 7"]).returncode
            if os.fork() == 0:
                os._exit(5)
            waited = os.waitstatus_to_exitcode(os.wait()[1])
            ignored = subprocess.run(["sh", "-c", "kill -INT $$; echo alive"], capture_output=True).returncode
            return Drop(f"{squares} {code} {waited} {ignored}")
        """
    )
    assert child.run().reason == f"[1, 2, 3] 7 5 -{signal.SIGINT:d}"
    assert child.close() == 0


def test_threads_that_handlers_leave_behind_do_not_keep_the_child(spawn: Spawn) -> None:
    """H7: after its last row a child gives threads a moment and ends with 0; exit hooks run when nothing hangs."""
    child = spawn(
        """
        import atexit
        atexit.register(lambda: open("hook", "w").close())
        @queue.handler(workers=1)
        def work(body):
            if body == "thread":
                threading.Thread(target=time.sleep, args=(3600,)).start()
        """
    )
    assert child.run("fine").code == words.ACK
    assert child.close() == 0
    assert (Path(child.spec["cwd"]) / "hook").exists()
    stuck = spawn(
        "@queue.handler(workers=1)\ndef work(body): threading.Thread(target=time.sleep, args=(3600,)).start()"
    )
    assert stuck.run().code == words.ACK
    stuck.send((words.CLOSE,))
    assert stuck.process.wait(PATIENCE) == 0
