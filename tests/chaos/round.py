"""Run one cell under one fault, once: the same seed does the same again, as far as time allows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos.cells import Cell
from tests.chaos.check import Breach, check
from tests.chaos.faults import Fault
from tests.chaos.field import Field
from tests.chaos.history import History
from tests.proxy import Proxy


def run(
    fault: Fault, cell: Cell, seed: int, folder: Path, server: Any, patience: float = 1, hits: int | None = None
) -> tuple[History, list[Breach]]:
    """Load a cell, hit it, let it come to an end, and judge; `patience` stretches the bounds on a busy machine."""
    with ExitStack() as stack:
        field = Field(cell, seed, folder, server, patience, **fault.settings)
        stack.callback(field.abandon)
        if fault.through_proxy:
            proxy = stack.enter_context(Proxy.of(field.site.dsn))
            field.settings |= {"proxy": proxy, "dsn": proxy.dsn(field.site.dsn)}
        field.past.bound = fault.bound * patience
        for _ in range(fault.replicas if cell.may_share else 1):
            field.feed()
            field.start()
        for _ in range(hits or fault.hits):
            fault.hit(field)
        field.drain()
        history = field.close()
    return history, check(history)
