"""Take rows that were offered, and settle them, in a child's transactions on PostgreSQL; see `db/taking.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from shardrun.db.postgres import driver, offers_sql
from shardrun.db.postgres.locks import HoldingStore
from shardrun.db.postgres.taking import Fates, Lent, PostgresTaking, send, spelt
from shardrun.db.statement import Statement
from shardrun.db.store import Token
from shardrun.db.table import Layout

SNAPSHOTS = ("repeatable read", "serializable")
"""Isolations under which a transaction sees what there was at its first statement, be it the one that locks a key."""


class RowTaking(PostgresTaking):
    """Rows that the coordinator has offered, held by row locks of the child's transactions."""

    def _statements(self, layout: Layout) -> tuple[Statement, Statement, Fates]:
        return offers_sql.take(layout, "nowait"), offers_sql.take(layout, "skip locked"), offers_sql.fate(layout)

    def _store(self, layout: Layout, utf8: bool) -> HoldingStore:
        return HoldingStore(layout, layout.table.name, utf8, None, "")

    def _values(self, id: Any, token: Token) -> dict[str, Any]:
        return {"id": id, "token": token, "group": self._layout.group}


class KeyTaking(RowTaking):
    """Rows that the coordinator has offered, held by locks on their keys; a row lock is there besides, as for any settlement."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._key_number = offers_sql.key_number(layout)
        self._sees_first = (layout.isolation or "").lower() in SNAPSHOTS

    def _begin_and_take(self, connection: Lent, id: Any, wanted: str) -> bool:
        """Lock the key, then read the row in a new statement: what it sees was committed before (R11)."""
        number = self._number(connection, id)
        if number is None:
            return False
        if not self._sees_first:
            locked = send(connection, self._begin, f"select 1 where pg_try_advisory_xact_lock({number})")
            return bool(locked.ntuples and send(connection, wanted).ntuples)
        if not send(connection, f"select 1 where pg_try_advisory_lock({number})").ntuples:
            return False
        unlock = f"select pg_advisory_unlock({number})"
        try:  # the transaction takes the session's lock over
            return bool(
                send(connection, self._begin, f"select pg_advisory_xact_lock({number})", unlock, wanted).ntuples
            )
        except psycopg.Error:
            with suppress(psycopg.Error):
                send(connection, "rollback", unlock)
            raise

    def _number(self, connection: Lent, id: Any) -> int | None:
        """Read the key's number as coordinators do: what this session has set for handlers may spell a value otherwise.

        The row that is taken afterwards is unchanged since it was offered, and so is its key.
        """
        alike = (f"set local {name} = '{driver.COORDINATOR[name]}'" for name in driver.SPELLING)
        try:
            found = send(connection, "begin", *alike, spelt(connection, self._key_number, {"id": id}))
        finally:
            send(connection, "rollback")
        return int(found.get_value(0, 0) or b"0") if found.ntuples else None
