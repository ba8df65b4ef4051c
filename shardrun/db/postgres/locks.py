"""Speak for one subscription whose rows a connection holds on PostgreSQL: by a row lock, or by a lock on the row's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg.pq import TransactionStatus

from shardrun.db.avoided import Avoided
from shardrun.db.locks import Choose, Settles
from shardrun.db.postgres import apart, driver, locks_sql
from shardrun.db.postgres.driver import COMMIT, Connection, Step
from shardrun.db.postgres.fetch import Fetch
from shardrun.db.postgres.store import Looks
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Verb
from shardrun.db.table import Layout
from shardrun.errors import Conflict, ShardrunError, StatementFailed

NOTHING: Mapping[str, Any] = {
    "limit": 0,
    "page": 0,
    "full_keys": "{}",
    "avoided": "{}",
    "busy": "{}",
    "ids": "{}",
    "id": None,
    "token": "",
    "key": None,
    "delay": None,
    "attempt": 0,
    "reason": None,
}
"""Parameters under which every statement runs, touches no row and locks no key."""

FIRST_PAGE, LARGEST_PAGE = 16, 256
"""Rows that one look for a free key reads. Larger: fewer looks past keys that others hold. Smaller: less read in vain."""

MOST_TRIED = 1000
"""Keys that one claim tries. Larger: it finds a free key behind more busy ones. Smaller: less work where all are busy."""


class HoldingStore(Looks):
    """What both forms share: settlements by id on the connection that holds the row, and looks at what is left."""

    nothing = NOTHING

    def __init__(self, layout: Layout, where: str, encodes_all: bool, fetch: Fetch | None, name: str) -> None:
        super().__init__(layout, where, encodes_all, fetch)
        self._avoided = Avoided(name)
        self._names = list(layout.table.columns) if layout.row_mode else None
        self._verbs: dict[Verb, Statement | None] = {
            Verb.ACK: locks_sql.ack(layout),
            Verb.DROP: locks_sql.drop(layout),
            Verb.RETRY: locks_sql.retry(layout),
            Verb.SNOOZE: locks_sql.snooze(layout),
            Verb.BURY: locks_sql.bury(layout),
            Verb.RELEASE: locks_sql.release(layout),
            Verb.RECOUNT: locks_sql.recount(layout),
        }

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [*(one for one in self._verbs.values() if one is not None), *super().statements()]

    def let_go(self, connection: Connection) -> None:
        """Roll back what is open."""
        with driver.naming_errors(connection):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()

    def _values(self, limit: int, full_keys: Sequence[Any]) -> dict[str, Any]:
        full = self._keys(full_keys) if self._keys is not None else "{}"
        avoided = self._ids(self._avoided.ids())
        return {"limit": limit, "full_keys": full, "avoided": avoided, "group": self.layout.group}

    def step(self, one: Settlement) -> Step:
        """Give the statement and the values of one settlement."""
        statement = self._verbs[one.verb]
        if statement is None:
            raise self._unwritable(one.verb)
        return statement, self._settled(one)

    def _or_let_go(self, connection: Connection, claim: Callable[[], list[Claimed]]) -> list[Claimed]:
        """Run a claim, and let go of what it held by then where it fails."""
        try:
            rows = claim()
        except ShardrunError:
            if not connection.closed:
                self.let_go(connection)
            raise
        if not rows:
            self.let_go(connection)
        return rows


class RowLockStore(Settles, HoldingStore):
    """Rows held by the transaction that read them, which stays open until they are settled."""

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self._begin: Step = (locks_sql.begin(layout), {})
        self._claim = locks_sql.claim(layout)
        self._claim_these = locks_sql.claim(layout, these=True)
        self._take_again = locks_sql.take_again(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [self._claim, self._claim_these, self._take_again, *super().statements()]

    def claim(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], choose: Choose | None = None
    ) -> list[Claimed]:
        """Lock up to `limit` rows, in claim order; the transaction stays open where there are any.

        Of those that are not chosen none stays locked: all are let go, and the others locked anew.
        """
        values = self._values(limit, full_keys)

        def locked(claim: Statement) -> list[Claimed]:
            found = driver.run_together(connection, [self._begin, (claim, values)])[-1]
            return apart.read(found, self._names)

        def claim() -> list[Claimed]:
            rows = locked(self._claim)
            kept = rows if choose is None else choose(rows)
            if len(kept) < len(rows):
                self.let_go(connection)
                values["ids"] = self._ids([row.id for row in kept])
                rows = locked(self._claim_these)
            return with_bodies(connection, self._fetch, rows)

        return self._or_let_go(connection, claim)

    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        steps = [self.step(one) for one in settlements]
        is_over = connection.info.transaction_status == TransactionStatus.IDLE  # an error has ended what held the rows
        if is_over or keeps:  # the one that is open may have begun after such an error, with another row
            taken = self._rows_taken_again(connection, settlements, [self._begin] if is_over else [])
            settlements = [one for one in settlements if one.id in taken]
            steps = [step for step in steps if step[1]["id"] in taken]
            if not steps:
                if is_over:
                    self.let_go(connection)
                return set()
        cursors = driver.run_together(connection, steps if keeps else [*steps, COMMIT])
        return {one.id for one, cursor in zip(settlements, cursors, strict=False) if cursor.rowcount > 0}

    def _rows_taken_again(
        self, connection: Connection, settlements: Sequence[Settlement], begin: list[Step]
    ) -> set[Any]:
        looks = [(self._take_again, {"id": one.id, "group": self.layout.group}) for one in settlements]
        cursors = driver.run_together(connection, [*begin, *looks])[len(begin) :]
        return {one.id for one, cursor in zip(settlements, cursors, strict=True) if cursor.rowcount > 0}


class AdvisoryStore(Settles, HoldingStore):
    """Rows held by a lock of the session on the row's key; nothing is open while the handler runs."""

    def __init__(
        self, layout: Layout, where: str, encodes_all: bool = True, fetch: Fetch | None = None, name: str = ""
    ) -> None:
        super().__init__(layout, where, encodes_all, fetch, name)
        self._lock_key = locks_sql.lock_key(layout)
        self._take = locks_sql.take(layout)
        self._isolated: Step = (locks_sql.begin(layout), {})
        self._key_of: dict[Any, str] = {}  # of rows in work, for whichever connection holds them

    def statements(self) -> list[Statement]:
        """List every statement that this store runs inside a transaction."""
        return [self._lock_key, self._take, locks_sql.UNLOCK, locks_sql.UNLOCK_ONE, *super().statements()]

    def claim(
        self,
        connection: Connection,
        limit: int,
        full_keys: Sequence[Any],
        choose: Choose | None = None,  # noqa: ARG002
    ) -> list[Claimed]:
        """Lock the first free key of a due row, then read the row again and count its attempt (R11); up to `limit` times."""
        values = self._values(FIRST_PAGE, full_keys)
        return self._or_let_go(connection, lambda: self._claim(connection, limit, values))

    def let_go(self, connection: Connection) -> None:
        """Roll back what is open, and unlock."""
        super().let_go(connection)
        driver.run(connection, locks_sql.UNLOCK, {})

    def _claim(self, connection: Connection, limit: int, values: dict[str, Any]) -> list[Claimed]:
        passed_over, busy, rows = list[Any](self._avoided.ids()), list[str](), list[Claimed]()
        while len(rows) < limit and len(busy) < MOST_TRIED:
            values |= {"avoided": self._ids(passed_over), "busy": busy}
            key: str | None = None
            try:
                id, key, tried, seen = driver.run(connection, self._lock_key, values).fetchall()[0]
                taken = self._take_row(connection, id, key) if key is not None else []
            except (Conflict, StatementFailed):
                if not rows:
                    raise
                if key is not None:
                    driver.run(connection, locks_sql.UNLOCK_ONE, {"key": key})
                break  # those that are counted by now are delivered
            if key is None:
                if seen < values["limit"]:
                    break
                busy += tried  # the rest of their rows are not looked at
                values["limit"] = min(2 * values["limit"], LARGEST_PAGE)
            elif taken:
                rows += taken
                busy.append(key)
                self._key_of[taken[0].id] = key
            else:
                passed_over.append(id)
                driver.run(connection, locks_sql.UNLOCK_ONE, {"key": key})
        return rows

    def _take_row(self, connection: Connection, id: Any, key: str) -> list[Claimed]:
        step = (self._take, {"id": id, "key": key, "group": self.layout.group})
        try:
            with driver.naming_errors(connection):
                if self._fetch is None:
                    return apart.read(driver.run(connection, *step), self._names)
                with connection.transaction():
                    found = connection.execute(step[0].text, step[1], prepare=True)
                    return with_bodies(connection, self._fetch, apart.read(found, self._names))
        except StatementFailed as error:
            self._avoided.refused(id, error)
            return []

    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        steps = [self.step(one) for one in settlements]
        keys: dict[Any, str] = {}
        if not keeps:  # taken out before the COMMIT, since the rows may be claimed again right after it
            keys = {one.id: self._key_of.pop(one.id) for one in settlements if one.id in self._key_of}
        unlock: list[Step] = [(locks_sql.UNLOCK_ONE, {"key": key}) for key in keys.values()]  # after the COMMIT (R11)
        try:
            cursors = driver.run_together(connection, [self._isolated, *steps, COMMIT, *unlock])[1:]
        except (Conflict, StatementFailed):
            self._key_of |= keys
            raise
        return {one.id for one, cursor in zip(settlements, cursors, strict=False) if cursor.rowcount > 0}
