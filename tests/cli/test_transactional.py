"""What `shardrun check` says of transactional handlers that could not work."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.cli.terminal import Terminal

MODULE = """\
from shardrun import Queue

mails = Queue("mails", id="id", payload="payload", locked_until="locked_until")


@mails.handler({settings})
{kind} send(mail: dict) -> None: ...
"""


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        (
            "transactional=True, timeout=13, lease=30",
            "def",
            "Use timeout=12 or less (0.4 of the shortest lease here, 30 s)",
        ),
        ("transactional=True", "async def", "Make it a plain def, or leave transactional= out."),
        ("transactional=True, timeout=12, lease=30", "def", None),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(
    terminal: Terminal, settings: str, kind: str, said: str | None
) -> None:
    """R3, A5, text 1: a sentence, exit code 2, nothing started."""
    terminal.write("handlers.py", MODULE.format(settings=settings, kind=kind))
    with closing(sqlite3.connect(terminal.folder / "shardrun.db")) as file:
        file.execute("create table mails (id integer primary key, payload json, locked_until timestamp)")
    told = terminal.run("check", "handlers.py")
    assert told.code == (2 if said else 0)
    assert (said or "") in told.err
    assert "Traceback" not in told.err
