"""Decide what this replica holds: the lease book, one state machine per row.

    take -> WAITING -> hand_out -> RUNNING -> end -> ENDED -> settle -> SETTLING -> settled: gone
                ^--------- put_back ---'                            '-> kept (a recount): WAITING

A row for a transaction of its child's is TAKEN instead of RUNNING. It is handed out while its hold is SURE and never
extended from then on: the child takes it by the token that it was handed with, and then its row lock holds it (R3).

Beside its stage each row has a hold on its lease. Extension and settlement of a row never overlap: an extension leaves out
rows that are SETTLING, and a settlement waits until the hold is SURE. In doubt (the connection broke after an extension was
sent) the row carries any of `tokens` if it is still ours, and anything else means lost (R1). A lost row that runs stays in
the book, so that claiming it again adopts it and never delivers it a second time (R2).

Times are seconds on a clock that counts suspension; they are arguments, and so are the database's answers.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from typing import Any

EXTEND_BELOW = 0.6
"""Share of the lease left at which it is extended. Larger: more statements. Smaller: less time to ride out an outage."""


class Stage(enum.Enum):
    """Where the row is in this replica."""

    WAITING = enum.auto()  # in front of a lane
    RUNNING = enum.auto()  # handed to a child: running, or next in its lane
    TAKEN = enum.auto()  # handed to a child that holds it by a transaction of its own
    ENDED = enum.auto()  # how it ended is known, and not yet written
    SETTLING = enum.auto()  # the settlement is with the database, or in doubt


class Hold(enum.Enum):
    """How surely the row's lease is ours."""

    SURE = enum.auto()  # the row carries `token`
    EXTENDING = enum.auto()  # an extension is with the database
    DOUBT = enum.auto()  # the row carries one of `tokens`, if it is ours
    LOST = enum.auto()  # another may hold it


class Held:
    """One row in the book. `deadline` is when its lease may end at the earliest, `order` its place among all claimed rows."""

    __slots__ = (
        "alone",
        "attempt",
        "charged",
        "deadline",
        "doubts",
        "handed_token",
        "hold",
        "id",
        "lane",
        "order",
        "pin",
        "row",
        "stage",
        "token",
    )

    def __init__(self, row: Any, order: int, deadline: float) -> None:
        self.row = row
        self.id = row.id
        self.attempt: int = row.attempt
        self.alone = False  # it ran beside others when their child died: it runs by itself next (R7)
        self.token: str = row.token  # what the row carries when the hold is SURE
        self.doubts: tuple[str, ...] = ()  # what it may carry instead, when it is not
        self.handed_token = ""  # with which a child takes it in a transaction
        self.charged = False  # an attempt was spent for that death, and comes back if the row ends well
        self.order = order
        self.lane: Any = None  # the lane that its key names, or that took it; the router's to set
        self.pin: Any = None  # the connection that holds it, where one does; the coordinator's to set
        self.deadline = deadline
        self.stage = Stage.WAITING
        self.hold = Hold.SURE

    @property
    def tokens(self) -> tuple[str, ...]:
        """List the tokens of which the row carries one, if it is ours."""
        return (self.token, *self.doubts)

    def __repr__(self) -> str:
        return f"<Held {self.id!r} {self.stage.name} {self.hold.name}>"


