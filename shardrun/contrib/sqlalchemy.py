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

from sqlalchemy import Connection, Engine, NullPool, create_engine
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
    _lent.connection = transaction
    connection = _engine(next(URLS[package] for package in packages if package in URLS)).connect()
    connection.begin()
    return connection


@cache
def _engine(url: str) -> Engine:
    """Make an engine that has no connections of its own and ends no transaction."""
    engine = create_engine(url, creator=lambda: _lent.connection, poolclass=NullPool, pool_reset_on_return=None)
    for name in NOT_OURS:
        setattr(engine.dialect, name, _leave)
    return engine


def _leave(connection: Any) -> None:
    """Leave a connection as it is."""
