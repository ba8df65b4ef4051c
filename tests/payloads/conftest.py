"""The databases that payloads are stored in."""

from __future__ import annotations

from tests.process.conftest import site
from tests.store.conftest import open_place, place

__all__ = ["open_place", "place", "site"]
