"""The databases that hostile tables are tried on."""

from __future__ import annotations

from tests.process.conftest import server_site, site
from tests.store.conftest import open_place, place, shared_dsn

__all__ = ["open_place", "place", "server_site", "shared_dsn", "site"]
