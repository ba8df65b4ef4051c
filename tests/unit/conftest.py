"""A folder to write users' modules into, and an interpreter that forgets them after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from shardrun import modules

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files below a fresh working directory, `write("a/util.py", "X = 1")`, and undo every import afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(modules, "_FINDER", modules._Finder())
    before = dict(sys.modules)

    def write(name: str, text: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
        return path

    yield write
    for name in set(sys.modules) - set(before):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def handlers(write: Write) -> Callable[[str], Path]:
    """Write handlers.py with the imports that every handler module has; the first line of `text` is line 4."""
    head = "from shardrun import *\nfrom shardrun import Queue, Delivery\nfrom typing import *\n"
    return lambda text: write("handlers.py", head + dedent(text).lstrip("\n"))
