"""Start the processes of the hand-written loops, with a pipe each way (their standard input and output)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence

PIPE_BYTES = 1 << 20
"""Room in a pipe, where Linux lets us choose: the coordinator never blocks on what a child has not read yet."""


class Child:
    """A process of the bench's own; it ends when its standard input does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.pid = process.pid
        self.writes = process.stdin.fileno()
        self.reads = process.stdout.fileno()
        for pipe in (self.writes, self.reads):
            with contextlib.suppress(AttributeError, OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def wait_until_ready(self) -> None:
        """Wait until it has imported its handler."""
        if os.read(self.reads, 1) != b"r":
            raise SystemExit(f"a child of the bench did not start (exit code {self._process.wait()})")

    def wait_for_end(self) -> None:
        """Wait until it says that nothing is left."""
        if os.read(self.reads, 1) != b"e":
            raise SystemExit(f"a child of the bench ended early (exit code {self._process.wait()})")

    def send(self, data: bytes) -> None:
        """Write all of `data`."""
        written = os.write(self.writes, data)
        while written < len(data):
            written += os.write(self.writes, data[written:])

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def start(module: str, queue: str, inherited: Sequence[int] = ()) -> Child:
    """Start `python -m module queue [descriptors]`."""
    argv = [sys.executable, "-m", module, queue, *(str(descriptor) for descriptor in inherited)]
    return Child(
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=tuple(inherited), bufsize=0)
    )
