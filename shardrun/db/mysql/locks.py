"""Speak for one subscription whose rows a connection holds on MySQL and MariaDB: by a row lock, or by a lock on the key.

The transaction that holds a row also keeps its table as it is: ALTER TABLE waits for it, and whoever comes later waits for that.

The key's lock is the servers' own, by name (`locks_sql.lock_name`), so that other software can take it, too: GET_LOCK(name, 0).
A session that has it would get it again; here it does not ask for what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardrun.db.avoided import Avoided
from shardrun.db.locks import Choose, Settles
from shardrun.db.mysql import driver, lists, locks_sql
from shardrun.db.mysql.candidates import Candidates
from shardrun.db.mysql.driver import COMMIT, Connection, Step
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.mysql.store import Looks
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement, Verb
from shardrun.db.table import Layout
from shardrun.errors import Conflict, ConnectionLost, ShardrunError, StatementFailed

FIRST_PAGE, LARGEST_PAGE = 16, 256
"""Candidates that one look reads beside those wanted. Larger: fewer looks past what others hold. Smaller: less read in vain."""

MOST_TRIED = 5000
"""Candidates, or keys, that one claim tries. Larger: it finds a free one behind more that others hold. Smaller: less work where
there is none."""

LEADING = 7
"""Columns of a held row before those of the row mode."""


class HoldingStore(Looks):
    """What both forms share: settlements by id on the connection that holds the row, and looks at what is left."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch)
        self._avoided = Avoided(name)
        self._begin = driver.beginning(layout.isolation)
        self._keyed = layout.by_key and "partition_key" in layout.roles
        self._kinds = {name: column.kind for name, column in layout.table.columns.items()}
        look, remove = locks_sql.look(layout), locks_sql.remove(layout)
        release, bury = locks_sql.release(layout), locks_sql.bury(layout)
        self._verbs: dict[Verb, list[Statement]] = {  # the last statement's count of rows tells whether it took effect
            Verb.ACK: [locks_sql.ack(layout)],
            Verb.DROP: [locks_sql.drop(layout)],
            Verb.RETRY: [locks_sql.retry(layout)],
            Verb.SNOOZE: [locks_sql.snooze(layout)],
            Verb.BURY: [bury, *([remove] if layout.dead is not None else [])] if bury else [],
            Verb.RELEASE: [release, look] if release else [look],
            Verb.RECOUNT: [locks_sql.recount(layout)],
        }

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        every = [one for statements in self._verbs.values() for one in statements]
        return [*every, *super().statements()]

    def let_go(self, connection: Connection) -> None:
        """Roll back what is open."""
        with driver.naming_errors(connection):
            connection.rollback()
        connection.holds_rows = False

    def _run(
        self, connection: Connection, before: list[Step], settlements: Sequence[Settlement], after: list[Step]
    ) -> set[Any]:
        """Write settlements between other steps; tells which took effect."""
        steps = [self.steps(one) for one in settlements]
        answers = iter(
            lists.together(connection, [*before, *(step for some in steps for step in some), *after])[len(before) :]
        )
        counts = [[next(answers).rowcount for _ in some] for some in steps]
        return {one.id for one, of_one in zip(settlements, counts, strict=True) if of_one[-1] > 0}

    def steps(self, one: Settlement) -> list[Step]:
        """Give the statements and the values of one settlement; the last one's count of rows tells whether it took effect."""
        statements = self._verbs[one.verb]
        if not statements:
            raise self._unwritable(one.verb)
        values = {"id": one.id, **self._settled(one)}
        return [(statement, values) for statement in statements]

    def _values(self, limit: int, full_keys: Sequence[Any], avoided: Sequence[Any]) -> dict[str, Any]:
        values = {"group": self.layout.group, "limit": limit, "avoided": list(avoided) or [None]}
        return {**values, "full_keys": lists.first_piece(full_keys)} if full_keys and self._keyed else values

    def _claimed(self, row: Sequence[Any]) -> Claimed:
        id, attempt, key, lane_key, group, headers, body = row[:LEADING]
        if self.layout.row_mode:
            body = lists.columns_of(self._kinds, row[LEADING:])
        return Claimed(id, "", attempt, False, key, lane_key, group, headers, body)

    def _or_let_go(self, connection: Connection, claim: Callable[[], list[Claimed]]) -> list[Claimed]:
        """Run a claim, and let go of what it held by then where it fails or finds nothing."""
        try:
            rows = claim()
        except ShardrunError as error:
            if not isinstance(error, ConnectionLost):
                self.let_go(connection)
            raise
        if not rows:
            self.let_go(connection)
        return rows


