"""Help users' own tests: a Delivery without a runtime, to call a decorated handler as the plain function that it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shardrun.delivery import Delivery


def delivery(
    *,
    id: Any = 1,
    key: Any = None,
    attempt: int = 1,
    headers: Any = None,
    group: str | None = None,
    draining: bool = False,
    connection: Any = None,
    tx: Any = None,
) -> Delivery:
    """Make a Delivery for a test: `render(Invoice(number=7), delivery(attempt=2))`.

    `connection` is a driver's connection that `delivery.connection()` lends: the block commits, or rolls back when it raises,
    as in a child; it stays open. Without one, `connection()` raises `RuntimeError`. `tx` is a driver's connection with a
    transaction of the test's own, which nothing here ends.
    """

    @contextmanager
    def lend() -> Iterator[Any]:
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    made = Delivery(id=id, key=key, attempt=attempt, headers=headers, group=group, is_draining=lambda: draining)
    made = replace(made, transaction=tx)
    return made if connection is None else replace(made, lend=lend)
