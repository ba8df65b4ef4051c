"""Claim around rows that PostgreSQL does not let be claimed; only where a claim failed, or triggers may swallow it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from shardrun.db.avoided import SECONDS, Avoided
from shardrun.db.postgres import driver, sql
from shardrun.db.postgres.driver import Connection, array_of
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError

log = logging.getLogger("shardrun")

LOOKED_AT = 20
"""Rows that one look for swallowed claims may find. Larger: more of them at once, and more statements."""

Values = Mapping[str, Any]
Take = Callable[[Connection, Statement, Values], list[Claimed]]


class Around:
    """The statements that leave rows out, or take these rows alone."""

    def __init__(self, layout: Layout, name: str, take: Take) -> None:
        self.statement = sql.claim_around(layout)
        self.candidates = sql.candidates(layout)
        self.avoided = Avoided(name)
        self._name = name
        self._take = take
        self._spell = array_of(layout.roles["id"])
        self._looks = layout.table.rewrites
        self._look_at = 0.0

    def claim(self, connection: Connection, values: Values) -> list[Claimed]:
        """Take rows with the ordinary values of a claim, those left out that are known."""
        return self._take(connection, self.statement, self._with_all(values))

    def claim_apart(self, connection: Connection, values: Values) -> list[Claimed]:
        """Take rows after a claim that the database refused: find which of them it is about, and take the others."""
        return self.avoided.around_apart(self._candidates(connection, values), self._taking(connection, values))

    def look(self, connection: Connection, values: Values, room: int) -> list[Claimed]:
        """After a claim that left nothing over, find rows that are free all the same; take those that are only new.

        Raises nothing of the database's: the claim before has committed, and its rows must not be forgotten.
        """
        rows: list[Claimed] = []
        if self._looks and monotonic() >= self._look_at:
            self._look_at = monotonic() + SECONDS
            try:
                self._look(connection, {**values, "limit": min(room, LOOKED_AT)}, rows)
            except ShardrunError as error:
                log.warning("%s: the look for rows that triggers keep from being claimed failed: %s", self._name, error)
        return rows

    def _look(self, connection: Connection, given: Values, rows: list[Claimed]) -> None:
        ids = self._candidates(connection, given)
        rows += self.avoided.around_apart(ids, self._taking(connection, given))
        left = set(ids) - {row.id for row in rows} - set(self.avoided.ids())
        for id in left.intersection(self._candidates(connection, given)) if left else ():
            self.avoided.swallowed(id)

    def _candidates(self, connection: Connection, values: Values) -> list[Any]:
        return [row[0] for row in driver.run(connection, self.candidates, self._with_all(values)).fetchall()]

    def _taking(self, connection: Connection, values: Values) -> Callable[[Any], list[Claimed]]:
        given = self._with_all(values)
        return lambda ids: self._take(
            connection, self.statement, {**given, "only": self._spell(ids), "limit": len(ids)}
        )

    def _with_all(self, values: Values) -> Values:
        return {"full_keys": "{}", **values, "only": None, "avoided": self._spell(self.avoided.ids())}
