"""Fixtures of the tests of children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.child.children import Child

Spawn = Callable[..., Child]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Give a function that starts a child over the handlers in a source text, waits until it is ready, and ends it."""
    children: list[Child] = []

    def start(source: str, *, wait: bool = True, **settings: Any) -> Child:
        child = Child(tmp_path, source, **settings)
        children.append(child)
        return child.ready() if wait else child

    yield start
    for child in children:
        child.release()
