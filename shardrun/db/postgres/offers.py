"""Offer the rows of one subscription, which its children take by locks of their own sessions, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardrun.db.offers import Ids, Offering
from shardrun.db.postgres import apart, driver, locks_sql, offers_sql
from shardrun.db.postgres.driver import COMMIT, Connection, Step
from shardrun.db.postgres.fetch import Fetch
from shardrun.db.postgres.locks import FIRST_PAGE, LARGEST_PAGE, MOST_TRIED, HoldingStore
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Token, Verb
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed


class RowOfferStore(Offering, HoldingStore):
    """Rows that children lock: those that nobody has locked at this moment are offered."""

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self._begin: Step = (locks_sql.begin(layout), {})
        self._offer = offers_sql.offer(layout, these=False)
        self._take = offers_sql.take(layout, "skip locked")
        self._stamped = offers_sql.stamped(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [self._offer, self._take, self._stamped, *super().statements()]

    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows that nobody has locked at this moment, in claim order; their locks end at once."""
        values = self._values(limit, full_keys) | {"avoided": self._ids([*self._avoided.ids(), *offered, *resting])}
        return with_bodies(
            connection, self._fetch, apart.read(driver.run(connection, self._offer, values), self._names)
        )

    def settle_offered(self, connection: Connection, settlement: Settlement) -> Token | None:
        """Take a row that still carries its token, write its settlement, commit."""
        values = {"id": settlement.id, "token": settlement.token, "group": self.layout.group}
        if not driver.run_together(connection, [self._begin, (self._take, values)])[-1].rowcount:
            self.let_go(connection)
            return None
        look: list[Step] = [(self._stamped, values)] if settlement.verb is Verb.RECOUNT else []
        try:
            written, *others = driver.run_together(connection, [self.step(settlement), *look, COMMIT])
        except StatementFailed as error:
            self._avoided.unsettled([settlement], error)
            raise
        if not written.rowcount:
            return None
        return str(others[0].fetchall()[0][0]) if look else ""


class KeyOfferStore(RowOfferStore):
    """Rows whose keys children lock: those whose keys nobody holds at this moment are offered, one of each key."""

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self._free_keys = offers_sql.free_keys(layout)
        self._offer = offers_sql.offer(layout, these=True)
        self._key_of: dict[Any, str] = {}  # of rows that are offered

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [self._free_keys, *super().statements()]

    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows whose keys nobody holds at this moment, nor any row that is offered now."""
        self._key_of = {id: self._key_of[id] for id in offered if id in self._key_of}
        values = self._values(limit, full_keys) | {"avoided": self._ids([*self._avoided.ids(), *offered, *resting])}
        found = self._free(connection, limit, values)
        if not found:
            return []
        values["ids"] = self._ids(list(found))
        rows = apart.read(driver.run(connection, self._offer, values), self._names)
        self._key_of |= {row.id: found[row.id] for row in rows}
        return with_bodies(connection, self._fetch, rows)

    def _free(self, connection: Connection, limit: int, values: dict[str, Any]) -> dict[Any, str]:
        """Look for free keys, page by page: the keys of one page are left out of the next."""
        busy, page = list(self._key_of.values()), FIRST_PAGE + limit
        most = len(busy) + MOST_TRIED
        found: dict[Any, str] = {}
        while len(found) < limit and len(busy) < most:
            pages = {"limit": limit - len(found), "page": page, "busy": busy}
            firsts = driver.run(connection, self._free_keys, values | pages).fetchall()
            found |= {id: key for id, key, is_free, _ in firsts if is_free}
            busy += [key for _, key, _, _ in firsts]
            if not firsts or firsts[0][3] < page:
                break
            page = min(2 * page, LARGEST_PAGE)
        return found
