"""Offer the rows of one subscription, which its children take by locks of their own sessions, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardrun.db.mysql import driver, lists, locks_sql, offers_sql
from shardrun.db.mysql.candidates import Candidates
from shardrun.db.mysql.driver import COMMIT, Connection, Step
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.mysql.locks import FIRST_PAGE, LARGEST_PAGE, MOST_TRIED, RowLockStore
from shardrun.db.mysql.store import MysqlStore
from shardrun.db.offers import Ids, Offering
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Token, Verb
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed
from shardrun.queue import Form


class RowOfferStore(Offering, RowLockStore):
    """Rows that children lock: those that nobody has locked at this moment are offered."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._hold = offers_sql.hold(layout)
        self._take = offers_sql.take(layout, "skip locked")
        self._stamped = offers_sql.stamped(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        return [self._take, self._stamped, *super().statements()]

    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows that nobody has locked at this moment, in claim order; their locks end at once."""
        try:
            rows = self._first_free(connection, limit, full_keys, [*offered, *resting])
            return with_bodies(connection, self._fetch, rows)
        finally:
            if driver.is_open(connection):
                self.let_go(connection)

    def settle_offered(self, connection: Connection, settlement: Settlement) -> Token | None:
        """Take a row that still carries its token, write its settlement, commit."""
        values = {"ids": [settlement.id], "token": settlement.token, "group": self.layout.group}
        if not driver.run_together(connection, [*self._begin, (self._take, values)])[-1].fetchall():
            self.let_go(connection)
            return None
        steps = self.steps(settlement)
        look: list[Step] = [(self._stamped, values)] if settlement.verb is Verb.RECOUNT else []
        try:
            answers = driver.run_together(connection, [*steps, *look, (COMMIT, {})])
        except StatementFailed as error:
            self._avoided.unsettled([settlement], error)
            raise
        if answers[len(steps) - 1].rowcount <= 0:
            return None
        return str(answers[len(steps)].fetchall()[0][0]) if look else ""

    def _claimed(self, row: Sequence[Any]) -> Claimed:
        return super()._claimed(row[:-1])._replace(token=row[-1])


class KeyOfferStore(RowOfferStore):
    """Rows whose keys children lock: those whose keys nobody holds at this moment are offered, one of each key."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._candidates = Candidates(layout, locks_sql.keyed_candidates)
        self._read = offers_sql.read(layout)
        self._key_of: dict[Any, str] = {}  # of rows that are offered

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        return [self._read, offers_sql.are_free(1), *super().statements()]

    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows whose keys nobody holds at this moment, nor any row that is offered now."""
        self._key_of = {id: self._key_of[id] for id in offered if id in self._key_of}
        found = self._free(connection, limit, full_keys, [*self._avoided.ids(), *offered, *resting])
        rows: dict[Any, Claimed] = {}
        for piece in lists.pieces(list(found)):
            read = driver.run(connection, self._read, {"ids": piece, "group": self.layout.group}).fetchall()
            rows |= {row[0]: self._claimed(row) for row in read}
        self._key_of |= {id: found[id] for id in rows}
        return with_bodies(connection, self._fetch, [rows[id] for id in found if id in rows])

    def _free(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], passed: Sequence[Any]
    ) -> dict[Any, str]:
        """Look for free keys, page by page: the keys of one page are left out of the next."""
        busy: list[bytes | None] = [key.encode() for key in self._key_of.values()]
        found: dict[Any, str] = {}
        page, most = limit + FIRST_PAGE, len(busy) + MOST_TRIED
        while len(found) < limit and len(busy) < most and lists.fits(busy) and lists.fits(passed):
            values = {**self._values(page, full_keys, passed), "busy": busy or [None]}
            seen = self._candidates.read(connection, values)
            firsts: dict[str, Any] = {}
            for id, key in seen:
                firsts.setdefault(key, id)
            for key in self._free_keys(connection, list(firsts))[: limit - len(found)]:
                found[firsts[key]] = key
            busy += [key.encode() for key in firsts]
            if len(seen) < page:
                break
            page = min(2 * page, limit + LARGEST_PAGE)
        return found

    def _free_keys(self, connection: Connection, keys: list[str]) -> list[str]:
        if not keys:
            return []
        names = {f"name{place}": locks_sql.lock_name(key) for place, key in enumerate(keys)}
        answers = driver.run(connection, offers_sql.are_free(len(keys)), names).fetchone()
        return [key for key, is_free in zip(keys, answers, strict=True) if is_free]


OFFERS: Mapping[Form, type[MysqlStore | RowOfferStore | KeyOfferStore]] = {
    Form.LEASE: MysqlStore,
    Form.ROW_LOCK: RowOfferStore,
    Form.ADVISORY: KeyOfferStore,
}
"""The stores of subscriptions whose handlers are transactional."""
