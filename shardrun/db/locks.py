"""What the coordinator asks of a store whose rows are held by a connection: a row lock, or a lock on the row's key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shardrun.db.avoided import Avoided
from shardrun.db.settling import with_acks
from shardrun.db.store import NONE_ACKED, Acked, Claimed, Connection, Settlement, Store, Verb
from shardrun.errors import StatementFailed

Choose = Callable[[list[Claimed]], list[Claimed]]
"""Keeps some of the rows that a claim has found."""


class LockStore(Store, Protocol):
    """The statements of one subscription whose claims and settlements of a row run on one and the same connection.

    `claim` takes rows and leaves them held by its connection: in a transaction that stays open, or by a lock of the session.
    It takes as many as one delivery has, and lets go of everything where it takes none. `settle` writes and lets go; where it
    raises `Conflict` or `StatementFailed` nothing was written, and settling again takes the row again first if it was let go
    (a row that another has taken meanwhile is lost). A RECOUNT keeps the row. Tokens are empty.
    """

    def claim(
        self, connection: Connection, limit: int, full_keys: Sequence[object], choose: Choose | None = None
    ) -> list[Claimed]:
        """Take up to `limit` rows, in claim order; of those, where `choose` is given, what it keeps."""

    def let_go(self, connection: Connection) -> None:
        """Let go of whatever the connection holds, nothing written."""


class Settles(ABC):
    """A store whose connection writes settlements and lets go of the rows that it held."""

    _avoided: Avoided

    @abstractmethod
    def _write(self, connection: Connection, settlements: Sequence[Settlement], keeps: bool) -> set[Any]:
        """Write settlements and let go of their rows, unless it `keeps` them; tells which took effect."""

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,  # noqa: ARG002 - what another connection may have written is never written again here
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write the settlements of a delivery and let go of it; a RECOUNT keeps it. Returns the ids that took effect."""
        every = with_acks(settlements, acked)
        try:
            return self._write(connection, every, all(one.verb is Verb.RECOUNT for one in every))
        except StatementFailed as error:
            self._avoided.unsettled(every, error)
            raise
