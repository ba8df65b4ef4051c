"""Speak for one subscription on SQLite: rows in and out of the statements that `sql` writes, under the write lock."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from time import monotonic
from typing import Any

from shardrun.db.avoided import Avoided
from shardrun.db.fetched import parsed
from shardrun.db.settling import Shared, in_effect, in_order, not_among, share, share_acked, storable
from shardrun.db.speaking import Speaking
from shardrun.db.sqlite import driver, sql
from shardrun.db.sqlite.fetch import Fetch
from shardrun.db.sqlite.lists import Sized
from shardrun.db.sqlite.spelling import Spelling
from shardrun.db.statement import Statement
from shardrun.db.store import (
    NONE_ACKED,
    WAITING_LIMIT,
    Acked,
    Backlog,
    Claimed,
    Extension,
    Settlement,
    Token,
    Verb,
    Waiting,
)
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError

LOOK_SECONDS = 60.0
"""How often a claim that came back short looks for times that cannot be compared. Smaller: more reading of rows that wait."""

log = logging.getLogger("shardrun")


class Looks(Speaking):
    """What both kinds of stores share: the looks at what is left, at why a claim took nothing, and for misspelt times."""

    _remove: Statement

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None, name: str) -> None:
        super().__init__(layout, where)
        self._name = name
        self._fetch = fetch
        self._avoided = Avoided(name)
        self._spelling = Spelling(layout, name)
        self._look_at = 0.0
        self._backlog = sql.backlog(layout)
        self._waiting = sql.waiting(layout)
        self._awaited = Sized(layout, sql.awaited)
        self._group = [layout.group] if layout.group is not None and "group" in layout.roles else []
        self._json = [name for name, column in layout.table.columns.items() if column.kind == "json"]

    def _compile(self, connection: sqlite3.Connection, statements: Sequence[Statement], named: str) -> int:
        """Have SQLite compile statements, without running them, and count them; `named` is in those whose values have names."""
        with self._declared(), driver.naming_errors(connection):
            for statement in statements:
                nothing = dict.fromkeys(statement.parameters)
                values = nothing if named in statement.text else list(nothing.values())
                connection.execute(f"explain {statement.text}", values).fetchall()
        return len(statements)

    def backlog(self, connection: sqlite3.Connection, awaited: Sequence[Any]) -> Backlog:
        """Look at what is left, along the claim's index."""
        with driver.naming_errors(connection):
            ready, later = connection.execute(self._backlog.text, self._group).fetchone()
            is_awaited = any(
                connection.execute(text, [*self._group, *piece]).fetchone()[0]
                for text, piece in self._awaited.pieces(awaited)
            )
        return Backlog(ready=bool(ready), later=later, awaited=is_awaited)

    def waiting(self, connection: sqlite3.Connection) -> Waiting:
        """Look why a claim took nothing, along the claim's index."""
        with driver.naming_errors(connection):
            found = connection.execute(self._waiting.text, [*self._group, WAITING_LIMIT]).fetchone()
        return Waiting._make(found)

    def _look_now_and_then(self, connection: sqlite3.Connection, took_all: bool) -> None:
        """Look for misspelt times after a claim, whose rows are taken: whatever fails here is no reason to forget them."""
        if not took_all or monotonic() < self._look_at:
            return
        self._look_at = monotonic() + LOOK_SECONDS
        try:
            self.name_misspelt(connection)
        except ShardrunError as error:
            log.warning("%s: the look for times that cannot be compared failed: %s", self._name, error)

    def name_misspelt(self, connection: sqlite3.Connection) -> None:
        """Log the rows that no claim takes, because a time of theirs cannot be compared with now; each once."""
        self._spelling.name_misspelt(connection)

    def _write_alone(self, connection: sqlite3.Connection, statement: Statement | None, one: Settlement) -> bool:
        """Write one settlement in the transaction that is open; tells whether it changed the row."""
        if statement is None:
            raise self._unwritable(one.verb)
        values = {
            "id": one.id,
            "token": one.token,
            "delay": float(one.delay) if one.delay else None,
            "attempt": one.attempt,
            "reason": storable(one.reason),
            "dead_group": self.layout.dead_group,
        }
        changed = connection.execute(statement.text, values).rowcount > 0
        if changed and one.verb is Verb.BURY and self.layout.dead is not None:
            connection.execute(self._remove.text, values)
        return changed


