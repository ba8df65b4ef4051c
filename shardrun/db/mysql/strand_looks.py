"""Look at strands on MySQL and MariaDB, without locks, and guard them; see `strands`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from shardrun.db.avoided import Avoided
from shardrun.db.mysql import driver, lists, strands_sql
from shardrun.db.mysql.candidates import NO_SUCH_INDEX
from shardrun.db.mysql.driver import Connection
from shardrun.db.statement import Statement
from shardrun.db.strands import Seen
from shardrun.db.table import Layout
from shardrun.errors import ShardrunError, StatementFailed

PIECE = 64
"""Strands that one statement asks for by name, and that are guarded at a time. Larger: fewer round trips; longer statements."""

MORE = 16
"""Pairs that a look reads beyond its strands, some of which have several. Larger: more read in vain; smaller: more looks."""

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
