"""The databases that the store's contract is proved on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.place import Place


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give an empty database of each dialect in turn."""
    file = f"sqlite:///{tmp_path}/queue.db"
    made = Place(
        request.param, request.getfixturevalue("postgres").new_database() if request.param == "postgres" else file
    )
    yield made
    made.close()
