"""Take rows that were offered, and settle them, in a child's transactions on SQLite; see `db/taking.py`.

The coordinator holds the row's key. The file's write lock holds the row from the take on.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from shardrun.db.sqlite.locks import KeyStore
from shardrun.db.sqlite.offers import Stamps
from shardrun.db.sqlite.sql import quote, table_name
from shardrun.db.sqlite.taking import Lent, SqliteTaking
from shardrun.db.statement import Statement
from shardrun.db.store import Token
from shardrun.db.table import Layout
from shardrun.db.taking import Fate


class KeyTaking(SqliteTaking):
    """Rows that the coordinator has offered: a row that is as it was then is due, and has its key."""

    def _prepare(self, layout: Layout) -> None:
        self._store = KeyStore(layout, layout.table.name, set())
        self._stamps = Stamps(layout)
        self._fate = fate(layout)

    def _carries(self, connection: Lent, id: Any, token: Token) -> bool:
        look = self._stamps.look(connection, id)
        return look is not None and look[0] == token

    def _look(self, connection: sqlite3.Connection, values: dict[str, Any]) -> Any:
        found = super()._look(connection, values)
        look = self._stamps.look(connection, values["id"])
        is_done = found is None or found[0] == Fate.DONE.name
        return found if is_done or look is None or look[0] != values["token"] else (Fate.HELD.name,)


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Tell what became of an offered row that was changed; the second looks for it among the dead letters' table."""
    key, processed, group = quote(layout.roles["id"].name), layout.column("processed_at"), layout.column("group")
    cases = [f"when {quote(processed.name)} is not null then 'DONE'"] if processed else []
    if layout.dead_group is not None and group is not None:
        cases.append(f"when {quote(group.name)} = :dead_group then 'DEAD'")
    told = f"case {' '.join(cases)} else 'FREE' end" if cases else "'FREE'"
    looked = Statement(f"select {told}\n  from {table_name(layout.table)}\n where {key} = :id", ("id", "dead_group"))
    if layout.dead is None:
        return looked, None
    return looked, Statement(f"select 1\n  from {table_name(layout.dead)}\n where {key} = :id", ("id",))