class LeaseBook:
    """The rows of one subscription that this replica holds, with leases of `lease` seconds; endless ones are never extended."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._held: dict[Any, Held] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __contains__(self, id: object) -> bool:
        return id in self._held

    def take(self, rows: Iterable[Any], claimed_at: float) -> tuple[list[Held], list[Held]]:
        """Enter claimed rows; returns the new ones, in claim order, and those that were ours already (adopted).

        `claimed_at` is the time before the claim was sent. An adopted row keeps its stage and its count of attempts.
        """
        new: list[Held] = []
        adopted: list[Held] = []
        deadline = claimed_at + self.lease
        for row in rows:
            known = self._held.get(row.id)
            if known is None:
                self._order += 1
                held = self._held[row.id] = Held(row, self._order, deadline)
                new.append(held)
            else:
                known.token, known.doubts = row.token, ()
                known.hold = Hold.SURE
                known.deadline = deadline
                adopted.append(known)
        return new, adopted

    def hand_out(self, held: Held) -> None:
        """Note that a waiting row goes to a child."""
        held.stage = Stage.RUNNING

    def put_back(self, held: Held) -> bool:
        """Note that a row came back unstarted, or is to run again; False when it was lost meanwhile and is gone."""
        if held.hold is Hold.LOST:
            self.forget(held)
            return False
        held.stage = Stage.WAITING
        return True

    def missed(self, held: Held) -> bool:
        """Note that a child could not take a row: whether it is still ours is asked before it is handed out again."""
        if held.hold is Hold.SURE and held.token == held.handed_token:
            held.hold = Hold.DOUBT
        return self.put_back(held)

    def hand_over(self, held: Held) -> None:
        """Note that a row goes to a child that takes it in a transaction, by the token that it carries now."""
        held.stage = Stage.TAKEN
        held.handed_token = held.token

    def end(self, held: Held) -> bool:
        """Note that how a row ended is known; False when it was lost meanwhile and is gone."""
        if held.hold is Hold.LOST:
            self.forget(held)
            return False
        held.stage = Stage.ENDED
        return True

    def may_settle(self, held: Held) -> bool:
        """Tell whether a settlement may be sent now: the token that the row carries is known."""
        return held.stage is Stage.ENDED and held.hold is Hold.SURE

    def settle(self, held: Held) -> None:
        """Note that a row's settlement is sent."""
        held.stage = Stage.SETTLING

    def unsettled(self, held: Held) -> None:
        """Note that the database refused a settlement and nothing was written."""
        held.stage = Stage.ENDED

    def forget(self, held: Held) -> None:
        """Take a row out of the book: it is settled, or lost."""
        if self._held.get(held.id) is held:
            del self._held[held.id]

    def extendable(self, now: float, all_of_them: bool = False) -> list[Held]:
        """List the rows whose leases want extending now; `all_of_them` after an outage, before anything is claimed (R2)."""
        if self.lease == float("inf"):
            return []
        below = now + self.lease * EXTEND_BELOW
        return [
            held
            for held in self._held.values()
            if held.stage not in (Stage.SETTLING, Stage.TAKEN)
            and (held.hold is Hold.DOUBT or (held.hold is Hold.SURE and (all_of_them or held.deadline < below)))
        ]

    def extending(self, rows: Iterable[Held]) -> None:
        """Note that an extension of these rows is sent."""
        for held in rows:
            held.hold = Hold.EXTENDING

    def extended(
        self, rows: Iterable[Held], new: str, deadline: float, extended: Collection[Any], busy: Collection[Any]
    ) -> list[Held]:
        """Note the database's answer to an extension; returns the rows that are lost.

        Rows that were adopted while it was under way are SURE already and are left alone.
        """
        lost = []
        for held in rows:
            if held.hold is not Hold.EXTENDING:
                continue
            if held.id in extended:
                held.token, held.doubts = new, ()
                held.deadline = deadline
                held.hold = Hold.SURE
            elif held.id in busy:
                held.hold = Hold.DOUBT if held.doubts else Hold.SURE
            else:
                self.lose(held)
                lost.append(held)
        return lost

    def extension_broke(self, rows: Iterable[Held], new: str | None) -> None:
        """Note that the connection broke under an extension; `new` is what it may have written, None if it wrote nothing."""
        for held in rows:
            if held.hold is not Hold.EXTENDING:
                continue
            if new is not None:
                held.doubts = (*held.doubts, new)
            held.hold = Hold.DOUBT if held.doubts else Hold.SURE

    def lose(self, held: Held) -> None:
        """Note that another may hold a row; one that runs stays in the book until it has ended."""
        held.hold = Hold.LOST
        held.deadline = float("-inf")
        if held.stage not in (Stage.RUNNING, Stage.TAKEN):
            self.forget(held)
