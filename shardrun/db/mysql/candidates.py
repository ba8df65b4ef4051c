"""Read candidates in claim order, without locks: along the claim's index, or as the server likes where that is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardrun.db.mysql import driver
from shardrun.db.mysql.driver import Connection
from shardrun.db.statement import Statement
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed

NO_SUCH_INDEX = 1176

Write = Callable[[Layout, bool, bool], Statement]
"""Writes the statement of a layout: whether full lanes are left out, and whether the server is free to choose the index."""


class Candidates:
    """The statements that read candidates: of all lanes, and of those that are not full."""

    def __init__(self, layout: Layout, write: Write) -> None:
        self._layout = layout
        self._write = write
        self._look_for(is_free=False)

    def statements(self) -> list[Statement]:
        """List the statements: one, or two where lanes go by key."""
        return list(self._looks)

    def read(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Read a page; lanes are left out where the values name some."""
        place = "full_keys" in values
        try:
            return self._rows(connection, place, values)
        except StatementFailed as error:
            if driver.code_of(error.__cause__ or error) != NO_SUCH_INDEX:
                raise
        self._look_for(is_free=True)  # dropped, or made anew under another name, since this replica started
        return self._rows(connection, place, values)

    def _look_for(self, is_free: bool) -> None:
        keyed = self._layout.by_key and "partition_key" in self._layout.roles
        self._looks = [self._write(self._layout, leaving_out, is_free) for leaving_out in (False, True)[: 1 + keyed]]

    def _rows(self, connection: Connection, place: int, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        rows: Sequence[tuple[Any, ...]] = driver.run(connection, self._looks[place], values).fetchall()
        return rows
