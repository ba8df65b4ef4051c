"""Take rows that were offered, and settle them, in a child's transactions on PostgreSQL; see `db/taking.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from shardrun.db.postgres import offers_sql
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
        sees_first = (layout.isolation or "").lower() in SNAPSHOTS
        self._lock_key = offers_sql.lock_key(
            layout, "pg_try_advisory_lock" if sees_first else "pg_try_advisory_xact_lock"
        )
        self._sees_first = sees_first

    def _begin_and_take(self, connection: Lent, id: Any, wanted: str) -> bool:
        """Lock the key, then read the row in a new statement: what it sees was committed before (R11)."""
        lock_key = spelt(connection, self._lock_key, {"id": id})
        if not self._sees_first:
            return bool(send(connection, self._begin, lock_key).ntuples and send(connection, wanted).ntuples)
        locked = send(connection, lock_key)
        if not locked.ntuples:
            return False
        number = int(locked.get_value(0, 0) or b"0")
        unlock = f"select pg_advisory_unlock({number})"
        try:  # the transaction takes the session's lock over
            return bool(
                send(connection, self._begin, f"select pg_advisory_xact_lock({number})", unlock, wanted).ntuples
            )
        except psycopg.Error:
            with suppress(psycopg.Error):
                send(connection, "rollback", unlock)
            raise
