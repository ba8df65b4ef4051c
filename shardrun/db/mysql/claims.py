"""Take rows on MySQL and MariaDB: read candidates without locks, lock them by id, write the lease: three round trips.

What locks a row also reads it and tells its token; so it is read again, behind the write, only where that may be another:
where the table has triggers, and where the handler takes the row itself.

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
from shardrun.db.mysql.candidates import Candidates
from shardrun.db.mysql.driver import Connection, Step
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
"""Columns of a claimed row before those of the row mode: the id, a flag, the token, and what `parts.handed_fields` lists."""

Row = Sequence[Any]


class Claims:
    """The statements of a claim."""

    def __init__(self, layout: Layout, name: str, fetch: Fetch | None) -> None:
        self._layout = layout
        self._name = name
        self._fetch = fetch
        self._reads_again = layout.table.rewrites or layout.row_mode
        self._commits_at_once = True  # with the writes, before it is known which leases were written
        self._candidates = Candidates(layout, sql.candidates)
        self._keyed = len(self._candidates.statements()) > 1
        self._take = sql.take(layout, self._reads_again)
        self._claim = sql.claim(layout)
        self._claimed = sql.claimed(layout)
        self._group = {"group": layout.group}
        self._kinds = {name: column.kind for name, column in layout.table.columns.items()}
        self._avoided = Avoided(name)

    def statements(self) -> list[Statement]:
        """List every statement of a claim."""
        every = [*self._candidates.statements(), self._take, self._claim]
        return [*every, self._claimed] if self._reads_again else every

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
        if full_keys and self._keyed:
            values["full_keys"] = lists.first_piece(full_keys)
        return [row[0] for row in self._candidates.read(connection, values)]

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
        with driver.undoing(connection):
            locked = self._lock(connection, ids)
            chosen = [id for id in ids if id in locked][:wanted]
            if not chosen:
                connection.rollback()
                return [], len(ids)
            rows, bodies = self._write(connection, chosen, locked)
        used = len(ids) if len(chosen) < wanted else ids.index(chosen[-1]) + 1
        return [self._row(row, bool(locked[id][1]), bodies) for id, row in rows.items()], used

    def _lock(self, connection: Connection, ids: Sequence[Any]) -> Mapping[Any, Row]:
        """Begin, and lock those of these rows that are still free."""
        lock = (self._take, {**self._group, "ids": list(ids)})
        found = driver.run_together(connection, [*driver.beginning(self._layout.isolation), lock])[-1]
        return {row[0]: row for row in found.fetchall()}

    def _write(
        self, connection: Connection, chosen: list[Any], locked: Mapping[Any, Row]
    ) -> tuple[dict[Any, Row], Mapping[Any, Any] | None]:
        """Write the leases of locked rows and commit; gives the rows that have them, and what the handler takes instead."""
        by_token: dict[Any, list[Any]] = {}  # nearly always one, since the clock of one statement is one
        for id in chosen:
            by_token.setdefault(locked[id][2], []).append(id)
        steps: list[Step] = [(self._claim, {"ids": ids, "token": token}) for token, ids in by_token.items()]
        steps += [(self._claimed, {"ids": chosen})] if self._reads_again else []
        if self._fetch is None and self._commits_at_once:
            answers = lists.together(connection, [*steps, (driver.COMMIT, {})])[:-1]
            return self._leased(chosen, locked, answers[-1]), None
        rows = self._leased(chosen, locked, lists.together(connection, steps)[-1])
        bodies = None if self._fetch is None else self._fetch.bodies(connection, list(rows))
        connection.commit()
        return rows, bodies

    def _leased(self, chosen: list[Any], locked: Mapping[Any, Row], last: Any) -> dict[Any, Row]:
        """Give the rows whose lease was written: all, as far as they were not read again."""
        if not self._reads_again:
            return {id: locked[id] for id in chosen}
        written = {row[0]: row for row in last.fetchall() if row[1]}
        for id in chosen:
            if id not in written:
                self._avoided.swallowed(id)
        return {id: written[id] for id in chosen if id in written}

    def _row(self, row: Row, was_held: bool, bodies: Mapping[Any, Any] | None) -> Claimed:
        id, _, token, attempt, key, lane_key, group, headers, body = row[:LEADING]
        if bodies is not None:
            body = bodies[id]
        elif self._layout.row_mode:
            body = lists.columns_of(self._kinds, row[LEADING:])
        return Claimed(id, token, attempt, was_held and attempt > 1, key, lane_key, group, headers, body)
