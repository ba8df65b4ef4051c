"""What the coordinator asks of a store whose rows are only offered: a child takes each by a lock of its own session.

An offered row is held by nobody. Its token is a stamp: it tells whether the row is still as it was offered. Whoever takes the
row locks it first and compares; a row that was changed meanwhile, in whatever column, is offered anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from shardrun.db.locks import Choose
from shardrun.db.settling import with_acks
from shardrun.db.store import NONE_ACKED, Acked, Claimed, Connection, Settlement, Store, Token

Ids = Sequence[Any]
"""Ids of rows."""


class OfferStore(Store, Protocol):
    """The statements of one subscription whose rows are taken by children, under row locks or locks on keys."""

    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read up to `limit` due rows that nobody has locked at this moment, in claim order, and hold none of them.

        Without those whose lane key is in `full_keys`, and those of the ids that are `offered` now, or `resting`. Attempts
        are counted in what is returned only.
        """

    def settle_offered(self, connection: Connection, settlement: Settlement) -> Token | None:
        """Take a row that still carries its token, write its settlement, commit; waits for nobody.

        Returns the token that it carries from then on, or "" where it has none; None where the row was changed or is taken.
        """


class Offering(ABC):
    """What such a store does in the same way on every database."""

    @abstractmethod
    def offer(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], offered: Ids, resting: Ids
    ) -> list[Claimed]:
        """Read rows that are to be taken."""

    @abstractmethod
    def settle_offered(self, connection: Connection, settlement: Settlement) -> Token | None:
        """Write a settlement of a row that is still as it was offered."""

    def claim(
        self,
        connection: Connection,
        limit: int,
        full_keys: Sequence[Any],
        choose: Choose | None = None,  # noqa: ARG002
    ) -> list[Claimed]:
        """Offer rows, whichever are offered already."""
        return self.offer(connection, limit, full_keys, (), ())

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,  # noqa: ARG002 - a repeat finds the row changed
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements one by one, of rows that are still as they were offered."""
        every = with_acks(settlements, acked)
        return {one.id for one in every if self.settle_offered(connection, one) is not None}
