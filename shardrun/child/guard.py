"""Keep a child from outliving its coordinator, from obeying signals meant for it, and from being doubled by a fork."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1
ORPHANED = 75
"""Exit code of a child that found its coordinator gone while it started; nobody is left to read it."""

LINGER = 3.0
"""Seconds that the user's own threads and exit hooks get once the lanes are done. Larger: a forgotten thread holds up
every stop. Smaller: less time to flush what a library keeps in memory."""

is_fork = False
"""Whether this process is a fork of the child, made by user code: one look at a name, where os.getpid() is a system call."""

_PASSED_OVER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent(parent: int, lifeline: int | None) -> None:
    """Have this process killed the moment its coordinator dies, also while a handler holds the GIL.

    `lifeline` is the reading end of a pipe whose writing end only the coordinator has, for systems without such a
    signal. The parent is looked at after arming: had it died before, the signal would never come.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if lifeline is not None:
        threading.Thread(target=_watch, args=(lifeline,), name="shardrun-lifeline", daemon=True).start()
    if os.getppid() != parent:
        os._exit(ORPHANED)


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def pass_over_signals() -> None:
    """Let the signals that ask for a stop pass: a terminal sends them to all, and the coordinator sees to the stop.

    A Python handler that does nothing, not SIG_IGN: programs that a handler starts would inherit that. A plain fork does
    inherit the handler, so SIGTERM and SIGHUP get their default back there (multiprocessing ends its own with SIGTERM).
    """
    for number in _PASSED_OVER:
        signal.signal(number, _pass)


def _pass(number: int, frame: FrameType | None) -> None:
    pass


def notice_forks() -> None:
    """Let a process that user code forks know that it is not the child, and is stopped by signals as any other."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global is_fork
    is_fork = True
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _pass:
            signal.signal(number, signal.SIG_DFL)


def fill_standard_descriptors() -> None:
    """Open /dev/null as each of descriptors 0 to 2 that is closed, lest a socket gets its number and prints go there."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # The lowest free number, so it is this one.
            os.set_inheritable(opened, True)


def leave_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler forked and that came back from the handler: only the child itself reports rows.

    It ends as a script would: SystemExit names the exit code, any other exception is printed and gives 1.
    """
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
        code = 1
    flush_streams()
    os._exit(code & 0xFF)


def flush_streams() -> None:
    """Flush what handlers printed; a stream that cannot take it is dropped, so that it cannot spoil the exit code."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException:
            setattr(sys, name, None)


def limit_farewell() -> None:
    """End this process after `LINGER` seconds at the latest, whatever threads or exit hooks user code has left."""

    def end() -> None:
        time.sleep(LINGER)
        os._exit(0)

    threading.Thread(target=end, name="shardrun-farewell", daemon=True).start()


def die(where: str) -> NoReturn:
    """End this process at once because a thread that rows depend on has failed: half a child loses rows silently."""
    with contextlib.suppress(BaseException):
        sys.stderr.write(f"shardrun: {where} of child {os.getpid()} failed\n")
        traceback.print_exc()
    os._exit(70)
