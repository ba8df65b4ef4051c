"""Remember rows that the database does not let be claimed (a trigger refuses or swallows the write), and claim around them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, TypeVar

from shardrun.db.store import Settlement, Verb
from shardrun.errors import ShardrunError, StatementFailed

SECONDS = 60.0
"""How long such a row is left out of claims. Larger: a mended one waits longer; smaller: more claims that fail."""

MOST = 1000
"""Rows remembered at a time; more would make every claim slow."""

MOST_NAMED = 10_000
"""Rows that are known to have been named. Larger: more memory; smaller: the log names a row again sooner."""

log = logging.getLogger("shardrun")

Row = TypeVar("Row")


class Avoided:
    """The rows of one subscription that claims leave out for a while; each is named in the log once, or seldom."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._until: dict[Any, float] = {}
        self._named: dict[Any, None] = {}  # in the order of their naming

    def ids(self) -> list[Any]:
        """List the rows to leave out now."""
        if not self._until:
            return []
        now = monotonic()
        self._until = {id: until for id, until in self._until.items() if until > now}
        return list(self._until)

    def add(self, id: Any, why: str) -> None:
        """Leave a row out for a while."""
        if len(self._until) < MOST:
            self._until[id] = monotonic() + SECONDS
        if id not in self._named:
            self._named[id] = None
            if len(self._named) > MOST_NAMED:
                del self._named[next(iter(self._named))]
            log.error(
                "%s row %s: it cannot be claimed: %s. It is left alone, and tried again later.", self._name, id, why
            )

    def refused(self, id: Any, error: ShardrunError) -> None:
        """Leave a row out that the database refuses to write."""
        self.add(id, str(error).rstrip("."))

    def unsettled(self, settlements: Iterable[Settlement], error: ShardrunError) -> None:
        """Leave rows out whose settlements are refused; after an ack or a drop they are tried as failed attempts."""
        for one in settlements:
            if one.verb not in (Verb.ACK, Verb.DROP):
                self.refused(one.id, error)

    def swallowed(self, id: Any) -> None:
        """Leave a row out whose lease the database did not write, without saying why."""
        self.add(id, "the database does not write its lease, so a trigger of the table must keep it from being updated")

    def around(self, ids: Sequence[Any], take: Callable[[Sequence[Any]], list[Row]]) -> list[Row]:
        """Claim these rows by halves, so that those that are refused hold up no other; all of them, or an error."""
        taken: list[Row] = []
        self._halve(ids, take, taken)
        return taken

    def around_apart(self, ids: Sequence[Any], take: Callable[[Sequence[Any]], list[Row]]) -> list[Row]:
        """Do the same where each `take` commits: an error after the first rows leaves the others for another claim."""
        taken: list[Row] = []
        try:
            self._halve(ids, take, taken)
        except ShardrunError as error:
            if not taken:
                raise
            log.warning("%s: a claim ended early, after %d rows: %s", self._name, len(taken), error)
        return taken

    def _halve(self, ids: Sequence[Any], take: Callable[[Sequence[Any]], list[Row]], taken: list[Row]) -> None:
        if not ids:
            return
        try:
            taken += take(ids)
        except StatementFailed as error:
            if len(ids) == 1:
                self.refused(ids[0], error)
                return
            half = len(ids) // 2
            self._halve(ids[:half], take, taken)
            self._halve(ids[half:], take, taken)
