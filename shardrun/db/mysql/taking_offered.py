"""Take rows that were offered, and settle them, in a child's transactions on MySQL and MariaDB; see `db/taking.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from shardrun.db.mysql import driver, locks_sql, offers_sql
from shardrun.db.mysql.driver import Connection, Step
from shardrun.db.mysql.locks import HoldingStore
from shardrun.db.mysql.taking import Fates, MysqlTaking, run
from shardrun.db.statement import Statement
from shardrun.db.store import Settlement, Token
from shardrun.db.table import Column, Layout
from shardrun.queue import Form


class RowTaking(MysqlTaking):
    """Rows that the coordinator has offered, held by row locks of the child's transactions."""

    def _statements(self, layout: Layout) -> tuple[Statement, Statement, Fates]:
        return offers_sql.take(layout, "nowait"), offers_sql.take(layout, "skip locked"), offers_sql.fate(layout)

    def _look(self, layout: Layout) -> Statement:
        return offers_sql.there(layout)

    def _told(self, layout: Layout) -> Collection[Column]:
        return layout.table.columns.values()

    def _prepare(self, layout: Layout) -> None:
        self._holding = HoldingStore(layout, layout.table.name)

    def _steps(self, settlement: Settlement) -> Iterable[Step]:
        return self._holding.steps(settlement)


class KeyTaking(RowTaking):
    """Rows that the coordinator has offered, held by locks on their keys; a row lock is there besides, as for any settlement."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._key_of = offers_sql.key_of(layout)

    def _take_now(self, connection: Connection, id: Any, token: Token) -> bool:
        """Lock the key, then read the row in a transaction that begins behind that: what it sees was committed before (R11)."""
        try:
            return self._lock(connection, id) and super()._take_now(connection, id, token)
        except BaseException:
            self._unlock(connection)
            raise

    def _lock(self, connection: Connection, id: Any) -> bool:
        with driver.naming_errors(connection):
            with self._in_utc(connection):
                found = run(connection, self._key_of.text, {"ids": [id]}).fetchone()
            run(connection, "rollback")
            if found is None:
                return False
            name = locks_sql.lock_name(found[0])
            if run(connection, "select get_lock(%(name)s, 0)", {"name": name}).fetchone()[0] != 1:
                return False
        connection.locked_name = name
        return True

    def commit(self, connection: Connection) -> None:
        """Commit, and let go of the key then."""
        super().commit(connection)
        self._unlock(connection)

    def abandon(self, connection: Connection) -> None:
        """Roll back whatever is open, and let go of the key."""
        super().abandon(connection)
        self._unlock(connection)

    def _unlock(self, connection: Connection) -> None:
        name, connection.locked_name = connection.locked_name, None
        if name is not None and driver.is_open(connection):
            with suppress(connection.Error):
                run(connection, "do release_lock(%(name)s)", {"name": name})


TAKINGS: Mapping[Form, type[MysqlTaking]] = {
    Form.LEASE: MysqlTaking,
    Form.ROW_LOCK: RowTaking,
    Form.ADVISORY: KeyTaking,
}
