"""What a child asks of a database for a delivery in a transaction: take the row, settle it beside the handler's writes.

    take -> savepoint -> the handler's writes -> keep or undo them, settle the row -> commit

The row is locked by the child's own session from the take to the end, and carries the lease's token all that time. The
savepoint is released or gone back to at the end: where it is not there any more, somebody has ended the transaction.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from shardrun.db.store import Connection, Settlement, Token
from shardrun.db.table import Column, Layout
from shardrun.errors import Conflict, ShardrunError
from shardrun.policy.verbs import Verb

SAVEPOINT = "shardrun_delivery"
"""Name of the savepoint that is set when a row is taken."""


LOCKED_PAUSE = 0.02
"""Seconds between tries to lock a row that someone else has locked. Smaller: more statements while it is. Larger: a lane
stands still for longer than it must."""


class Fate(enum.Enum):
    """What became of a row whose transaction may have been committed: its verb, where that can be told."""

    HELD = None  # nothing was committed: the row carries the token
    DONE = Verb.ACK  # it is gone, or finished: acked, or dropped
    FREE = Verb.RETRY  # it went back: retried, or snoozed
    DEAD = Verb.BURY  # it is among the dead letters
    LOST = Verb.RELEASE  # it carries another's token, or a delay that stands where the token stood and looks like one


class TransactionEnded(ShardrunError):
    """The delivery's transaction was ended by something else than its settlement."""


class Taking(Protocol):
    """Rows of one subscription in transactions of a child; errors are those of `Store`.

    Where anything but `take` raises, a transaction may be left open: `abandon` it.
    """

    def take(self, connection: Connection, id: Any, token: Token, patience: float) -> bool:
        """Begin, lock the row while it carries the token, set the savepoint; where it does not, leave nothing open.

        Waits for whoever has locked the row, up to `patience` seconds, then raises `Conflict`.
        """

    def take_also(self, connection: Connection, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Lock more rows in the transaction that `take` began, those of them that can be had at once; returns their ids.

        Where keys are locked, the transaction may begin again behind that; `Conflict` where its first row is lost by it.
        """

    def settle(self, connection: Connection, settlement: Settlement, keep: bool) -> bool:
        """Keep what was written since the take, or undo it, and write the settlement beside it; False if it changed nothing.

        Raises `TransactionEnded` where the transaction is not the one that was begun.
        """

    def settle_also(self, connection: Connection, settlement: Settlement) -> bool:
        """Write the settlement of another row of the transaction, after the first; False if it changed nothing."""

    def commit(self, connection: Connection) -> None:
        """Commit; `ConnectionLost` leaves that in doubt, and `fate` tells."""

    def abandon(self, connection: Connection) -> None:
        """Roll back whatever is open, quietly; a connection that cannot do that is closed."""

    def fate(self, connection: Connection, id: Any, token: Token) -> Fate:
        """Tell what became of a row, by a locking look in a transaction of its own (R1).

        Raises `Conflict` while the session that had locked it lives on.
        """

    def lend(self, connection: Connection, what: str | None) -> None:
        """Refuse to commit, roll back or close the connection from now on, or no more (None); `what` names the row."""


def patiently(take: Callable[[], bool], patience: float) -> bool:
    """Try to take a row, by statements that wait for nobody, until nobody has it locked; after `patience` raise `Conflict`."""
    until = time.monotonic() + patience
    while True:
        try:
            return take()
        except Conflict:
            if time.monotonic() + LOCKED_PAUSE > until:
                raise
        time.sleep(LOCKED_PAUSE)


def described(layout: Layout) -> Any:
    """Write a layout down as plain values, for a child."""
    return msgspec.to_builtins(layout)


def layout_of(description: Any, kind: type[Column]) -> Layout:
    """Read a layout that was written down; `kind` is what its database's catalogue makes of columns."""

    def columns(found: Any) -> dict[str, Column]:
        return {name: msgspec.convert(column, kind) for name, column in found.items()}

    layout = msgspec.convert(description, Layout)
    table = replace(layout.table, columns=columns(description["table"]["columns"]))
    dead = layout.dead and replace(layout.dead, columns=columns(description["dead"]["columns"]))
    return replace(layout, table=table, dead=dead, roles=columns(description["roles"]))


class Guarded:
    """What a child's connection has beside the driver's: while it is a delivery's transaction, it is not the handler's to end."""

    transaction_of: str | None = None

    def commit(self) -> Any:
        """Commit, where it may."""
        self._check(".commit()")
        return super().commit()  # type: ignore[misc]

    def rollback(self) -> Any:
        """Roll back, where it may."""
        self._check(".rollback()")
        return super().rollback()  # type: ignore[misc]

    def close(self) -> Any:
        """Close, where it may."""
        self._check(".close()")
        return super().close()  # type: ignore[misc]

    def __enter__(self) -> Any:
        """Begin a block whose end would commit, or close."""
        self._check("`with delivery.tx`")
        return super().__enter__()  # type: ignore[misc]

    def _check(self, call: str) -> None:
        if self.transaction_of is not None:
            raise RuntimeError(
                f"the transaction of {self.transaction_of} is committed by shardrun when the handler returns; remove {call}, "
                "or use delivery.connection()."
            )


def ended(how: str) -> TransactionEnded:
    """Say that a transaction was ended behind our back."""
    return TransactionEnded(
        f"the delivery's transaction was ended inside the handler ({how}): what it committed stays, and the row is not "
        "acked. Leave COMMIT and ROLLBACK to shardrun, or use delivery.connection()."
    )


ABORTED = (
    "a statement in the delivery's transaction failed and the handler passed over it, so that nothing can be committed. Let the "
    "error out, or run that statement in a savepoint."
)
