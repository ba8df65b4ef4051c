"""Speak for one subscription: what its stores have in common, whichever the database and whatever holds its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from shardrun.db.store import Claimed, Connection, Verb
from shardrun.db.table import Layout, payload_kind
from shardrun.errors import DeclarationProblem, StatementFailed


class Fetching(Protocol):
    """The queue's own SELECT."""

    def bodies(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, Any]:
        """Fetch the bodies of rows."""


class Speaking:
    """The base of every store; `where` names the queue in messages."""

    def __init__(self, layout: Layout, where: str) -> None:
        self.layout = layout
        self._where = where

    @property
    def payload_kind(self) -> str | None:
        """Say what a body is: "json" (its text), "text", "binary", or None where it is a dict of the row."""
        return payload_kind(self.layout)

    @contextmanager
    def _declared(self) -> Iterator[None]:
        """Lay it to the declaration where the database refuses a statement."""
        try:
            yield
        except StatementFailed as problem:
            raise DeclarationProblem(f"{self._where}: {problem}") from problem

    def _unwritable(self, verb: Verb) -> StatementFailed:
        """Say that a verb has no statement."""
        return StatementFailed(f"{self._where}: {verb.name.lower()} has no column or table to write to.")


def with_bodies(connection: Connection, fetch: Fetching | None, rows: list[Claimed]) -> list[Claimed]:
    """Give rows what the queue's own SELECT finds for them."""
    if fetch is None or not rows:
        return rows
    bodies = fetch.bodies(connection, [row.id for row in rows])
    return [row._replace(body=bodies[row.id]) for row in rows]
