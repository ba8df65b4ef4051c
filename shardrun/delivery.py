"""What a handler may know of the row that it was given, and the connection that it may borrow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any


def _never() -> bool:
    return False


def _no_connection() -> AbstractContextManager[Any]:
    raise RuntimeError("this delivery was made without a connection; give it one: delivery(connection=...)")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A row on its way to a handler.

    `id` and `key` are the row's own values, `attempt` counts the attempts begun (the first delivery reads 1), `headers` is
    the decoded headers column, `group` the row's group.
    """

    id: Any
    key: Any = None
    attempt: int = 1
    headers: Any = None
    group: str | None = None
    queue: str = ""
    handler: str = ""
    lend: Callable[[], AbstractContextManager[Any]] = field(default=_no_connection, repr=False)
    is_draining: Callable[[], bool] = field(default=_never, repr=False)
    transaction: Any = field(default=None, repr=False)
    endings: list[Callable[[bool], None]] = field(default_factory=list, repr=False, compare=False)
    """Called before the transaction is settled, with whether it is to be kept; one that raises fails the attempt."""

    @property
    def draining(self) -> bool:
        """Tell whether the runtime has been asked to stop, so that a long handler may finish early."""
        return self.is_draining()

    def connection(self) -> AbstractContextManager[Any]:
        """Lend the child's own connection for a `with` block: the driver's object, with its own placeholders.

        The block commits, or rolls back when it raises. Waits at most 10 s for a connection, then raises `PoolTimeout`.
        """
        return self.lend()

    @property
    def tx(self) -> Any:
        """Give the driver's connection inside the delivery's transaction, which commits with the row's settlement.

        It must not be committed, rolled back or closed. A plain delivery has none: `RuntimeError`.
        """
        if self.transaction is not None:
            return self.transaction
        raise RuntimeError(
            f"delivery.tx exists only under @{self.queue or 'queue'}.handler(transactional=True); use delivery.connection()."
        )
