"""The databases that the store's contract is proved on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.store.place import Place

Opener = Callable[[str], Place]


@pytest.fixture
def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Give a function that opens the empty database of a dialect, closed after the test."""
    opened: list[Place] = []

    def open_one(dialect: str) -> Place:
        if dialect == "sqlite":
            dsn = f"sqlite:///{tmp_path}/queue.db"
        elif dialect == "postgres":
            dsn = request.getfixturevalue("shared_dsn")
            _empty(dsn)
        else:
            server = request.getfixturevalue("mariadb")
            dsn = server.url("mariadb", server.new_database())
        opened.append(Place(dialect, dsn))
        return opened[-1]

    yield open_one
    for place in opened:
        place.close()
        if place.dialect == "mariadb":
            request.getfixturevalue("mariadb").drop_databases()


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def place(request: pytest.FixtureRequest, open_place: Opener) -> Place:
    """Give an empty database of each dialect in turn."""
    return open_place(request.param)


@pytest.fixture(params=["postgres", "sqlite"])
def one_of_two(request: pytest.FixtureRequest, open_place: Opener) -> Place:
    """Give an empty database of PostgreSQL and SQLite in turn, as `place` for tests that have others for MariaDB."""
    return open_place(request.param)


def _empty(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = connection.execute(
            "select format('drop schema %I cascade', nspname) from pg_namespace where nspowner = current_user::regrole"
        ).fetchall()
        for (text,) in names:
            connection.execute(text)
        connection.execute("drop schema if exists public cascade")
        connection.execute("create schema public")
