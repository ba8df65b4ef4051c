"""The tests' own servers: they do what tests ask of them, and none outlives its tests."""

from __future__ import annotations

import psycopg

from tests.servers import Postgres


def test_a_new_database_is_empty_and_belongs_to_an_ordinary_role(postgres: Postgres) -> None:
    """Test servers: a fresh database for each test, under a role without privileges."""
    with psycopg.connect(postgres.new_database()) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        connection.execute("CREATE TABLE t (id int)")


def test_databases_of_earlier_tests_are_gone(postgres: Postgres) -> None:
    """Test servers: what one test created, the next does not see."""
    assert postgres.databases == []
    with postgres.admin() as connection:
        assert connection.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'shardrun%'").fetchone() == (0,)
