"""Rows that users insert through SQLAlchemy and Django: in those libraries' own transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import django.conf
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from shardrun.db.insert import Inserts
from shardrun.errors import ShardrunError
from shardrun.queue import Queue
from tests.mariadb import Mariadb
from tests.store.place import Place, usual


class Undo(Exception):
    """Ends a block, so that it rolls back."""


class Base(DeclarativeBase):
    """The user's own models."""


class Order(Base):
    """A parent that queue rows refer to."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture(autouse=True)
def _writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "writer", Inserts(), raising=False)


@pytest.fixture
def place(one_of_two: Place) -> Place:
    """Leave MariaDB to the tests that have its own types."""
    return one_of_two


@pytest.fixture
def engine(place: Place) -> Iterator[sqlalchemy.Engine]:
    """Give an engine over the place's database, whose tables are there."""
    place.create("orders", id="key", name="text")
    place.create_usual(order_id="integer references orders (id)")
    url = place.dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    if place.dialect == "sqlite":
        sqlalchemy.event.listen(engine, "connect", lambda driver, _: driver.execute("pragma foreign_keys = on"))
    yield engine
    engine.dispose()


def count(place: Place) -> int:
    return int(place.run("select count(*) from q")[0][0])


def test_a_row_goes_with_a_sqlalchemy_connections_transaction(place: Place, engine: sqlalchemy.Engine) -> None:
    """A1: SQLAlchemy begins its transaction as for an execute of its own; commit, rollback and savepoints hold the row."""
    with engine.connect() as connection:
        assert usual().insert(connection, payload={"a": 1}) == 1
        assert connection.in_transaction()
        assert count(place) == 0
        connection.rollback()
        usual().insert(connection, payload={"a": 2})
        connection.commit()
        assert count(place) == 1
        usual().insert(connection, payload={"a": 3})
    assert count(place) == 1  # closed without a commit
    with engine.begin() as connection:
        usual().insert_many(connection, [{"payload": n} for n in range(3)])
        with connection.begin_nested() as savepoint:
            usual().insert(connection, payload={"a": 4})
            savepoint.rollback()
    assert count(place) == 4


def test_a_row_goes_with_a_sqlalchemy_sessions_transaction(place: Place, engine: sqlalchemy.Engine) -> None:
    """A1: what was added to the session before is there for the row's foreign key; all of it commits or none."""
    with Session(engine) as session:
        session.add(Order(id=7, name="first"))
        usual().insert(session, payload={"a": 1}, order_id=7)
        session.rollback()
        assert (count(place), place.run("select count(*) from orders")) == (0, [(0,)])
        session.add(Order(id=8, name="second"))
        usual().insert(session, payload={"a": 1}, order_id=8)
        session.commit()
        assert (count(place), place.run("select count(*) from orders")) == (1, [(1,)])
    with Session(engine) as session, session.begin():
        usual().insert(session, payload={"a": 2})
    scoped = scoped_session(sessionmaker(engine))
    usual().insert(scoped, payload={"a": 3})
    scoped.remove()
    assert count(place) == 2


def test_errors_below_sqlalchemy_are_the_drivers(place: Place, engine: sqlalchemy.Engine) -> None:
    """A1: the session can be rolled back and used again."""
    error = psycopg.errors.UniqueViolation if place.dialect == "postgres" else sqlite3.IntegrityError
    with Session(engine) as session:
        usual().insert(session, id=1)
        with pytest.raises(error):
            usual().insert(session, id=1)
        session.rollback()
        usual().insert(session, id=2)
        session.commit()
    assert place.run("select id from q") == [(2,)]


def test_a_finished_transaction_of_sqlalchemys_is_refused_by_it(place: Place, engine: sqlalchemy.Engine) -> None:
    """A1: a row never slips out of the block that its caller believes it in."""
    with engine.connect() as connection, connection.begin() as transaction:
        usual().insert(connection, payload={})
        transaction.rollback()
        with pytest.raises(sqlalchemy.exc.InvalidRequestError):
            usual().insert(connection, payload={})
    assert count(place) == 0


