"""The databases that payloads are stored in."""

from __future__ import annotations

from tests.process.conftest import site
from tests.store.conftest import one_of_two as place
from tests.store.conftest import open_place

__all__ = ["open_place", "place", "site"]
