"""Take rows that were offered, and settle them, in a child's transactions on MySQL and MariaDB; see `db/taking.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from shardrun.db.mysql import driver, locks_sql, offers_sql
from shardrun.db.mysql.driver import Connection, Step
from shardrun.db.mysql.locks import HoldingStore
from shardrun.db.mysql.taking import Fates, MysqlTaking, run
from shardrun.db.statement import Statement
from shardrun.db.store import Settlement, Token
from shardrun.db.table import Column, Layout
from shardrun.errors import Conflict
from shardrun.queue import Form

LOCK = "select get_lock(%(name)s, 0)"

LOCK_NEW = "select if(is_used_lock(%(name)s) is null, get_lock(%(name)s, 0), 0)"
"""The same where this session has not locked it itself: it would get it again, and servers alone know which names are one."""


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
            connection.taken = (id, token)
            names = self._names(connection, [id])
            return self._lock(connection, LOCK, names) == {id} and super()._take_now(connection, id, token)
        except BaseException:
            self._unlock(connection)
            raise

    def take_also(self, connection: Connection, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Lock the rows' keys, those that nobody has, then let the transaction begin again behind that (R11), and take them.

        Of rows with one key only the first is taken, here as anywhere: they are not in work at the same time.
        """
        if not rows:
            return super().take_also(connection, rows)
        try:
            with driver.naming_errors(connection):
                run(connection, "rollback")  # the first row's key stays locked
            locked = self._lock(connection, LOCK_NEW, self._names(connection, [id for id, _ in rows]))
            if not super()._take_now(connection, *connection.taken):
                raise Conflict("the first row of the batch was changed while the keys of the others were locked")
            return super().take_also(connection, [each for each in rows if each[0] in locked])
        except BaseException:
            self.abandon(connection)
            raise

    def _names(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, str]:
        """Read by which names the keys of rows are locked, in a transaction of its own."""
        with driver.naming_errors(connection):
            with self._in_utc(connection):
                found = [(id, run(connection, self._key_of.text, {"ids": [id]}).fetchone()) for id in ids]
            run(connection, "rollback")
        return {id: locks_sql.lock_name(row[0]) for id, row in found if row is not None}

    def _lock(self, connection: Connection, lock: str, names: Mapping[Any, str]) -> set[Any]:
        """Lock names, those that nobody has; gives the rows whose they are."""
        locked = set()
        with driver.naming_errors(connection):
            for id, name in names.items():
                if run(connection, lock, {"name": name}).fetchone()[0] == 1:
                    connection.locked_names += (name,)
                    locked.add(id)
        return locked

    def commit(self, connection: Connection) -> None:
        """Commit, and let go of the key then."""
        super().commit(connection)
        self._unlock(connection)

    def abandon(self, connection: Connection) -> None:
        """Roll back whatever is open, and let go of the key."""
        super().abandon(connection)
        self._unlock(connection)

    def _unlock(self, connection: Connection) -> None:
        names, connection.locked_names = connection.locked_names, ()
        if names and driver.is_open(connection):
            try:
                for name in names:
                    run(connection, "do release_lock(%(name)s)", {"name": name})
            except connection.Error:
                driver.close(connection)  # which lets go of all of them


TAKINGS: Mapping[Form, type[MysqlTaking]] = {
    Form.LEASE: MysqlTaking,
    Form.ROW_LOCK: RowTaking,
    Form.ADVISORY: KeyTaking,
}
