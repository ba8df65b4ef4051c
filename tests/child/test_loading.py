"""What a child does before it is ready."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardrun.child import loop, state
from shardrun.ring import words
from tests.child.conftest import Spawn


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        ("import nowhere", {}, "No module named 'nowhere'"),
        ("sys.exit(4)", {}, "SystemExit"),
        ("@queue.handler()\ndef other(body): pass", {}, "handler queue/work is no longer declared there"),
        ("@queue.handler()\ndef work(a, b): pass", {}, "has parameters that nothing fills: b"),
        ("@queue.handler()\ndef work(body): pass", {"cwd": "/nonexistent/folder"}, "No such file or directory"),
    ],
)
def test_handlers_that_cannot_be_loaded_are_reported_in_a_sentence(
    spawn: Spawn, source: str, settings: dict[str, str], sentence: str
) -> None:
    """H2: the coordinator learns why a child could not start, whatever the user's modules do on import."""
    child = spawn(source, wait=False, **settings)
    assert child.ended() == loop.FAILED_TO_LOAD
    assert [notice[0] for notice in child.notices] == [words.BROKEN]
    assert sentence in child.notices[0][1]
    assert "Traceback" not in child.notices[0][1]


def test_a_child_works_in_the_folder_that_it_was_given(spawn: Spawn, tmp_path: Path) -> None:
    """C33: a replacement starts where the coordinator was told to work, whatever an earlier child did."""
    child = spawn("@queue.handler(workers=1)\ndef work(body): return Drop(os.getcwd())")
    assert child.run().reason == str(tmp_path)


def test_the_spec_leaves_no_trace(spawn: Spawn) -> None:
    """4-api 2: a password in the DSN is in no argument list, no environment and no descriptor that is still open."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body):
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                     and os.path.exists(f"/proc/self/fd/{fd}")]
            inherited = [fd for fd in range(3, 100) if is_open(fd) and os.get_inheritable(fd)]
            return Drop(repr([any("spec" in name for name in names), inherited]))
        def is_open(fd):
            try:
                return os.fstat(fd) is not None
            except OSError:
                return False
        """,
        dsn="postgresql://app:hunter2@db/app",
    )
    assert child.run().reason == "[False, []]"
    for name in ("cmdline", "environ"):
        assert b"hunter2" not in Path(f"/proc/{child.process.pid}/{name}").read_bytes()


def test_no_database_is_touched_before_a_handler_asks(spawn: Spawn) -> None:
    """F1, P8: neither a driver nor asyncio is imported for handlers that need none."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body):
            return Drop(repr(sorted({"psycopg", "sqlite3", "asyncio", "click", "rich", "psutil"} & set(sys.modules))))
        """
    )
    assert child.run().reason == "[]"
    assert os.listdir(f"/proc/{child.process.pid}/task") == [str(child.process.pid)]


def test_a_child_of_transactional_handlers_has_its_driver_before_the_first_row(spawn: Spawn) -> None:
    """R3, H2: a lease that is not extended any more does not run out while a driver is loaded."""
    source = "@queue.handler(workers=1, transactional=True)\ndef work(body): pass"
    child = spawn(source, dsn="sqlite:///never-opened.db", layouts=[{}])
    assert "_sqlite3" in Path(f"/proc/{child.process.pid}/maps").read_text()
    assert "_sqlite3" not in Path(f"/proc/{spawn(source).process.pid}/maps").read_text()


def test_a_child_knows_that_it_is_one(spawn: Spawn) -> None:
    """Text 20: shardrun.run without `if __name__ == "__main__"` is refused in a child, not a fork bomb."""
    child = spawn("import shardrun\nshardrun.run(queue)\n@queue.handler()\ndef work(body): pass", wait=False)
    assert child.ended() == loop.FAILED_TO_LOAD
    assert "__main__" in child.notices[0][1]
    assert not state.is_child()