class RowLockStore(Settles, HoldingStore):
    """Rows held by the transaction that locked them, which stays open until they are settled."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._candidates = Candidates(layout, locks_sql.candidates)
        self._hold = locks_sql.hold(layout)
        self._end: list[Step] = [(COMMIT, {})]
        # Where a transaction reads one snapshot, another page would show rows as they were.
        self._keeps_snapshots = layout.isolation not in (None, "read committed")

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        return [*self._candidates.statements(), self._hold, *super().statements()]

    def claim(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], choose: Choose | None = None
    ) -> list[Claimed]:
        """Lock up to `limit` rows, in claim order; the transaction stays open where there are any.

        Of those that are not chosen none stays locked: all are let go, and the others locked anew.
        """

        def claim() -> list[Claimed]:
            rows = self._first_free(connection, limit, full_keys)
            kept = rows if choose is None else choose(rows)
            if len(kept) < len(rows):
                self.let_go(connection)
                rows = self._held(connection, [[row.id for row in kept]], len(kept)) if kept else []
                places = {row.id: place for place, row in enumerate(kept)}
                rows.sort(key=lambda row: places[row.id])
            return with_bodies(connection, self._fetch, rows)

        return self._or_let_go(connection, claim)

    def _first_free(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], left_out: Sequence[Any] = ()
    ) -> list[Claimed]:
        """Lock the first rows that nobody has locked, page by page of candidates."""
        rows: list[Claimed] = []
        passed, page = [*self._avoided.ids(), *left_out], limit + FIRST_PAGE
        most = len(passed) + MOST_TRIED
        while len(passed) < most and lists.fits(passed):
            values = self._values(page, full_keys, passed)
            found = self._candidates.read(connection, values)
            rows += self._held(connection, _runs(found), limit - len(rows))
            if len(rows) == limit or len(found) < page or (rows and self._keeps_snapshots):
                break
            if not rows:
                self.let_go(connection)  # the next look is no part of a transaction
            passed += [id for id, _ in found]
            page = min(2 * page, limit + LARGEST_PAGE)
        return rows

    def _held(self, connection: Connection, runs: Iterable[Sequence[Any]], limit: int) -> list[Claimed]:
        """Lock rows run by run, each in the order of ids: the server stops where enough are locked, and locks no other."""
        rows: dict[Any, Claimed] = {}
        for piece in (piece for run in runs for piece in lists.pieces(run)):
            step = (self._hold, {"ids": piece, "group": self.layout.group, "limit": limit - len(rows)})
            steps = [step] if connection.holds_rows else [*self._begin, step]
            connection.holds_rows = False  # an error rolls back what was taken before, too
            answer = driver.run_together(connection, steps)[-1]
            connection.holds_rows = True
            rows |= {row[0]: self._claimed(row) for row in answer.fetchall()}
            if len(rows) == limit:
                break
        return list(rows.values())

    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        if not connection.holds_rows or keeps:  # an error has ended what held the rows, or had before this transaction
            taken = {row.id for row in self._held(connection, [[one.id for one in settlements]], len(settlements))}
            settlements = [one for one in settlements if one.id in taken]
            if keeps and not settlements:
                return set()
        connection.holds_rows = False  # whatever goes wrong rolls back
        effective = self._run(connection, [], settlements, [] if keeps else self._end)
        connection.holds_rows = keeps
        return effective


class AdvisoryStore(Settles, HoldingStore):
    """Rows held by a lock of the session on the row's key; nothing is open while the handler runs."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._candidates = Candidates(layout, locks_sql.keyed_candidates)
        self._take = locks_sql.take(layout)
        self._count = locks_sql.count(layout)
        self._taken = locks_sql.taken(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        locks = [locks_sql.lock_first(1), locks_sql.UNLOCK, locks_sql.UNLOCK_ONE]
        takes = [one for one in (self._take, self._count, self._taken) if one is not None]
        return [*self._candidates.statements(), *locks, *takes, *super().statements()]

    def prepare(self, connection: Connection) -> int:
        """Have the server prepare every statement, and lock a name and let it go: clusters have no such locks."""
        count = super().prepare(connection)
        with self._declared():
            driver.run(connection, locks_sql.lock_first(1), {"name0": f"shardrun-{connection.thread_id()}"})
            driver.run(connection, locks_sql.UNLOCK, {})
        return count

    def claim(
        self,
        connection: Connection,
        limit: int,
        full_keys: Sequence[Any],
        choose: Choose | None = None,  # noqa: ARG002
    ) -> list[Claimed]:
        """Lock the first free key of a due row, then read the row again and count its attempt (R11); up to `limit` times."""
        return self._or_let_go(connection, lambda: self._claim(connection, limit, full_keys))

    def let_go(self, connection: Connection) -> None:
        """Roll back what is open, and unlock."""
        super().let_go(connection)
        driver.run(connection, locks_sql.UNLOCK, {})
        connection.names_held = {}

    def _claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        rows: list[Claimed] = []
        try:
            self._claim_past_others(connection, limit, full_keys, rows)
        except (Conflict, StatementFailed):
            if not rows:
                raise  # those that are counted by now are delivered
        return rows

    def _claim_past_others(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], rows: list[Claimed]
    ) -> None:
        passed, busy, page = self._avoided.ids(), list[bytes | None](), limit + FIRST_PAGE
        while len(rows) < limit and len(busy) + len(passed) < MOST_TRIED and lists.fits(busy) and lists.fits(passed):
            values = {**self._values(page, full_keys, passed), "busy": busy or [None]}
            found = self._candidates.read(connection, values)
            firsts: dict[str, Any] = {}
            for id, key in found:  # lest a key that becomes free meanwhile is taken for a later row
                firsts.setdefault(key, id)
            missed = self._take_firsts(connection, firsts, limit, rows, busy)
            if missed is not None:
                passed.append(missed)  # the next row of its key may be the first now
            elif len(found) < page:
                break
            else:
                page = min(2 * page, limit + LARGEST_PAGE)

    def _take_firsts(
        self,
        connection: Connection,
        firsts: Mapping[str, Any],
        limit: int,
        rows: list[Claimed],
        busy: list[bytes | None],
    ) -> Any | None:
        """Lock the free keys of a page one by one, and take the first row of each; gives the one that could not be taken."""
        keys = list(firsts)
        while len(rows) < limit:
            place = self._lock_first(connection, keys)
            busy += [key.encode() for key in keys[:place]]  # the rest of their rows are not looked at
            if place is None:
                break
            id, key = firsts[keys[place]], keys[place]
            if not (taken := self._take_or_unlock(connection, id, key)):
                return id
            rows += taken
            busy.append(key.encode())
            connection.names_held = {**connection.names_held, id: locks_sql.lock_name(key)}
            del keys[: place + 1]
        return None

    def _take_or_unlock(self, connection: Connection, id: Any, key: str) -> list[Claimed]:
        unlock = (locks_sql.UNLOCK_ONE, {"name": locks_sql.lock_name(key)})
        try:
            rows = self._take_row(connection, id, key)
        except Conflict:
            driver.run(connection, *unlock)
            raise
        if not rows:
            driver.run(connection, *unlock)
        return rows

    def _lock_first(self, connection: Connection, keys: Sequence[str]) -> int | None:
        if not keys:
            return None
        names = {f"name{place}": locks_sql.lock_name(key) for place, key in enumerate(keys)}
        place: int | None = driver.run(connection, locks_sql.lock_first(len(keys)), names).fetchone()[0]
        return place

    def _take_row(self, connection: Connection, id: Any, key: str) -> list[Claimed]:
        """Read the row again, in a transaction that begins behind the lock: none sees what was there before (C80)."""
        values = {"id": id, "group": self.layout.group}
        counting: list[Step] = [] if self._count is None else [(self._count, values)]
        try:
            with driver.writing(connection, self.layout.isolation):
                if driver.run(connection, self._take, values).fetchall() not in ([(key,)], ((key,),)):
                    return []
                answer = driver.run_together(connection, [*counting, (self._taken, values)])[-1]
                return with_bodies(connection, self._fetch, [self._claimed(row) for row in answer.fetchall()])
        except StatementFailed as error:
            self._avoided.refused(id, error)
            return []

    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        settled = set() if keeps else {one.id for one in settlements}
        freed = {id: name for id, name in connection.names_held.items() if id in settled}
        unlock: list[Step] = [
            (locks_sql.UNLOCK_ONE, {"name": name}) for name in freed.values()
        ]  # after the COMMIT (R11)
        effective = self._run(connection, self._begin, settlements, [(COMMIT, {}), *unlock])
        connection.names_held = {id: name for id, name in connection.names_held.items() if id not in freed}
        return effective


def _runs(found: Sequence[tuple[Any, int]]) -> Iterator[list[Any]]:
    """Cut candidates, each with its place in the order of ids, where that order and theirs part."""
    run: list[Any] = []
    last = 0
    for id, place in found:
        if run and place < last:
            yield run
            run = []
        run.append(id)
        last = place
    if run:
        yield run
