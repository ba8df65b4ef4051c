"""Claim rows strand by strand on MySQL and MariaDB; see db/strands.py.

A strand's guard is a named lock of the session, taken without waiting, and let go of behind the COMMIT on every way out; a
session that has ended has none. Its name is a hash of the table's name and of the strand's canonical bytes, so that values
which the collation calls equal share it (R16).

    look (no locks) -> guard -> look again, in a new statement -> lock by id -> write -> commit -> let go

To look again under the guard is enough, without locks on what was looked at. Whoever claims a row of the strand has its guard,
so that none of it comes into work before this claim has committed. What else may change meanwhile are settlements, and rows
of users. A settlement that lets go of a row, or puts it off, finds the strand taken for not free; or the lease had run out,
and it is the very row that is locked here, where each condition is checked again. Of a key's rows this replica holds those in
front, and claims nothing behind one that goes back (R6). Rows that users add, or that commit late with smaller ids, come
behind what is claimed by then, as if they had come a moment later. Only a late holder's extension may bring a second begun
row of a group back into work, which a lock here would merely delay: that holder was paused for longer than its lease (R14).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardrun.db.avoided import Avoided
from shardrun.db.mysql import driver, locks_sql, sql, strands_sql
from shardrun.db.mysql.claims import Claims, Row
from shardrun.db.mysql.driver import COMMIT, Connection
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.mysql.locks import RowLockStore
from shardrun.db.mysql.store import MysqlStore
from shardrun.db.mysql.strand_looks import PIECE, Look, Looks, Rows, guard, guards, try_a_guard
from shardrun.db.speaking import with_bodies
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed, Settlement
from shardrun.db.strands import Seen, Stranded, Strands
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError, StatementFailed

KEYS = 16
"""Keys that are guarded at a time under `key_scope="cluster"`, where a key gives more than one row."""

FEWEST_OF_ONE = 4
"""Rows that one claim may take from each of many keys. Larger: other keys wait for longer; smaller: more claims."""

log = logging.getLogger("shardrun")


class StrandClaims(Claims):
    """Claims of rows that were chosen under their strands' guards."""

    def __init__(self, layout: Layout, name: str, fetch: Fetch | None) -> None:
        super().__init__(layout, name, fetch)
        self._take = sql.take(layout, self._reads_again, of_strands=True)
        self._strands_of = strands_sql.strands_of(layout)
        self._chosen: Mapping[Any, list[Any]] = {}
        self._commits_at_once = not layout.table.rewrites

    @property
    def avoided(self) -> Avoided:
        """Give the rows that the database does not let be claimed: nothing behind them is claimed, either."""
        return self._avoided

    def statements(self) -> list[Statement]:
        """List every statement of a claim but its looks."""
        every = [self._take, self._strands_of, self._claim]
        return [*every, self._claimed] if self._reads_again else every

    def take(self, connection: Connection, chosen: Mapping[Any, list[Any]]) -> list[Claimed]:
        """Take rows, given in order by the canonical forms of their strands: of each strand those before the first failure."""
        self._chosen = chosen
        ids = [id for some in chosen.values() for id in some]
        try:
            return self._take_rows(connection, ids, len(ids))[0] if ids else []
        except StatementFailed:
            return [row for some in chosen.values() for row in self._one_by_one(connection, some)]

    def _one_by_one(self, connection: Connection, ids: Sequence[Any]) -> Iterator[Claimed]:
        for id in ids:
            taken = self._avoided.around([id], lambda some: self._take_rows(connection, some, 1)[0])
            if not taken:
                return
            yield from taken

    def _lock(self, connection: Connection, ids: Sequence[Any]) -> Mapping[Any, Row]:
        """Lock rows, and drop those that are not of their strand any more, and what follows a row that could not be locked."""
        begin = driver.beginning(self._layout.isolation)
        lock, look = (self._take, {**self._group, "ids": list(ids)}), (self._strands_of, {"ids": list(ids)})
        found, now = driver.run_together(connection, [*begin, lock, look])[-2:]
        locked, strand_of = {row[0]: row for row in found.fetchall()}, dict(now.fetchall())
        kept: dict[Any, Row] = {}
        for canonical, some in self._chosen.items():
            for id in (id for id in some if id in ids):
                if id not in locked or strand_of.get(id) != canonical:
                    break
                kept[id] = locked[id]
        return kept

    def _leased(self, chosen: list[Any], locked: Mapping[Any, Row], last: Any) -> dict[Any, Row]:
        rows = super()._leased(chosen, locked, last)
        if len(rows) < len(chosen) and len(chosen) > 1:
            raise StatementFailed("a trigger keeps a lease from being written.")  # what follows it must not be claimed
        return rows


