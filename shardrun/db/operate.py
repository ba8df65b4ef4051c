"""What operators ask of a database beside a row's journey: counts of a queue, sessions, dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shardrun.db.table import Layout

Connection = Any
"""The driver's connection, opened by `Database.connect`."""

MOST = 100_000
"""Rows that a count tells at most. Larger: a more exact count, read by a longer scan."""

LOOKED = 110_000
"""Rows that a count looks at: so many more than MOST may be in work among due ones before a count tells less than MOST."""

LEVELS = 1_000
"""Priorities that counts step through. Larger: exact for more of them; each costs a few looks into the index."""

BATCH = 1_000
"""Dead letters that one transaction moves or deletes. Larger: fewer round trips, locks that are held for longer."""

ERRORS = 50
"""Errors that a list of dead letters shows, the most frequent first."""


STRANDS = 10_000
"""Groups or keys that a look for blocked ones visits. Larger: blocked ones are found behind more others, by a longer look."""

NAMED = 10
"""Blocked groups or keys that are told in full: those whose rows have failed most often."""


class Count(NamedTuple):
    """A count of rows; `more` says that counting stopped at a bound, so that there may be more."""

    number: int
    more: bool = False


class Blocking(NamedTuple):
    """A row that has failed and is put off, and so keeps its group or key waiting; `seconds` until it is tried again.

    `tried` is when it was last known to be in work (UTC, `2025-11-30 10:02:11`), where its lease tells.
    """

    strand: str
    id: Any
    attempt: int
    seconds: float
    tried: str | None
    error: str | None


class Blocked(NamedTuple):
    """Groups or keys that a failed row keeps waiting; `more` says that not all of the table was looked at."""

    listed: Sequence[Blocking]
    number: int
    more: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """What a queue holds for one subscription; None is what its columns cannot tell."""

    due: Count
    in_work: Count | None
    later: Count | None
    dead: Count | None
    oldest: float | None  # seconds since the oldest due time of a free row; rows without a due time have no age
    indexed: bool  # False where no index serves the claim: the counts are of LOOKED rows at one end of the table
    blocked: Blocked | None = None  # None also where rows have no order over replicas


class Sessions(NamedTuple):
    """A server's connections but for this one: its limit, how many are in use, and the names of shardrun's own.

    `here` are those of them that are in this database. Both are None where the server keeps no names.
    """

    limit: int
    in_use: int
    ours: Sequence[str] | None
    here: Sequence[str] | None


class Failure(NamedTuple):
    """Dead letters of one error: how many, first and last due time (UTC, `2025-11-30 10:02:11`), and one of their ids."""

    error: str | None
    rows: int
    first: str | None
    last: str | None
    example: Any


@dataclass(frozen=True, slots=True)
class Failures:
    """Dead letters by error, the most frequent first; `more` says that only LOOKED of them were read."""

    listed: Sequence[Failure]
    errors: int
    rows: int
    more: bool


class Moved(NamedTuple):
    """A dead letter that was put back; `key` is equal exactly where the database calls partition keys equal."""

    id: Any
    key: Any


class DeadLetters(Protocol):
    """The dead letters of one subscription. Every filter by `error` keeps those whose last_error contains it."""

    @property
    def knows_errors(self) -> bool:
        """Tell whether there is a last_error to filter by."""

    def id_of(self, text: str) -> Any:
        """Read an id as a person writes it; raises `UsageProblem`."""

    def failures(self, connection: Connection, error: str | None) -> Failures:
        """Group them by error."""

    def choose(self, connection: Connection, error: str | None, ids: Sequence[Any] | None, limit: int) -> list[Any]:
        """Read the ids of up to `limit` of them, of `ids` only where those are given."""

    def stuck(self, connection: Connection, ids: Sequence[Any]) -> set[Any]:
        """Tell which of these would be left: their id is in the queue again, or a handler of the group holds them."""

    def requeue(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Moved]:
        """Put these back into the queue in one transaction: id and last_error kept, no attempt spent, due and free."""

    def purge(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Any]:
        """Delete these in one transaction; returns the ids of those that were there, and held by no one."""

    def waiting(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are rows of the queue that are not finished, held or not."""

    def idle(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are such rows and held by no one."""

    def park(self, connection: Connection, ids: Sequence[Any], reason: str) -> list[Any]:
        """Move those of these rows of the queue that no one holds to the dead letters, in one transaction."""


Looked = tuple[int, int, int, bool, bool]
"""Rows looked at, held ones among them, later ones, and whether the looks at due and at later rows ended at their bounds."""


def counts_of(
    layout: Layout, looked: Looked, dead: Sequence[Any] | None, oldest: float | None, indexed: bool
) -> Counts:
    """Turn what was looked at into counts that stop at MOST; `dead` is a count of dead letters, and whether it is less."""
    seen, held, later, due_more, later_more = looked
    free = seen - held
    return Counts(
        due=Count(min(free, MOST), due_more or free > MOST),
        in_work=Count(min(held, MOST), due_more or held > MOST) if "locked_until" in layout.roles else None,
        later=Count(min(later, MOST), later_more or later > MOST) if "retry_after" in layout.roles else None,
        dead=None if dead is None else Count(int(dead[0]), bool(dead[1])),
        oldest=oldest,
        indexed=indexed,
    )


def blocked_of(rows: Sequence[Any]) -> Blocked:
    """Read blocked groups or keys, each beside their number and whether the look ended at its bound."""
    listed = [
        Blocking(str(row[2]), row[3], int(row[4]), float(row[5]), row[6], row[7]) for row in rows if row[3] is not None
    ]
    return Blocked(listed, int(rows[0][0]), bool(rows[0][1]))


def failures_of(rows: Sequence[Any]) -> Failures:
    """Read dead letters by error, each beside the number of errors and that of rows that were looked at."""
    errors, seen = (int(value) for value in rows[0][5:]) if rows else (0, 0)
    return Failures([Failure(*row[:5]) for row in rows], errors, seen, seen == LOOKED)
