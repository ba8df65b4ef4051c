"""Speak for one subscription whose rows are held by locks on their keys, which this process alone knows, on SQLite.

One replica serves such a file: it holds the system's lock on a file beside it, which ends with the process.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from shardrun.db.fetched import parsed
from shardrun.db.settling import GONE_AFTER, with_acks
from shardrun.db.sqlite import driver, locks_sql, sql
from shardrun.db.sqlite.fetch import Fetch
from shardrun.db.sqlite.store import Looks
from shardrun.db.statement import Statement
from shardrun.db.store import NONE_ACKED, Acked, Claimed, Settlement, Verb
from shardrun.db.table import Layout
from shardrun.errors import StatementFailed, Unsupported

SUFFIX = "-shardrun-replica"
"""What the name of the file that a replica locks has behind the database's."""

KEYS_BESIDE = 32
"""Rows read beyond those wanted, lest several of one key come first. Larger: fewer looks. Smaller: less is read in vain."""

Keys = set[bytes]
"""The keys in work, of all tables of one file."""


class KeyStore(Looks):
    """The statements of one subscription; `keys` is shared by all of one file, whose one writer they all use in turn."""

    def __init__(self, layout: Layout, where: str, keys: Keys, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._keys = keys
        self._key_of: dict[Any, bytes] = {}  # of rows in work
        self._candidates = lru_cache(maxsize=None)(lambda busy, full: locks_sql.candidates(layout, busy, full).text)
        self._count = locks_sql.count(layout)
        self._verbs: dict[Verb, Statement | None] = {
            Verb.ACK: locks_sql.ack(layout),
            Verb.DROP: locks_sql.drop(layout),
            Verb.RETRY: locks_sql.retry(layout),
            Verb.SNOOZE: locks_sql.snooze(layout),
            Verb.BURY: locks_sql.bury(layout),
            Verb.RELEASE: locks_sql.release(layout),
            Verb.RECOUNT: locks_sql.recount(layout),
        }
        self._remove = locks_sql.remove(layout)
        self._columns = list(layout.table.columns) if layout.row_mode else []

    def statements(self) -> list[Statement]:
        """List the statements that are compiled at the start."""
        by_key = 1 if self.layout.by_key and "partition_key" in self.layout.roles else 0
        statements = [locks_sql.candidates(self.layout, 1, by_key), self._count, *self._verbs.values(), self._remove]
        statements += [self._backlog, self._waiting, self._awaited.shortest, self._spelling.statement]
        statements += [self._fetch.sized.shortest] if self._fetch else []
        return [one for one in statements if one is not None]

    def prepare(self, connection: sqlite3.Connection) -> int:
        """Have SQLite compile every statement, without running it, and count them."""
        return self._compile(connection, self.statements(), ":id")

    def claim(self, connection: sqlite3.Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows in claim order, each of a key that no row in work has, and count their attempts."""
        with driver.writing(connection):
            chosen = self._free_rows(connection, limit, full_keys)
            counts = {row[0]: count for row in chosen if (count := self._counted(connection, row[0])) is not None}
            bodies = self._fetch.bodies(connection, list(counts)) if self._fetch else {}
        rows = [row for row in chosen if row[0] in counts]
        for row in rows:
            self._key_of[row[0]] = row[6]
            self._keys.add(row[6])
        self._look_now_and_then(connection, len(rows) < limit)
        return [self._claimed(row, counts[row[0]], bodies) for row in rows]

    def settle(
        self,
        connection: sqlite3.Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements in one transaction, and free the keys of what is not in work any more."""
        every = with_acks(settlements, acked)
        try:
            with driver.writing(connection):
                effective = {one.id for one in every if self._settle_one(connection, one, repeated)}
        except StatementFailed as error:
            (one, *others) = every
            if not others and one.verb not in (Verb.ACK, Verb.DROP):  # after those it is tried as a failed attempt
                self._avoided.refused(one.id, error)
                self._free(one.id)
            raise
        for one in every:
            if one.verb is not Verb.RECOUNT or one.id not in effective:
                self._free(one.id)
        return effective

    def write(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        """Write one settlement in the transaction that is open; tells whether it changed the row."""
        return self._settle_one(connection, one, repeated=False)

    def _free_rows(
        self, connection: sqlite3.Connection, limit: int, full_keys: Sequence[Any], resting: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Read the first row of each free key, page by page: the keys of one page are left out of the next."""
        chosen: dict[bytes, tuple[Any, ...]] = {}
        avoided = {*self._avoided.ids(), *resting}
        passed_over = set[bytes]()
        while len(chosen) < limit:
            busy = _padded([*self._keys, *chosen, *passed_over])
            full = _padded(full_keys)
            wanted = limit - len(chosen) + KEYS_BESIDE
            values = [*self._group, *busy, *full, wanted + len(avoided)]
            page = connection.execute(self._candidates(len(busy), len(full)), values).fetchall()
            for row in page:
                if row[0] in avoided or row[0] in self._key_of:  # in work under another key, which has changed since
                    continue
                if len(chosen) < limit:
                    chosen.setdefault(row[6], row)
            if len(page) < wanted + len(avoided):
                break
            passed_over.update(row[6] for row in page)  # where all of them are avoided the next page has others
        return list(chosen.values())

    def _counted(self, connection: sqlite3.Connection, id: Any) -> int | None:
        """Count a row's attempt; None for a row that the database does not let be written."""
        if self._count is None:
            return 1
        try:
            found = connection.execute(self._count.text, [id]).fetchone()
        except sqlite3.Error as error:
            named = driver.name_error(error, connection)
            if not isinstance(named, StatementFailed):
                raise named from error
            self._avoided.refused(id, named)
            return None
        if found is None:
            self._avoided.add(id, "the database does not write its count of attempts")
            return None
        return int(found[0])

    def _claimed(self, row: tuple[Any, ...], attempt: int, bodies: dict[Any, Any]) -> Claimed:
        id, key, lane_key, group, headers, body = row[:6]
        if self._fetch:
            body = bodies[id]
        elif self._columns:
            body = dict(zip(self._columns, row[7:], strict=True))
            if counted := self.layout.column("attempt"):
                body[counted.name] = attempt
            for name in self._json:
                body[name] = parsed(body[name])
        return Claimed(id, "", attempt, False, key, lane_key, group, headers, body)

    def _settle_one(self, connection: sqlite3.Connection, one: Settlement, repeated: bool) -> bool:
        changed = self._write_alone(connection, self._verbs[one.verb], one)
        return changed or (repeated and one.verb in GONE_AFTER)

    def _free(self, id: Any) -> None:
        key = self._key_of.pop(id, None)
        if key is not None:
            self._keys.discard(key)


def _padded(values: Sequence[Any]) -> list[Any]:
    """Fill a list up with NULL to one of few lengths."""
    if not values:
        return []
    length = next((length for length in sql.LENGTHS if length >= len(values)), len(values))
    return [*values, *[None] * (length - len(values))]


@contextmanager
def only_replica(path: str, where: str) -> Iterator[None]:
    """Hold the right to serve a file for a block; raises `Unsupported` where another process holds it."""
    lock = os.path.realpath(path) + SUFFIX  # one file is one, whichever links lead to it
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Unsupported(
            f"{where}: advisory_lock= needs {lock}, which cannot be opened: {error.strerror}. Let this user write it, or give "
            f"the queue a lease column (locked_until=)."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise Unsupported(
                f"{where}: another replica (pid {other or 'unknown'}) serves advisory_lock= over {path}, and on SQLite one "
                f"replica per file may. Stop that one, or give the queue a lease column (locked_until=)."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
