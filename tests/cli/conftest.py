"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Give a folder with a handler module, and no database."""
    made = Terminal(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ready(terminal: Terminal) -> Terminal:
    """Give a folder whose SQLite file has the tables of its handler module."""
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    return terminal
