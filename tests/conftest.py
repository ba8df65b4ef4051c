"""Fixtures that every test can ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shardrun import modules
from tests import mariadb as mariadb_server
from tests import pgbouncer as pooler
from tests import servers

_started: list[servers.Postgres] = []


@pytest.fixture
def fresh_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo every import of users' modules below the test's folder, so that no other test meets them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(modules, "_FINDER", modules._Finder())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    """Give the session's PostgreSQL server; each test finds it running and leaves no database of its own behind."""
    try:
        server = servers.postgres()
    except servers.NoServer as problem:
        if os.environ.get("SHARDRUN_TEST_ALLOW_SKIP") == "1":
            pytest.skip(str(problem))
        pytest.fail(str(problem), pytrace=False)
    _started.append(server)
    yield server
    _started.remove(server)
    server.close()


@pytest.fixture(scope="session")
def shared_dsn(postgres: servers.Postgres) -> Iterator[str]:
    """Give one PostgreSQL database to all tests of the store: emptying it is cheaper than making another."""
    old = urlsplit(postgres.new_database()).path[1:]
    name = f"kept_{old}"
    with postgres.admin() as admin:
        admin.execute(f'alter database "{old}" rename to "{name}"')
    postgres.databases.remove(old)
    yield servers.with_database(postgres.dsn, name)
    with postgres.admin() as admin:
        admin.execute(f'drop database "{name}" with (force)')


@pytest.fixture(scope="session")
def mariadb() -> Iterator[mariadb_server.Mariadb]:
    """Give the session's MariaDB server; its databases go with the session."""
    try:
        server = mariadb_server.mariadb()
    except servers.NoServer as problem:
        if os.environ.get("SHARDRUN_TEST_ALLOW_SKIP") == "1":
            pytest.skip(str(problem))
        pytest.fail(str(problem), pytrace=False)
    yield server
    server.close()


@pytest.fixture(scope="session")
def pgbouncer(postgres: servers.Postgres) -> Iterator[pooler.Pgbouncer]:
    """Give a PgBouncer in transaction mode before the session's PostgreSQL."""
    try:
        server = pooler.Pgbouncer(postgres)
    except servers.NoServer as problem:
        if os.environ.get("SHARDRUN_TEST_ALLOW_SKIP") == "1":
            pytest.skip(str(problem))
        pytest.fail(str(problem), pytrace=False)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _tidy_servers() -> Iterator[None]:
    """Start servers that the test stopped, and drop the databases that it created."""
    kept = {id(server): len(server.databases) for server in _started}
    yield
    for server in _started:
        server.start()
        server.drop_databases(kept.get(id(server), 0))