class MysqlStrandStore(MysqlStore, Stranded):
    """The statements of one subscription whose rows carry a lease and whose claims go by strands."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._strand_claims = StrandClaims(layout, name, fetch)
        self._looks = Looks(layout, self._strand_claims.avoided)
        self._name = name
        self._strand_of: dict[Any, Any] = {}
        self.strands = Strands(self)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        guards = [strands_sql.guard(1), strands_sql.UNLOCK]
        return [*self._looks.statements(), *self._strand_claims.statements(), *guards, *super().statements()]

    def prepare(self, connection: Connection) -> int:
        """Have the server prepare every statement, and guard a name and let it go: clusters have no such locks."""
        count = super().prepare(connection)
        with self._declared():
            try_a_guard(connection)
        return count

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look at `these` strands, and at the `visits` next ones behind `after`."""
        return self._looks.look(connection, these, after, visits, full_keys, held)

    def take(self, connection: Connection, strands: Sequence[Any], limit: int, held: Collection[Any]) -> list[Claimed]:
        """Guard strands, look at them again, and claim up to `limit` rows in all; what was taken by an error is given."""
        rows: list[Claimed] = []
        self._strand_of = {}
        try:
            with guards(connection):
                self._take(connection, self._looks.known(strands), limit, held, rows)
        except ShardrunError as error:
            if not rows:
                raise
            log.warning("%s: a claim ended early, after %d rows: %s", self._name, len(rows), error)
        return rows

    def strand_of(self, row: Claimed) -> Any:
        """Give the strand of a row that `take` returned."""
        return self._strand_of[row.id]

    def _take(
        self, connection: Connection, wanted: list[Look], limit: int, held: Collection[Any], rows: list[Claimed]
    ) -> None:
        while wanted and len(rows) < limit:
            left = limit - len(rows)
            count = min(left, PIECE if self.layout.is_fifo else KEYS)
            guarded = guard(connection, wanted[:count])
            wanted = wanted[count:]
            chosen = self._choose(connection, guarded, left, held)
            strand_of = {id: one.strand for one in guarded for id in chosen.get(one.canonical, ())}
            taken = self._strand_claims.take(connection, chosen)
            self._strand_of |= {row.id: strand_of[row.id] for row in taken}
            rows += taken

    def _choose(
        self, connection: Connection, guarded: list[Look], limit: int, held: Collection[Any]
    ) -> dict[Any, list[Any]]:
        if self.layout.is_fifo:
            return self._heads(connection, guarded)
        return self._prefixes(connection, guarded, limit, held)

    def _heads(self, connection: Connection, guarded: list[Look]) -> dict[Any, list[Any]]:
        """Look again which row of each FIFO group comes next."""
        names = {one.canonical for one in guarded}
        avoided = self._strand_claims.avoided.ids()
        chosen: dict[Any, list[Any]] = {}
        for looks in self._looks.by_name(connection, [one.strand for one in guarded], ()):
            head = self._looks.head(looks)
            if head is not None and head not in avoided and looks[0].canonical in names:
                chosen[looks[0].canonical] = [head]
        return {one.canonical: chosen[one.canonical] for one in guarded if one.canonical in chosen}

    def _prefixes(
        self, connection: Connection, guarded: list[Look], limit: int, held: Collection[Any]
    ) -> dict[Any, list[Any]]:
        """Look again which rows of each key come next: up to the first that is neither free nor held by this replica."""
        ours, avoided = set(held), set(self._strand_claims.avoided.ids())
        chosen: dict[Any, list[Any]] = {}
        prefixes = self._looks.prefixes(connection, [one.strand for one in guarded])
        most = max(FEWEST_OF_ONE, 2 * limit // max(len(guarded), 1))
        for one, rows in zip(guarded, prefixes, strict=True):
            some = chosen[one.canonical] = _prefix(rows, ours, avoided)[: min(most, limit)]
            limit -= len(some)
        return chosen


def _prefix(rows: Rows, ours: set[Any], avoided: set[Any]) -> list[Any]:
    some: list[Any] = []
    for id, is_free in rows:
        if is_free and id not in avoided:
            some.append(id)
        elif id not in ours:
            break
    return some


class FifoLockStore(RowLockStore, Stranded):
    """The same where a transaction holds the one row of its FIFO group: the guard goes with it, until that has ended."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch, name)
        self._end = [(COMMIT, {}), (strands_sql.UNLOCK, {})]
        self._looks = Looks(layout, self._avoided)
        self._strands_of = strands_sql.strands_of(layout)
        self._guard_of = strands_sql.guard_of(layout)
        self._strand_of: dict[Any, Any] = {}
        self.strands = Strands(self)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        guards = [
            locks_sql.lock_first(1),
            locks_sql.UNLOCK_ONE,
            strands_sql.UNLOCK,
            strands_sql.guard(1),
            self._guard_of,
        ]
        return [*self._looks.statements(), self._strands_of, *guards, *super().statements()]

    def prepare(self, connection: Connection) -> int:
        """Have the server prepare every statement, and guard a name and let it go: clusters have no such locks."""
        count = super().prepare(connection)
        with self._declared():
            try_a_guard(connection)
        return count

    def claim_strands(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], held: Collection[Any]
    ) -> list[Claimed]:
        """Take the row of one group, or of none; its guard and its lock stay."""
        of_strands = super().claim_strands
        return self._or_let_go(connection, lambda: of_strands(connection, limit, full_keys, held))

    def let_go(self, connection: Connection) -> None:
        """Roll back what is open, and let go of the guard."""
        super().let_go(connection)
        driver.run(connection, strands_sql.UNLOCK, {})
        connection.names_held = {}

    def look(
        self,
        connection: Connection,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look at `these` strands, and at the `visits` next ones behind `after`."""
        return self._looks.look(connection, these, after, visits, full_keys, held)

    def take(
        self,
        connection: Connection,
        strands: Sequence[Any],
        limit: int,  # noqa: ARG002 - a connection holds one row
        held: Collection[Any],  # noqa: ARG002 - the guards tell
    ) -> list[Claimed]:
        """Guard the first group that is free, look at it again, and lock its next row; else the next one."""
        looks, self._strand_of = self._looks.known(strands), {}
        while some := looks[:PIECE]:
            names = {f"name{place}": look.guard for place, look in enumerate(some)}
            place: int | None = driver.run(connection, locks_sql.lock_first(len(some)), names).fetchone()[0]
            if place is None:
                looks = looks[PIECE:]
            elif rows := self._take_guarded(connection, some[place]):
                return rows
            else:
                driver.run(connection, locks_sql.UNLOCK_ONE, {"name": some[place].guard})
                looks = looks[place + 1 :]
        return []

    def strand_of(self, row: Claimed) -> Any:
        """Give the strand of a row that `take` returned."""
        return self._strand_of[row.id]

    def _take_guarded(self, connection: Connection, wanted: Look) -> list[Claimed]:
        head = next(map(self._looks.head, self._looks.by_name(connection, [wanted.strand], ())), None)
        if head is None or head in self._avoided.ids():
            return []
        rows = self._held(connection, [[head]], 1)
        now = dict(driver.run(connection, self._strands_of, {"ids": [head]}).fetchall()) if rows else {}
        if now.get(head) != wanted.canonical:
            super().let_go(connection)  # the next look is no part of a transaction
            return []
        connection.names_held = {head: wanted.guard}
        self._strand_of = {head: wanted.strand}
        return with_bodies(connection, self._fetch, rows)

    def _first_free(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], left_out: Sequence[Any] = ()
    ) -> list[Claimed]:
        """Lock rows of no group; one that has got one since it was looked at has no guard, and is not taken."""
        rows = super()._first_free(connection, limit, full_keys, left_out)
        if all(row.group is None for row in rows):
            return rows
        self.let_go(connection)
        return []

    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        if not (connection.holds_rows or connection.names_held or self._guard_again(connection, settlements)):
            return set()
        effective = super()._write(connection, settlements, keeps)
        connection.names_held = connection.names_held if keeps else {}
        return effective

    def _guard_again(self, connection: Connection, settlements: Sequence[Settlement]) -> bool:
        """Guard the groups of rows that were let go of; False where another has one, and so may have the row."""
        for one in settlements:
            for (name,) in driver.run(connection, self._guard_of, {"id": one.id}).fetchall():
                if name is None:
                    continue
                if driver.run(connection, strands_sql.guard(1), {"name0": name}).fetchone() != (1,):
                    return False
                connection.names_held = {**connection.names_held, one.id: name}
        return True
