"""Keeps one database server for the tests, and ends it whatever becomes of them.

A process of its own, started by `tests/servers.py`. It reads one command a line (start, stop, kill) and answers each
with one line. At the end of its input, or when its parent is gone (a killed pytest), it ends the server and removes its
folder. The server's output is a pipe that every one of its processes holds: its end tells that all of them are gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

SECONDS_TO_START = 60.0
SECONDS_TO_STOP = 30.0
SECONDS_TO_END = 5.0
PR_SET_PDEATHSIG = 1


def main() -> None:
    keeper = Keeper(json.loads(sys.argv[1]))
    try:
        keeper.serve()
    finally:
        keeper.end()
        shutil.rmtree(keeper.plan["folder"], ignore_errors=True)


class Keeper:
    """One server at a time, over one folder."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.parent = int(plan["parent"])
        self.log = open(plan["log"], "ab", buffering=0)  # noqa: SIM115 (open as long as this process lives)
        self.server: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Answer commands until the input ends or the parent is gone."""
        self.run(self.plan["prepare"])
        pending = b""
        while os.getppid() == self.parent:
            chunk = self.wait_for_input()
            if chunk == b"":
                return
            *lines, pending = (pending + (chunk or b"")).split(b"\n")
            for line in lines:
                answer = getattr(self, line.decode())()
                os.write(1, answer.encode() + b"\n")

    def wait_for_input(self) -> bytes | None:
        """Wait for a command for a second at most, and copy the server's output to the log meanwhile."""
        poll = select.poll()
        poll.register(0, select.POLLIN | select.POLLHUP)
        output = self.server.stdout.fileno() if self.server and self.server.stdout else None
        if output is not None:
            poll.register(output, select.POLLIN | select.POLLHUP)
        ready = [fd for fd, _ in poll.poll(1000)]
        if output in ready and not self.copy_output():
            self.reap()
        return os.read(0, 4096) if 0 in ready else None

    def start(self) -> str:
        """Start the server; answers `ready` once it takes connections, else `failed`."""
        if self.server is not None:
            return "ready"
        self.server = self.open(self.plan["serve"])
        deadline = time.monotonic() + SECONDS_TO_START
        seen = b""
        while self.plan["ready"].encode() not in seen:
            chunk = self.copy_output(deadline)
            if not chunk:
                self.kill()
                return "failed"
            seen += chunk
        return "ready"

    def stop(self) -> str:
        """Ask the server to stop in order, and wait until all its processes are gone."""
        if self.server is not None:
            self.server.send_signal(self.plan["stop_signal"])
            if not self.ended(time.monotonic() + SECONDS_TO_STOP):
                self.log.write(b"did not stop in time and is killed\n")
                self.kill()
        return "stopped"

    def kill(self) -> str:
        """Kill the server and all its processes at once, as a crash would, and wait until they are gone."""
        if self.server is not None:
            with contextlib.suppress(psutil.Error):
                head = psutil.Process(self.server.pid)
                head.suspend()  # it must not start another process between the look and the kill
                for process in [*head.children(recursive=True), head]:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            self.ended()
        return "stopped"

    def end(self) -> None:
        """End the server for good: at once, but so that it still frees its shared memory."""
        if self.server is not None:
            self.server.send_signal(self.plan["end_signal"])
            if not self.ended(time.monotonic() + SECONDS_TO_END):
                self.kill()

    def run(self, argv: list[str]) -> None:
        """Run one program to its end, its output going to the log."""
        self.server = self.open(argv)
        self.ended()

    def open(self, argv: list[str]) -> subprocess.Popen[bytes]:
        user = self.plan["user"]
        who: dict[str, Any] = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.plan["folder"],
            env=self.plan["environment"],
            start_new_session=True,
            preexec_fn=die_with_parent,
            **who,
        )

    def copy_output(self, deadline: float | None = None) -> bytes:
        """Copy what the server says to the log; b"" when all its processes are gone or the deadline has passed."""
        assert self.server is not None
        assert self.server.stdout is not None
        output = self.server.stdout.fileno()
        if deadline is not None and not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return b""
        chunk = os.read(output, 65536)
        self.log.write(chunk)
        return chunk

    def ended(self, deadline: float | None = None) -> bool:
        """Wait until all the server's processes are gone; False when the deadline came first."""
        while self.copy_output(deadline):
            pass
        if deadline is not None and time.monotonic() >= deadline:
            return False
        self.reap()
        return True

    def reap(self) -> None:
        if self.server is not None:
            self.server.wait()
            assert self.server.stdout is not None
            self.server.stdout.close()
        self.server = None


def die_with_parent() -> None:
    """Ask Linux to end the server when its keeper dies: SIGQUIT lets PostgreSQL take its own processes with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


if __name__ == "__main__":
    main()
