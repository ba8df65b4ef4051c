"""Fixtures of the tests of the coordinator's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.desk import Desk

MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    """Give a function that puts a coordinator together; it is taken apart after the test."""
    desks: list[Desk] = []

    def make(**settings: Any) -> Desk:
        desks.append(Desk(tmp_path, **settings))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()