class SqliteStore(Looks):
    """The statements of one subscription, built once; remembers which misspelt times it has named."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        keyed = layout.by_key and "partition_key" in layout.roles
        self._candidates = sql.candidates(layout, 0)
        self._others = Sized(layout, sql.candidates) if keyed else None
        self._claim = Sized(layout, sql.claim)
        self._lease_end = sql.lease_end(layout)
        self._extend = Sized(layout, sql.extend)
        self._still_held = Sized(layout, sql.still_held)
        self._shared = {Verb.ACK: Sized(layout, sql.ack), Verb.RELEASE: Sized(layout, sql.release)}
        self._alone = {
            Verb.DROP: sql.drop(layout),
            Verb.RETRY: sql.retry(layout),
            Verb.SNOOZE: sql.snooze(layout),
            Verb.BURY: sql.bury(layout),
            Verb.RECOUNT: sql.recount(layout),
        }
        self._more: list[Statement] = []
        self._remove = sql.remove(layout)
        self._look = Sized(layout, sql.look)
        self._columns = list(layout.table.columns)

    def prepare(self, connection: sqlite3.Connection) -> int:
        """Have SQLite compile every statement, without running it: names and types of statement are checked."""
        sized = [self._claim, self._extend, self._still_held, *self._shared.values(), self._look, self._awaited]
        statements = [one.shortest for one in [*sized, *([self._others] if self._others else [])]]
        statements += [self._fetch.sized.shortest] if self._fetch else []
        singles = [
            self._candidates,
            self._lease_end,
            *self._alone.values(),
            self._remove,
            self._backlog,
            self._waiting,
            self._spelling.statement,
        ]
        statements += [one for one in singles if one is not None]
        return self._compile(connection, [*statements, *self._more], ":token")

    def claim(self, connection: sqlite3.Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows, in claim order, except those whose lane key is in `full_keys`."""
        text, leave_out = self._candidates.text, list[Any]()
        if full_keys and self._others is not None:
            text, leave_out = next(self._others.pieces(full_keys))
        with driver.writing(connection):
            rows = self._free_rows(connection, text, [*self._group, *leave_out], limit)
            written = self._write_leases(connection, [row[0] for row in rows])
            bodies = self._fetch.bodies(connection, list(written)) if self._fetch else None
        self._look_now_and_then(connection, len(rows) < limit)
        return self._taken(rows, written, bodies)

    def _taken(
        self, rows: list[tuple[Any, ...]], written: dict[Any, tuple[Token, int]], bodies: dict[Any, Any] | None
    ) -> list[Claimed]:
        """Make claims of rows as they were read, of those whose lease was written."""
        if bodies is not None:
            rows = [(*row[:6], bodies[row[0]]) for row in rows if row[0] in written]
        if self.layout.row_mode:
            return [self._row(row, *written[row[0]]) for row in rows if row[0] in written]
        return [Claimed._make((row[0], *written[row[0]], row[1] == 1, *row[2:7])) for row in rows if row[0] in written]

    def _free_rows(
        self, connection: sqlite3.Connection, text: str, values: list[Any], limit: int
    ) -> list[tuple[Any, ...]]:
        avoided = self._avoided.ids()
        rows = connection.execute(text, [*values, limit + len(avoided)]).fetchall()
        return [row for row in rows if row[0] not in avoided][:limit] if avoided else rows

    def _write_leases(self, connection: sqlite3.Connection, ids: list[Any]) -> dict[Any, tuple[Token, int]]:
        """Claim rows that were read as free; those that a trigger keeps from it are left out, and named."""

        def take(some: Sequence[Any]) -> list[tuple[Any, Token, int]]:
            taken: list[tuple[Any, Token, int]] = []
            for claim, piece in self._claim.pieces(some):
                try:
                    taken += connection.execute(claim, piece).fetchall()
                except sqlite3.Error as error:
                    raise driver.name_error(error, connection) from error
            return taken

        written = {id: (token, count) for id, token, count in self._avoided.around(ids, take)}
        if len(written) < len(ids):
            refused = self._avoided.ids()
            for id in ids:
                if isinstance(id, driver.NotText):
                    self._avoided.add(id, "its id is text that is not UTF-8, which no statement can name")
                elif id not in written and id not in refused:
                    self._avoided.swallowed(id)
        return written

    def lease_end(self, connection: sqlite3.Connection) -> Token:
        """Read the database's clock, plus the lease."""
        with driver.naming_errors(connection):
            return str(connection.execute(self._lease_end.text).fetchone()[0])

    def extend(self, connection: sqlite3.Connection, ids: Sequence[Any], token: Token, new: Token) -> Extension:
        """Push the expiry of the rows that carry `token` to `new`, in one transaction."""
        extended: list[Any] = []
        busy: list[Any] = []
        with driver.writing(connection):
            for text, piece in self._extend.pieces(ids):
                extended += [row[0] for row in connection.execute(text, [token, new, *piece])]
            if len(extended) < len(ids):
                for text, piece in self._still_held.pieces(ids):
                    busy += [row[0] for row in connection.execute(text, [token, *piece])]
        return Extension(extended, busy)

    def settle(
        self,
        connection: sqlite3.Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements in one transaction; returns the ids of those that took effect."""
        shared, alone = share(settlements, drops_alone=self._alone[Verb.DROP] is not None)
        shared += share_acked(acked)
        effective: set[Any] = set()
        with driver.writing(connection):
            for group in shared:
                effective.update(self._settle_shared(connection, group))
            effective.update(one.id for one in alone if self._settle_one(connection, one))
            if repeated and (doubted := not_among(effective, settlements, acked)):
                effective |= self._resolve(connection, doubted)
        return effective

    def write(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        """Write one settlement in a transaction that is open already, and tell whether it took effect."""
        shared, _ = share([one], drops_alone=self._alone[Verb.DROP] is not None)
        return bool(self._settle_shared(connection, shared[0])) if shared else self._settle_one(connection, one)

    def _settle_shared(self, connection: sqlite3.Connection, group: Shared) -> list[Any]:
        """Write settlements that share a statement; returns the ids of those that took effect."""
        verb, token, attempt, ids = group
        head = [token, attempt] if verb is Verb.RELEASE and "attempt" in self.layout.roles else [token]
        effective: list[Any] = []
        for text, piece in self._shared[verb].pieces(in_order(ids)):
            effective += [row[0] for row in connection.execute(text, [*head, *piece]).fetchall()]
        return effective

    def _settle_one(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        return self._write_alone(connection, self._alone[one.verb], one)

    def _resolve(self, connection: sqlite3.Connection, doubted: list[Settlement]) -> set[Any]:
        """Find which settlements had been committed before; no one else can be committing now."""
        seen: dict[Any, Token | None] = {}
        for text, piece in self._look.pieces([one.id for one in doubted]):
            seen.update(connection.execute(text, piece).fetchall())
        return in_effect(doubted, seen)

    def _row(self, row: Sequence[Any], token: Token, attempt: int) -> Claimed:
        """Make a claim of a whole row, as it is after the claim."""
        body = dict(zip(self._columns, row[7:], strict=True))
        body[self.layout.roles["locked_until"].name] = token
        if counted := self.layout.column("attempt"):
            body[counted.name] = attempt
        for name in self._json:
            body[name] = parsed(body[name])
        return Claimed._make((row[0], token, attempt, row[1] == 1, *row[2:6], body))
