"""Claim rows strand by strand on MySQL and MariaDB; see db/strands.py.

A strand's guard is a named lock of the session, taken without waiting, and let go of behind the COMMIT on every way out; a
session that has ended has none. Its name is a hash of the table's name and of the strand's canonical bytes, so that values
which the collation calls equal share it (R16).

    look (no locks) -> guard -> look again, in a new statement -> lock by id -> write -> commit -> let go

To look again under the guard is enough, without locks on what was looked at: whoever claims a row of the strand has its guard,
so that no other row of it comes into work before this claim has committed. What else may change it are settlements, and
users. A settlement lets go of its row, or puts it off: then it was held when we looked, and the strand was not free; or its
lease had run out, and it is the very row that we lock, where each condition is checked again. Rows that users add, or
that commit late with smaller ids, stand behind what is claimed by then, as those that come a moment later do. A holder that
is late may extend the lease that ran out, of another begun row, which no lock would keep it from: it is paused, and its
settlement will be refused, or it was there before (R14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from shardrun.db.avoided import Avoided
from shardrun.db.mysql import driver, lists, sql, strands_sql
from shardrun.db.mysql.candidates import NO_SUCH_INDEX
from shardrun.db.mysql.claims import Claims, Row
from shardrun.db.mysql.driver import Connection
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.mysql.store import MysqlStore
from shardrun.db.statement import Statement
from shardrun.db.store import Claimed
from shardrun.db.strands import Seen, Stranded, Strands
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError, StatementFailed

PIECE = 64
"""Strands that one statement asks for by name, and that are guarded at a time. Larger: fewer round trips; longer statements."""

KEYS = 16
"""The same under `key_scope="cluster"`, where a key gives more than one row."""

MORE = 64
"""Pairs that a look reads beyond its strands, some of which have several. Larger: more read in vain; smaller: more looks."""

log = logging.getLogger("shardrun")

NO_LIMIT = 2**31
"""More rows than there are: a LIMIT keeps the servers from merging a subquery, and from asking its questions several times."""

Rows = Sequence[tuple[Any, ...]]


class Look(NamedTuple):
    """What a look tells of a pair: a strand, and a count of attempts."""

    strand: Any
    canonical: Any
    guard: str
    is_held: bool
    last_due: Any  # in how many seconds the last of its begun rows falls due, if any is put off
    first: Any  # the id of its first row
    first_is_held: bool
    first_due: Any  # in how many seconds, if it has a due time


class Looks:
    """The looks at strands of one subscription, without locks."""

    def __init__(self, layout: Layout, avoided: Avoided) -> None:
        self.layout = layout
        self._avoided = avoided
        self._is_free = False
        self._group = {"group": layout.group}
        self._known: dict[Any, Look] = {}  # of the strands that the last look has seen

    def statements(self) -> list[Statement]:
        """List the statements, those for several strands with one."""
        writers = [strands_sql.prefix] if not self.layout.is_fifo else []
        walks = [strands_sql.walk(self.layout, behind) for behind in (False, True)]
        return [*walks, strands_sql.these(self.layout, 1), *(write(self.layout) for write in writers)]

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
        self._known = {}
        full, avoided = set(full_keys), set(self._avoided.ids())
        left = [self._seen(looks, full, avoided) for looks in self.by_name(connection, these, held)]
        walked: list[Seen] = []
        while len(walked) < visits:
            found, is_last = self._next(connection, after, visits - len(walked) + MORE, held)
            walked += [self._seen(looks, full, avoided) for looks in found]
            if is_last:
                break
            after = walked[-1].strand
        return left, walked[:visits]

    def known(self, strands: Sequence[Any]) -> list[Look]:
        """Give what the last look has told of some strands, each once, however its value is spelt."""
        looks = [self._known[strand] for strand in strands if strand in self._known]
        return list({look.canonical: look for look in looks}.values())

    def by_name(self, connection: Connection, strands: Sequence[Any], held: Collection[Any]) -> list[list[Look]]:
        """Look at some strands; those that have no row are not told."""
        found: list[list[Look]] = []
        for piece in lists.pieces(strands, PIECE):
            values = {f"strand{place}": strand for place, strand in enumerate(piece)}
            values |= {**self._values(held), "strands": piece, "limit": NO_LIMIT}
            write = partial(strands_sql.these, self.layout, len(piece))
            found += _by_strand(self._read(connection, write, [values])[0])
        return found

    def prefixes(self, connection: Connection, strands: Sequence[Any]) -> list[Rows]:
        """Read the first rows of each of some keys, in order, and which of them are free and due."""
        write = partial(strands_sql.prefix, self.layout)
        return self._read(connection, write, [{"strand": strand} for strand in strands])

    def head(self, looks: Sequence[Look]) -> Any | None:
        """Find the row of a FIFO group that comes next; None while one is held or put off, and where none is due."""
        if any(look.is_held or look.last_due is not None for look in looks):
            return None
        return next((one.first for one in looks if one.first is not None and not (one.first_due or 0) > 0), None)

    def _read(
        self, connection: Connection, write: Callable[[bool], Statement], values: Sequence[Mapping[str, Any]]
    ) -> list[Rows]:
        """Read along the claim's index, or as the server likes where that is gone: a statement for each of the values."""
        try:
            return self._rows(connection, write(self._is_free), values)
        except StatementFailed as error:
            if driver.code_of(error.__cause__ or error) != NO_SUCH_INDEX:
                raise
        self._is_free = True
        return self._rows(connection, write(True), values)

    def _rows(self, connection: Connection, statement: Statement, values: Sequence[Mapping[str, Any]]) -> list[Rows]:
        answers = lists.together(connection, [(statement, {**self._group, **each}) for each in values])
        return [answer.fetchall() for answer in answers]

    def _next(
        self, connection: Connection, after: Any | None, page: int, held: Collection[Any]
    ) -> tuple[list[list[Look]], bool]:
        """Look at the next strands, and tell whether they are the last; one whose pairs are cut off is left for the next look."""
        while True:
            values = {**self._values(held), "after": after, "limit": page}
            (rows,) = self._read(connection, partial(strands_sql.walk, self.layout, after is not None), [values])
            found = _by_strand(rows)
            if len(rows) < page:
                return found, True
            if len(found) > 1:
                return found[:-1], False
            page *= 4

    def _seen(self, looks: list[Look], full: set[Any], avoided: set[Any]) -> Seen:
        first = looks[0]
        self._known[first.strand] = first
        if not self.layout.is_fifo:
            return self._seen_key(looks, first.canonical in full, avoided)
        head = self.head(looks)
        waits = [one.last_due for one in looks if one.last_due is not None]
        seconds = float(max(waits)) if waits and not any(one.is_held for one in looks) else None
        return Seen(first.strand, head is not None and head not in avoided and first.canonical not in full, seconds)

    def _seen_key(self, looks: list[Look], is_full: bool, avoided: set[Any]) -> Seen:
        """Say whether the first row of a key that this replica does not hold is free."""
        first = next((look for look in looks if look.first is not None), looks[0])
        seconds = None if first.first_is_held else first.first_due
        is_due = not (first.first_due or 0) > 0
        is_free = first.first not in (None, *avoided) and not first.first_is_held and is_due and not is_full
        return Seen(looks[0].strand, is_free, None if is_due or seconds is None else float(seconds))

    def _values(self, held: Collection[Any]) -> dict[str, Any]:
        """List what this replica holds, as far as it fits: a key of which more are held looks as if it waited for them."""
        if self.layout.is_fifo:
            return {}
        return {"held": next(lists.pieces(list(held), len(held) + 1), [None])}


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
        for one, rows in zip(guarded, prefixes, strict=True):
            some = chosen[one.canonical] = _prefix(rows, ours, avoided)[:limit]
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


def _by_strand(rows: Rows) -> list[list[Look]]:
    looks = (Look(*row) for row in rows)
    return [list(some) for _, some in groupby(looks, lambda look: look.canonical)]


def guard(connection: Connection, looks: Sequence[Look]) -> list[Look]:
    """Guard those strands that nobody guards."""
    if not looks:
        return []
    names = {f"name{place}": look.guard for place, look in enumerate(looks)}
    answers = driver.run(connection, strands_sql.guard(len(looks)), names).fetchone()
    return [look for look, is_ours in zip(looks, answers, strict=True) if is_ours == 1]


@contextmanager
def guards(connection: Connection) -> Iterator[None]:
    """Let go of whatever guards the block has taken, also where it fails; a connection that cannot is closed."""
    try:
        yield
    finally:
        if driver.is_open(connection):
            try:
                driver.run(connection, strands_sql.UNLOCK, {})
            except ShardrunError:
                driver.close(connection)


def try_a_guard(connection: Connection) -> None:
    """Guard a name of this session's own, and let it go."""
    with guards(connection):
        driver.run(connection, strands_sql.guard(1), {"name0": f"shardrun-{connection.thread_id()}"})
