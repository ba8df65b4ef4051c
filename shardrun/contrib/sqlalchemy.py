"""Write through SQLAlchemy inside a delivery's transaction.

@invoices.handler(transactional=True)
def render(invoice: Invoice, delivery: Delivery) -> None:
    with session(delivery) as db:
        db.add(Rendered(number=invoice.number))
"""

from __future__ import annotations

import threading
from functools import cache
from types import TracebackType
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, NullPool, Pool, create_engine
from sqlalchemy.orm import Session

from shardrun.delivery import Delivery

URLS = {
    "psycopg": "postgresql+psycopg://",
    "sqlite3": "sqlite+pysqlite://",
    "pymysql": "mysql+pymysql://",
    "MySQLdb": "mysql+mysqldb://",
}

NOT_OURS = ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate")
"""What SQLAlchemy would do to the driver's connection, and leaves to shardrun."""

_lent = threading.local()
_prepared = WeakSet[Any]()


class DeliverySession(Session):
    """A Session whose outermost transaction is a savepoint in the delivery's.

    `commit()` keeps what was written, `rollback()` undoes what was written since. What is neither is flushed and kept at the
    end of the `with` block, or of a handler whose row is acked or dropped; a block that raises undoes it.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what is left, or undo it where the block raises."""
        try:
            if kind is None:
                self.commit()
        finally:
            super().__exit__(kind, error, trace)


def session(delivery: Delivery, **settings: Any) -> Session:
    """Open a Session inside a transactional delivery's transaction; `settings` are those of `sqlalchemy.orm.Session`."""
    connection = _joined(delivery.tx)
    db = DeliverySession(bind=connection, join_transaction_mode="create_savepoint", **settings)

    def end(keep: bool) -> None:
        try:
            if keep:
                db.commit()
        finally:
            db.close()
            connection.close()

    delivery.endings.append(end)
    return db


def _joined(transaction: Any) -> Connection:
    """Open a SQLAlchemy connection over the driver's, in the transaction that is open there."""
    packages = [base.__module__.partition(".")[0] for base in type(transaction).__mro__]
    engine, preparing = _engine(next(URLS[package] for package in packages if package in URLS))
    _lent.connection = transaction
    if transaction not in _prepared:
        preparing.connect().close()
        _prepared.add(transaction)
    connection = engine.connect()
    connection.begin()
    return connection


@cache
def _engine(url: str) -> tuple[Engine, Pool]:
    """Make an engine that has no connections of its own and ends no transaction, and the pool that prepares the driver's.

    What SQLAlchemy does to each connection that it opens is done once to one that serves many deliveries: some of it adds up.
    """
    engine = create_engine(url, creator=_its, poolclass=NullPool, pool_reset_on_return=None)
    for name in NOT_OURS:
        setattr(engine.dialect, name, _leave)
    preparing = engine.pool
    engine.pool = NullPool(_its, reset_on_return=None, dialect=engine.dialect)
    return engine, preparing


def _its() -> Any:
    """Give the driver's connection of the delivery that runs in this thread."""
    return _lent.connection


def _leave(connection: Any) -> None:
    """Leave a connection as it is."""
