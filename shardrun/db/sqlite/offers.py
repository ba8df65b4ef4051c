"""Offer the rows of one subscription, which its children take in transactions of their own, on SQLite.

The coordinator alone knows the keys, and holds that of a row for as long as the row is offered.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from shardrun.db.offers import Ids, Offering
from shardrun.db.sqlite import driver
from shardrun.db.sqlite.fetch import Fetch
from shardrun.db.sqlite.locks import Keys, KeyStore
from shardrun.db.sqlite.sql import quote, table_name
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Token, Verb
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed


class Stamps:
    """Tells what is another after each change of a row: a hash of all that is in it."""

    def __init__(self, layout: Layout) -> None:
        attempt = layout.column("attempt")
        count = f"cast(coalesce({quote(attempt.name)}, 0) as integer)" if attempt else "0"
        whole = " || ',' || ".join(f"quote({quote(name)})" for name in layout.table.columns)
        key = quote(layout.roles["id"].name)
        text = f"select {count},\n       cast({whole} as blob)\n  from {table_name(layout.table)}\n where {key} = ?"
        self.statement = Statement(text, ("id",))

    def look(self, connection: sqlite3.Connection, id: Any) -> tuple[Token, int] | None:
        """Read a row's token, and the attempts that it has spent; None where it is gone."""
        found = connection.execute(self.statement.text, [id]).fetchone()
        return found and (hashlib.blake2b(found[1], digest_size=16).hexdigest(), found[0])


class KeyOfferStore(Offering, KeyStore):
    """The statements of one subscription; `keys` is shared by all of one file."""

    def __init__(self, layout: Layout, where: str, keys: Keys, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, keys, fetch, name)
        self._stamps = Stamps(layout)

    def statements(self) -> list[Statement]:
        """List the statements that are compiled at the start."""
        return [*super().statements(), self._stamps.statement]

    def offer(
        self, connection: sqlite3.Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows in claim order, each of a key that no row in work has; the keys are held from now on."""
        for id in set(self._key_of).difference(offered):
            self._free(id)
        with driver.writing(connection):
            chosen = self._free_rows(connection, limit, full_keys, resting)
            looks = {row[0]: look for row in chosen if (look := self._stamps.look(connection, row[0]))}
            bodies = self._fetch.bodies(connection, list(looks)) if self._fetch else {}
        rows = [row for row in chosen if row[0] in looks]
        for row in rows:
            self._key_of[row[0]] = row[6]
            self._keys.add(row[6])
        self._look_now_and_then(connection, len(rows) < limit)
        return [self._claimed(row, looks[row[0]][1] + 1, bodies)._replace(token=looks[row[0]][0]) for row in rows]

    def settle_offered(self, connection: sqlite3.Connection, settlement: Settlement) -> Token | None:
        """Write the settlement of a row that still carries its token, and free its key unless it is delivered again."""
        try:
            with driver.writing(connection):
                look = self._stamps.look(connection, settlement.id)
                is_written = look is not None and look[0] == settlement.token and self.write(connection, settlement)
                left = self._stamps.look(connection, settlement.id) if is_written else None
        except StatementFailed as error:
            self._avoided.unsettled([settlement], error)
            if settlement.verb not in (Verb.ACK, Verb.DROP):
                self._free(settlement.id)
            raise
        is_kept = is_written and settlement.verb is Verb.RECOUNT
        if not is_kept:
            self._free(settlement.id)
        return None if not is_written else left[0] if left and is_kept else ""
