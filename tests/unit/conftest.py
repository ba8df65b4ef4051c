"""A folder to write users' modules into, and an interpreter that forgets them after each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_imports: None) -> Write:
    """Write files below a fresh working directory, `write("a/util.py", "X = 1")`; imports are undone afterwards."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
        return path

    return write


@pytest.fixture
def handlers(write: Write) -> Callable[[str], Path]:
    """Write handlers.py with the imports that every handler module has; the first line of `text` is line 4."""
    head = "from shardrun import *\nfrom shardrun import Queue, Delivery\nfrom typing import *\n"
    return lambda text: write("handlers.py", head + dedent(text).lstrip("\n"))
