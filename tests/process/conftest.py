"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mariadb import Mariadb
from tests.process.site import Site


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Give a database of each kind with the tables `q` and `q_dead`; nothing of a replica may be left after the test."""
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    place = Site(request.param, tmp_path, server)
    place.create("q")
    yield place
    place.close()


@pytest.fixture
def server_site(postgres: object, tmp_path: Path) -> Iterator[Site]:
    """Give a database on a server, for what only servers have: sessions, outages."""
    place = Site("postgres", tmp_path, postgres)  # type: ignore[arg-type]
    place.create("q")
    yield place
    place.close()


@pytest.fixture
def mariadb_site(mariadb: Mariadb, tmp_path: Path) -> Iterator[Site]:
    """Give a database on MariaDB."""
    place = Site("mariadb", tmp_path, mariadb)
    place.create("q")
    yield place
    place.close()
    mariadb.drop_databases()


@pytest.fixture
def file_site(tmp_path: Path) -> Iterator[Site]:
    """Give a SQLite file, for what is the same on every database."""
    place = Site("sqlite", tmp_path, None)
    place.create("q")
    yield place
    place.close()
