"""Find the driver's connection behind what users hand to `insert`: their driver's own, SQLAlchemy's or Django's.

Objects are known by their classes' modules, so that nothing of theirs is imported here. What wraps a connection is asked
for it in the way that also begins its transaction, as its own `execute` would: else its `commit()` would commit nothing.
"""

from __future__ import annotations

from typing import Any

from shardrun.errors import ShardrunError

DRIVERS = ("psycopg", "sqlite3", "pymysql", "MySQLdb")
"""Packages whose connections and cursors are written on."""

ASYNC = ("aiosqlite", "asyncpg", "aiomysql", "asyncmy", "aiopg", "psycopg_async")
"""Packages that write only where one awaits."""

TAKEN = "a psycopg, PyMySQL or sqlite3 connection or cursor, a SQLAlchemy Connection or Session, or Django's connection"


def unwrapped(given: Any) -> tuple[str, Any]:
    """Return the driver's package and its connection or cursor; raises `ShardrunError` for anything else."""
    packages = _packages(given)
    if _is_async(given):
        raise ShardrunError(
            f"insert() cannot write on {_kind(given)}, which is async. Give it a sync connection, or run a plain SQL INSERT: "
            f"the table is yours."
        )
    for driver in DRIVERS:
        if driver in packages:
            return driver, given
    if "sqlalchemy" in packages:
        return _driver_of(_from_sqlalchemy(given), given)
    if "django" in packages:
        return _driver_of(_from_django(given), given)
    raise ShardrunError(f"insert() takes {TAKEN}, not {_kind(given)}.")


def _driver_of(inner: Any, given: Any) -> tuple[str, Any]:
    packages = _packages(inner)
    found = next((driver for driver in DRIVERS if driver in packages), None)
    if found is None or _is_async(inner):
        raise ShardrunError(
            f"insert() cannot write on {_kind(given)} over {_kind(inner)}: it speaks through psycopg (3), PyMySQL and "
            f"sqlite3. Use one of them below, or run a plain SQL INSERT: the table is yours."
        )
    return found, inner


def _from_sqlalchemy(given: Any) -> Any:
    """Ask a Session, which flushes first as for an ORM insert, or a Connection; both begin their transaction."""
    if hasattr(given, "registry") and callable(given):  # a scoped_session stands for the Session of this thread
        given = given()
    if not hasattr(given, "get_transaction") or not hasattr(given, "connection"):
        raise ShardrunError(
            f"insert() takes {TAKEN}, not {_kind(given)}. From an Engine: with engine.begin() as connection."
        )
    connection = given
    if callable(given.connection):  # a Session's method; a Connection's is a property
        if given.autoflush:
            given.flush()  # what was added before may be what the row refers to
        connection = given.connection()
    transaction = connection.get_transaction()
    if transaction is None or not transaction.is_active:
        connection.begin()
    return connection.connection.driver_connection


def _from_django(given: Any) -> Any:
    """Ask Django's connection, or a cursor of one; by its own checks it connects, and refuses a broken atomic block."""
    wrapper = given if hasattr(given, "ensure_connection") else getattr(given, "db", None)
    if wrapper is None or not hasattr(wrapper, "ensure_connection"):
        raise ShardrunError(f"insert() takes {TAKEN}, not {_kind(given)}.")
    wrapper.cursor().close()  # connects where it must, and refuses a connection of another thread
    wrapper.validate_no_broken_transaction()
    return wrapper.connection


def _packages(given: Any) -> list[str]:
    return [base.__module__.partition(".")[0] for base in type(given).__mro__]


def _is_async(given: Any) -> bool:
    """Tell by the classes' names and modules: psycopg.AsyncConnection, sqlalchemy.ext.asyncio, asyncpg."""
    return any(
        base.__module__.partition(".")[0] in ASYNC
        or base.__module__.startswith("sqlalchemy.ext.asyncio")
        or (base.__module__.partition(".")[0] in DRIVERS and base.__name__.startswith("Async"))
        for base in type(given).__mro__
    )


def _kind(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
