"""Name the rows that no claim takes, because a time of theirs cannot be compared with now."""

from __future__ import annotations

import logging
import sqlite3

from shardrun.db.sqlite import driver, sql, times
from shardrun.db.table import Layout

log = logging.getLogger("shardrun")


class Spelling:
    """The look for such rows; each is named in the log once."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.statement = sql.misspelt(layout)
        self._layout = layout
        self._name = name
        self._group = [layout.group] if layout.group is not None and "group" in layout.roles else []
        self._named: set[str] = set()

    def name_misspelt(self, connection: sqlite3.Connection) -> None:
        """Log the rows that were not named before."""
        if self.statement is None:
            return
        with driver.naming_errors(connection):
            found = connection.execute(self.statement.text, self._group).fetchall()
        complaints = dict.fromkeys(times.complaint(self._name, self._layout, row) for row in found)
        for complaint in complaints:
            if complaint not in self._named:
                log.error("%s", complaint)
        self._named = set(complaints)
