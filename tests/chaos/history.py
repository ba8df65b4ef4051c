"""What a round left behind: everything that the checker judges by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.cells import Cell
from tests.witness import Event

CONNECTION, STOP, CHILD_STOP, CRASH = "connection", "stop", "stop of a child", "crash"


class Window(NamedTuple):
    """A time in which a fault was in force, and the children that it hit; no `pids`: all of them."""

    what: str
    begin: float
    end: float
    pids: frozenset[int] | None = None


class Stopped(NamedTuple):
    """A replica that ended by a signal of ours: its exit code, and what it counted."""

    pid: int
    code: int
    counts: dict[str, int]


@dataclass
class History:
    """The end of one round. Rows are ids; `poison` are those that may never end well."""

    cell: Cell
    rows: set[int]
    events: list[Event]
    poison: set[int] = field(default_factory=set)
    most: int = 50
    timeout: float | None = None
    lease: float = 1.0
    left: int = 0
    dead: dict[int, int] = field(default_factory=dict)
    effects: dict[int, int] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)
    stopped: list[Stopped] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    bound: float = 1.0
    limit: int | None = None
    connections: dict[str, int] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