def test_a_row_goes_with_sqlalchemy_over_pymysql(mariadb: Mariadb) -> None:
    """A1: MariaDB, too."""
    engine = sqlalchemy.create_engine(mariadb.url("mysql+pymysql", mariadb.new_database()), poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table q (id bigint auto_increment primary key, payload json)")
    queue: Queue[Any] = Queue("q", id="id", payload="payload")
    with Session(engine) as session:
        assert queue.insert(session, payload={"a": 1}) == 1
        session.rollback()
        queue.insert(session, payload={"a": 2})
        session.commit()
        assert session.execute(sqlalchemy.text("select payload from q")).all() == [('{"a":2}',)]
    engine.dispose()


def test_async_connections_are_refused_by_a_sentence(place: Place, engine: sqlalchemy.Engine) -> None:
    """A1: and so is what is no connection at all."""
    if place.dialect == "postgres":
        asyncio.run(_refuses_async(place.dsn))
    with pytest.raises(
        ShardrunError, match=r"not sqlalchemy.engine.base.Engine. From an Engine: with engine.begin\(\)"
    ):
        usual().insert(engine, payload={})
    assert count(place) == 0


async def _refuses_async(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        with pytest.raises(
            ShardrunError, match=r"which is async\. Give it a sync connection, or run a plain SQL INSERT"
        ):
            usual().insert(connection, payload={})
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    async with engine.connect() as connection:
        with pytest.raises(ShardrunError, match=r"sqlalchemy\.ext\.asyncio\.engine\.AsyncConnection, which is async"):
            usual().insert(connection, payload={})
        with pytest.raises(ShardrunError, match=r"engine\.base\.Connection over psycopg.*Async"):
            await connection.run_sync(lambda sync: usual().insert(sync, payload={}))
    await engine.dispose()


@pytest.fixture
def wrapper(place: Place) -> Iterator[Any]:
    """Give Django's connection to the place's database."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    from django.db import connections

    connections.databases["default"] = _django_settings(place)
    connections.configure_settings(connections.databases)
    from django.db import connection

    place.create_usual()
    yield connection
    connection.close()
    del connections["default"]


def _django_settings(place: Place) -> dict[str, Any]:
    if place.dialect == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": place.dsn.removeprefix("sqlite:///")}
    known = psycopg.conninfo.conninfo_to_dict(place.dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql"} | {name: str(known[key]) for name, key in names.items()}


def test_a_row_goes_with_djangos_atomic_block(place: Place, wrapper: Any) -> None:
    """A1: atomic commits it, an exception or an inner block rolls it back, and autocommit is what Django says it is."""
    from django.db import transaction

    with transaction.atomic():
        assert usual().insert(wrapper, payload={"a": 1}, retry_after=60, partition_key="naïve %s") == 1
        assert count(place) == 0
    assert count(place) == 1
    with suppress(Undo), transaction.atomic():
        usual().insert(wrapper, payload={"a": 2})
        raise Undo
    with transaction.atomic():
        usual().insert_many(wrapper, [{"payload": b"[1]"}, {"payload": "[2]"}])
        with suppress(Undo), transaction.atomic():
            usual().insert(wrapper, payload={"a": 4})
            raise Undo
    assert count(place) == 3
    with wrapper.cursor() as cursor:
        usual().insert(cursor, payload={"a": 5})
    assert count(place) == 4


def test_djangos_broken_block_is_refused_by_django(place: Place, wrapper: Any) -> None:
    """A1: errors are the driver's, and what Django will roll back is not written to."""
    from django.db import transaction

    error = psycopg.errors.UniqueViolation if place.dialect == "postgres" else sqlite3.IntegrityError
    with suppress(Undo), transaction.atomic():
        usual().insert(wrapper, id=1)
        with pytest.raises(error):
            usual().insert(wrapper, id=1)
        raise Undo
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            usual().insert(wrapper, payload={})
    assert count(place) == 0
