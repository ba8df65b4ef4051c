"""Claim rows strand by strand on SQLite; see `db/strands.py`.

BEGIN IMMEDIATE guards all strands of the file at once: what a look inside it sees is what the claim writes on (R5).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from shardrun.db.sqlite import driver, strands_sql
from shardrun.db.sqlite.fetch import Fetch
from shardrun.db.sqlite.lists import Sized
from shardrun.db.sqlite.store import SqliteStore
from shardrun.db.store import Claimed, Token
from shardrun.db.strands import Seen, Stranded, Strands
from shardrun.db.table import Layout

FEWEST_OF_ONE = 8
"""Rows that a claim may take from each of many keys. Larger: fewer claims; smaller: keys take turns sooner."""

Lines = list[list[Any]]
"""Ids that a claim has chosen, a list for each strand, in order."""


class SqliteStrandStore(SqliteStore, Stranded):
    """The statements of one subscription whose rows carry a lease and are claimed strand by strand."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self.strands = Strands(self)
        self._first, self._next = (strands_sql.walk(layout, goes_on) for goes_on in (False, True))
        self._one = strands_sql.one(layout)
        self._line = strands_sql.line(layout)
        self._rows = Sized(layout, strands_sql.rows)
        self._more = [self._first, self._next, self._one, self._line, self._rows.shortest]
        self._strand_of: dict[Any, Any] = {}

    def claim_strands(
        self, connection: sqlite3.Connection, limit: int, full_keys: Sequence[Any], held: Collection[Any]
    ) -> list[Claimed]:
        """Take up to `limit` rows of strands, then of those that have none."""
        taken = super().claim_strands(connection, limit, full_keys, held)
        self._look_now_and_then(connection, len(taken) < limit)
        return taken

    def look(
        self,
        connection: sqlite3.Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look at `these` strands, and at the `visits` next ones behind `after`."""
        full, text = set(full_keys), (self._first if after is None else self._next).text
        with driver.naming_errors(connection):
            left = [
                self._seen(connection, connection.execute(self._one.text, self._values(each)).fetchone(), full, held)
                for each in these
            ]
            walked = connection.execute(text, [*self._values(after), visits]).fetchall()
            return left, [self._seen(connection, found, full, held) for found in walked]

    def take(
        self, connection: sqlite3.Connection, strands: Sequence[Any], limit: int, held: Collection[Any]
    ) -> list[Claimed]:
        """Look at strands again under the write lock, and claim up to `limit` rows in all."""
        most = max(FEWEST_OF_ONE, 2 * limit // max(1, len(strands)))
        with driver.writing(connection):
            lines: Lines = []
            for strand in strands:
                if (left := limit - sum(map(len, lines))) < 1:
                    break
                lines.append(list(self._free(connection, strand, min(left, most), held)))
            self._strand_of = {id: strand for strand, ids in zip(strands, lines, strict=False) for id in ids}
            rows = self._read(connection, list(self._strand_of))
            written = self._write_in_order(connection, lines)
            bodies = self._fetch.bodies(connection, list(written)) if self._fetch else None
        return self._taken(rows, written, bodies)

    def strand_of(self, row: Claimed) -> Any:
        """Give the strand of a row of the last claim."""
        return self._strand_of[row.id]

    def _values(self, strand: Any) -> list[Any]:
        return [self.layout.group, strand, isinstance(strand, driver.NotText)]

    def _seen(
        self, connection: sqlite3.Connection, found: Sequence[Any], full: Collection[Any], held: Collection[Any]
    ) -> Seen:
        strand, head, is_free, seconds = found
        if strand in full:
            return Seen(strand, False)
        if head in held and not self.layout.is_fifo:
            return Seen(strand, any(self._free(connection, strand, 1, held)))
        waits = seconds if not is_free and seconds is not None and seconds > 0 else None
        return Seen(strand, bool(is_free) and head is not None and head not in self._avoided.ids(), waits)

    def _free(self, connection: sqlite3.Connection, strand: Any, limit: int, held: Collection[Any]) -> Iterator[Any]:
        """Give the ids that a strand lets go now, in order."""
        avoided = self._avoided.ids()
        if self.layout.is_fifo:
            _, head, is_free, _ = connection.execute(self._one.text, self._values(strand)).fetchone()
            if is_free and head is not None and head not in avoided:
                yield head
            return
        for id, is_free in connection.execute(self._line.text, self._values(strand)).fetchall():
            if id in held:
                continue
            if not is_free or id in avoided or limit < 1:
                return
            limit -= 1
            yield id

    def _read(self, connection: sqlite3.Connection, ids: list[Any]) -> list[tuple[Any, ...]]:
        found = {row[0]: row for text, piece in self._rows.pieces(ids) for row in connection.execute(text, piece)}
        return [found[id] for id in ids if id in found]

    def _write_in_order(self, connection: sqlite3.Connection, lines: Lines) -> dict[Any, tuple[Token, int]]:
        """Claim rows; behind one that the database does not let be claimed, its strand stays as it is."""
        while True:
            connection.execute("savepoint claim")
            ids = [id for line in lines for id in line]
            written = self._write_leases(connection, ids)
            if len(written) == len(ids):
                connection.execute("release claim")
                return written
            connection.execute("rollback to claim")
            lines = [_up_to_refused(line, written) for line in lines]


def _up_to_refused(line: list[Any], written: Collection[Any]) -> list[Any]:
    refused = next((number for number, id in enumerate(line) if id not in written), len(line))
    return line[:refused]
