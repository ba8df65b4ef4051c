"""A real store and a real database between which and the coordinator a test lets connections break."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from shardrun.db.locks import LockStore
from shardrun.db.offers import OfferStore
from shardrun.db.store import (
    NONE_ACKED,
    Acked,
    Backlog,
    Claimed,
    Connection,
    Extension,
    LeaseStore,
    Settlement,
    Token,
    Waiting,
)
from shardrun.db.strands import Strands, StrandStore
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError

T = TypeVar("T")
Fault = Callable[[Callable[[], Any]], Any]
"""What happens to one call: it may run the real one, before or after something goes wrong."""


def breaks_before(_execute: Callable[[], Any]) -> Any:
    """Lose the connection before the statement reached the database."""
    raise ConnectionLost("the connection broke before")


def breaks_after(execute: Callable[[], Any]) -> Any:
    """Lose the connection after the database had committed."""
    execute()
    raise ConnectionLost("the connection broke after")


def refuses(error: ShardrunError) -> Fault:
    """Have the database refuse, nothing done."""

    def fault(_execute: Callable[[], Any]) -> Any:
        raise error

    return fault


def passes(execute: Callable[[], T]) -> T:
    """Let one call through, before the next fault."""
    return execute()


class Held:
    """A call that waits: executed at once, its answer comes when the test lets it go (`after`), or not executed until then."""

    def __init__(self, after: bool = False) -> None:
        self.after = after
        self.begun = threading.Event()
        self._gate = threading.Event()

    def __call__(self, execute: Callable[[], T]) -> T:
        answer = [execute()] if self.after else []
        self.begun.set()
        assert self._gate.wait(20)
        return answer[0] if self.after else execute()

    def go(self) -> None:
        """Let the call go on."""
        self._gate.set()


class FaultyStore:
    """The real store; `plan[verb]` holds what happens to the next calls of a verb, `calls` what was asked for, in order."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.layout = store.layout
        self.plan: dict[str, deque[Fault]] = defaultdict(deque)
        self.calls: list[tuple[str, Any]] = []
        self.away = False

    def fail(self, verb: str, *faults: Fault) -> None:
        """Let the next calls of a verb meet these faults."""
        self.plan[verb].extend(faults)

    def asked(self, verb: str) -> list[Any]:
        """List what calls of a verb asked for."""
        return [about for called, about in self.calls if called == verb]

    def verbs(self) -> list[str]:
        """List the calls by name, neighbours of one name as one."""
        names = [name for name, _ in self.calls]
        return [name for at, name in enumerate(names) if not at or names[at - 1] != name]

    def _call(self, verb: str, about: Any, execute: Callable[[], T]) -> T:
        self.calls.append((verb, about))
        if self.away:
            raise ConnectionLost("the database is away")
        if self.plan[verb]:
            answer: T = self.plan[verb].popleft()(execute)
            return answer
        return execute()

    @property
    def payload_kind(self) -> str | None:
        return self._store.payload_kind

    def prepare(self, connection: Connection) -> int:
        return self._store.prepare(connection)

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any], *choose: Any) -> list[Claimed]:
        about = (limit, list(full_keys))
        return self._call("claim", about, lambda: self._store.claim(connection, limit, full_keys, *choose))

    def claim_strands(
        self, connection: Connection, limit: int, full_keys: Sequence[Any], held: frozenset[Any]
    ) -> list[Claimed]:
        store, about = cast(StrandStore, self._store), (limit, list(full_keys))
        return self._call("claim", about, lambda: store.claim_strands(connection, limit, full_keys, held))

    @property
    def strands(self) -> Strands:
        return cast(StrandStore, self._store).strands

    def offer(self, connection: Connection, limit: int, *about: Sequence[Any]) -> list[Claimed]:
        store = cast(OfferStore, self._store)
        return self._call("offer", (limit, *map(list, about)), lambda: store.offer(connection, limit, *about))

    def settle_offered(self, connection: Connection, settlement: Settlement) -> Token | None:
        about = (settlement.verb.name, settlement.id)
        store = cast(OfferStore, self._store)
        return self._call("settle", about, lambda: store.settle_offered(connection, settlement))

    def lease_end(self, connection: Connection) -> Token:
        return self._call("lease_end", None, lambda: self._store.lease_end(connection))

    def extend(self, connection: Connection, ids: Sequence[Any], token: Token, new: Token) -> Extension:
        return self._call("extend", list(ids), lambda: self._store.extend(connection, ids, token, new))

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        about = [("ACK", id) for ids in acked.values() for id in ids]
        about += [(each.verb.name, each.id) for each in settlements]
        return self._call("settle", about, lambda: self._store.settle(connection, settlements, repeated, acked))

    def let_go(self, connection: Connection) -> None:
        self._call("let_go", None, lambda: cast(LockStore, self._store).let_go(connection))

    def backlog(self, connection: Connection, awaited: Sequence[Any]) -> Backlog:
        return self._call("backlog", list(awaited), lambda: self._store.backlog(connection, awaited))

    def waiting(self, connection: Connection) -> Waiting:
        return self._store.waiting(connection)


class FaultyDatabase:
    """The real database, of which `away` says that it does not answer, and `opened` how many connections were opened."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.away = False
        self.opened = 0
        self.closed = 0

    def connect(self, part: str) -> Connection:
        if self.away:
            raise DatabaseUnreachable("the database did not answer")
        self.opened += 1
        return self._database.connect(part)

    def is_usable(self, connection: Connection) -> bool:
        return not self.away and bool(self._database.is_usable(connection))

    def close(self, connection: Connection) -> None:
        self.closed += 1
        self._database.close(connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
