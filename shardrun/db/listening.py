"""Hear what a database tells of its own accord: what the coordinator's listener asks of one that can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shardrun.db.operate import Connection
from shardrun.errors import ShardrunError


class Told(NamedTuple):
    """One notification: a channel, and the group that it names, empty for all."""

    channel: str
    group: str


class Ear(Protocol):
    """A session that listens, and waits for nothing: each method takes or sends what it can at once.

    `descriptor` is readable when something has come. `awaits_answer` tells that the server owes an answer: to the
    request to listen, which is sent first, or to `ask`.
    """

    @property
    def descriptor(self) -> int: ...

    @property
    def awaits_answer(self) -> bool: ...

    def ask(self) -> None:
        """Ask the server whether it is still there; raises `ConnectionLost`."""

    def heard(self) -> list[Told]:
        """Take what has come; raises `ConnectionLost`, also where the server refuses to let it listen."""

    def close(self) -> None:
        """Close quietly, also when it is broken."""


class Listening(Protocol):
    """How a database is listened to."""

    def problems(self, connection: Connection) -> list[ShardrunError]:
        """List what keeps notifications from arriving (a pooler)."""

    def open(self, part: str, channels: Sequence[str]) -> Ear:
        """Connect, within the driver's timeout, and ask to listen; raises `DatabaseUnreachable` or `ConnectionLost`."""
