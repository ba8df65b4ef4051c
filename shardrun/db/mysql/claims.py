"""Take rows on MySQL and MariaDB: read candidates without locks, lock them by id, write the lease, read them again.

Whoever else claims reads the same candidates. What others have taken is passed by and the next ones are read, up to a
bound; more at a time, so that a long stretch of them is passed in few steps. A row that the database refuses to write, or
whose lease a trigger keeps from being written, is left out for a while, and the others are taken all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from shardrun.db.avoided import Avoided
from shardrun.db.mysql import driver, lists, sql
from shardrun.db.mysql.driver import Connection
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError, StatementFailed

log = logging.getLogger("shardrun")

SLICE = 50
"""Rows locked at a time at least. Larger: fewer steps past what others hold, and more rows kept from them meanwhile."""

PASSED = 5000
"""Rows of others that one claim passes by. Larger: longer statements; smaller: claims that find nothing behind them."""

LEADING = 9
"""Columns of a claimed row before those of the row mode."""


class Claims:
    """The statements of a claim."""

    def __init__(self, layout: Layout, name: str, fetch: Fetch | None) -> None:
        self._layout = layout
        self._name = name
        self._fetch = fetch
        keyed = layout.by_key and "partition_key" in layout.roles
        self._candidates = sql.candidates(layout, leaving_out=False)
        self._others = sql.candidates(layout, leaving_out=True) if keyed else None
        self._take = sql.take(layout)
        self._claim = sql.claim(layout)
        self._claimed = sql.claimed(layout)
        self._group = {"group": layout.group}
        self._kinds = {name: column.kind for name, column in layout.table.columns.items()}
        self._avoided = Avoided(name)

    def statements(self) -> list[Statement]:
        """List every statement of a claim."""
        every = [self._candidates, self._others, self._take, self._claim, self._claimed]
        return [one for one in every if one is not None]

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows in claim order; what was taken before something failed is given all the same."""
        rows: list[Claimed] = []
        try:
            self._claim_past_others(connection, limit, full_keys, rows)
        except ShardrunError as error:
            if not rows:
                raise
            log.warning("%s: a claim ended early, after %d rows: %s", self._name, len(rows), error)
        return rows

    def _claim_past_others(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], rows: list[Claimed]
    ) -> None:
        passed: list[Any] = self._avoided.ids()
        page = limit
        while True:
            ids = self._read_candidates(connection, page, full_keys, passed)
            found = len(ids)
            while ids and len(rows) < limit:
                wanted = limit - len(rows)
                some = lists.first_piece(ids[: max(wanted, SLICE) if passed else wanted])
                taken, used = self._take_some(connection, some, wanted)
                rows += taken
                passed += ids[:used]
                del ids[:used]
            fits = len(passed) <= PASSED and lists.fits(passed)
            if len(rows) >= limit or found < page or not fits:
                return
            page = min(max(4 * page, SLICE), PASSED)

    def _read_candidates(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], passed: Sequence[Any]
    ) -> list[Any]:
        values = {**self._group, "limit": limit, "avoided": list(passed) or [None]}
        statement = self._candidates
        if full_keys and self._others is not None:
            values["full_keys"] = lists.first_piece(full_keys)
            statement = self._others
        return [row[0] for row in driver.run(connection, statement, values).fetchall()]

    def _take_some(self, connection: Connection, ids: Sequence[Any], wanted: int) -> tuple[list[Claimed], int]:
        """Take as many of these rows as are wanted; tell how many were looked at."""
        try:
            return self._take_rows(connection, ids, wanted)
        except StatementFailed:
            apart = self._avoided.around_apart(
                ids[:wanted], lambda some: self._take_rows(connection, some, len(some))[0]
            )
            return apart, wanted

    def _take_rows(self, connection: Connection, ids: Sequence[Any], wanted: int) -> tuple[list[Claimed], int]:
        """Take those of these rows that are still free, in the order given, in one transaction; tell how many were looked at."""
        with driver.writing(connection, self._layout.isolation):
            found = driver.run(connection, self._take, {**self._group, "ids": list(ids)}).fetchall()
            expired = dict(found)
            chosen = [id for id in ids if id in expired][:wanted]
            if not chosen:
                return [], len(ids)
            given = {"ids": chosen}
            _, answer = driver.run_together(connection, [(self._claim, given), (self._claimed, given)])
            rows = {row[0]: row for row in answer.fetchall() if row[1]}
            for id in chosen:
                if id not in rows:
                    self._avoided.swallowed(id)
            taken = [id for id in chosen if id in rows]
            bodies = self._fetch.bodies(connection, taken) if self._fetch else None
        used = len(ids) if len(chosen) < wanted else ids.index(chosen[-1]) + 1
        return [self._row(rows[id], bool(expired[id]), bodies) for id in taken], used

    def _row(self, row: Sequence[Any], was_held: bool, bodies: Mapping[Any, Any] | None) -> Claimed:
        id, _, token, attempt, key, lane_key, group, headers, body = row[:LEADING]
        if bodies is not None:
            body = bodies[id]
        elif self._layout.row_mode:
            body = lists.columns_of(self._kinds, row[LEADING:])
        return Claimed(id, token, attempt, was_held and attempt > 1, key, lane_key, group, headers, body)
