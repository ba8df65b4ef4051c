"""The databases that hostile tables are tried on."""

from __future__ import annotations

from tests.process.conftest import server_site, site
from tests.store.conftest import one_of_two as place
from tests.store.conftest import open_place

__all__ = ["open_place", "place", "server_site", "site"]
