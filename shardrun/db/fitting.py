"""Lay queues over the tables of one database: what is the same whichever it is, over what its catalogue reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from shardrun.db import check, needed
from shardrun.db.operate import Blocked, Connection, Counts, DeadLetters, Sessions
from shardrun.db.table import Layout, Table, lay
from shardrun.errors import Problems, ShardrunError
from shardrun.queue import Queue, Subscription, split_name

Fit = tuple[list[ShardrunError], Table | None, Table | None]
"""What keeps a subscription from fitting, its table, and that of its dead letters."""


class Fitting(ABC):
    """A database over whose tables queues are laid; see `Database`."""

    @abstractmethod
    def _catalogue(self, connection: Connection) -> check.Catalogue:
        """Give what the catalogue tells beside tables."""

    @abstractmethod
    def _read(self, connection: Connection, parts: Sequence[str]) -> Table | None:
        """Read a table's description."""

    @abstractmethod
    def _writing(self, connection: Connection | None) -> needed.Writing:
        """Tell how statements that create something are written."""

    @abstractmethod
    def _count(self, connection: Connection, layout: Layout) -> Counts:
        """Count what a queue holds."""

    @abstractmethod
    def _blocked(self, connection: Connection, layout: Layout) -> Blocked:
        """Find the groups or keys that wait for a row that has failed."""

    @abstractmethod
    def _letters(self, layout: Layout) -> DeadLetters:
        """Build the statements over dead letters."""

    @abstractmethod
    def sessions(self, connection: Connection) -> Sessions | None:
        """Read the limit of connections, those in use, and shardrun's own; None where there is no server."""

    def only_replica(self, subscription: Subscription) -> AbstractContextManager[None]:  # noqa: ARG002
        """Let any number of replicas serve any form."""
        return nullcontext()

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Commit what the block wrote, or roll it back when it raises; the driver's errors are the handler's to see."""
        try:
            yield
        except BaseException:
            with suppress(connection.Error):
                connection.rollback()
            raise
        connection.commit()

    def ddl(
        self, queue: Queue[Any], subscriptions: Sequence[Subscription], connection: Connection | None = None
    ) -> list[str]:
        """Write the CREATE statements of a queue, its claim indexes and its dead letters; only what is missing, if known.

        The connection is one to run them on: where a server lets it, it then waits for whoever uses the table.
        """
        writing = self._writing(connection)

        def read(parts: Sequence[str]) -> Table | None:
            return None if connection is None else self._read(connection, parts)

        return needed.statements(queue, subscriptions, read, writing)

    def connection_limit(self, connection: Connection) -> tuple[int, int] | None:
        """Read the limit of connections and how many are in use, this one among them; None where there is none."""
        found = self.sessions(connection)
        return found and (found.limit, found.in_use + 1)

    def counts(self, connection: Connection, subscription: Subscription) -> Counts:
        """Count what a queue holds for a subscription; raises `Problems` where the table does not fit."""
        layout = self._layout(connection, subscription)
        counts = self._count(connection, layout)
        if layout.strand is None or "retry_after" not in layout.roles or not counts.indexed:
            return counts
        return replace(counts, blocked=self._blocked(connection, layout))

    def dead_letters(self, connection: Connection, subscription: Subscription) -> DeadLetters | None:
        """Open a subscription's dead letters, or None where it declares none."""
        if subscription.dead_letter is None and subscription.dead_letter_group is None:
            return None
        return self._letters(self._layout(connection, subscription))

    def _fit(self, connection: Connection, subscription: Subscription) -> Fit:
        table = self._read(connection, split_name(subscription.queue.table))
        name = subscription.dead_letter
        dead = None if name is None else self._read(connection, split_name(name))
        return check.problems(self._catalogue(connection), subscription, table, dead), table, dead

    def _layout(
        self, connection: Connection, subscription: Subscription, refusals: Iterable[ShardrunError] = ()
    ) -> Layout:
        """Lay a subscription's queue over its table; raises `Problems` with all that does not fit, and the refusals."""
        found, table, dead = self._fit(connection, subscription)
        found += refusals
        if found or table is None:
            raise Problems(found)
        return lay(table, subscription, dead)
