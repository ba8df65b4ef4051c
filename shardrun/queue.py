"""Declare queues: the user's own tables, what their columns are for, and the handlers of their rows.

A declaration only records what was said and where; whether it fits is found at start, all problems at once.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, TypedDict, overload

from typing_extensions import TypeVar, Unpack

from shardrun.outcome import Answer, Backoff, BatchAnswer, Outcome, Seconds

Body = TypeVar("Body", default=Any)
Row = TypeVar("Row")
More = ParamSpec("More")
Says = TypeVar("Says", bound=Answer | Coroutine[Any, Any, Answer])
SaysOfBatch = TypeVar("SaysOfBatch", bound=BatchAnswer | Coroutine[Any, Any, BatchAnswer])
RetryRule = Callable[[int, BaseException], Seconds | Outcome]

DEFAULT_LEASE = 30.0
"""Seconds. Larger: rows of a dead replica wait longer. Smaller: more extensions, and less patience with a slow server."""

# The roles whose column the claim, the settlements or the handler read, in the order in which messages list them.
ROLES = (
    "id",
    "payload",
    "headers",
    "group",
    "partition_key",
    "priority",
    "retry_after",
    "attempt",
    "processed_at",
    "locked_until",
    "last_error",
)


class Form(enum.Enum):
    """How a row is held while it is in work; the values are what people read."""

    ROW_LOCK = "row lock"  # by a transaction that stays open
    LEASE = "lease"  # by an expiry in the row's own column
    ADVISORY = "advisory lock"  # by a lock on the row's key


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the user's code something was declared: an absolute file and a line."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler bound to a queue, with the settings of `Queue.handler` (see there for their meanings; times in seconds)."""

    queue: Queue[Any]
    function: Callable[..., Any]
    source: Source
    group: str | None = None
    workers: int | None = None
    workers_by_key: int | None = None
    batch: int | None = None
    lease: float = DEFAULT_LEASE
    transactional: bool = False
    max_attempts: int | None = None
    dead_letter: str | None = None
    dead_letter_group: str | None = None
    retry: Backoff | RetryRule = field(default_factory=Backoff)
    on_decode_error: Outcome | None = None
    timeout: float | None = None
    poll_interval: float | None = None
    key_scope: Literal["replica", "cluster"] = "replica"

    @property
    def name(self) -> str:
        """Name the handler as its function is named."""
        return self.function.__name__

    @property
    def by_key(self) -> bool:
        """Tell whether rows of one partition key share a lane (asked for, or by default where the queue has keys)."""
        return self.workers_by_key is not None or (
            self.workers is None and self.queue.partition_key is not None and not self.queue.fifo
        )

    @property
    def has_strands(self) -> bool:
        """Tell whether rows keep an order over all replicas: within FIFO groups, or within keys (D3, D4)."""
        return self.queue.fifo or self.key_scope == "cluster"

    def lanes(self, children: int) -> int:
        """Count the lanes of one replica; unset means one per child."""
        return self.workers_by_key or self.workers or children


class Writer(Protocol):
    """What `Queue.insert` calls: writes rows on the user's connection. The database layer provides it."""

    def insert(self, queue: Queue[Any], connection: Any, row: Mapping[str, Any], notify: bool) -> Any: ...

    def insert_many(self, queue: Queue[Any], connection: Any, rows: Iterable[Mapping[str, Any]]) -> int: ...


class HandlerSettings(TypedDict, total=False):
    """The settings of a handler that go with any kind of lanes; see `Queue.handler`."""

    group: str | None
    lease: Seconds
    transactional: bool
    max_attempts: int | None
    dead_letter: str | None
    dead_letter_group: str | None
    retry: Backoff | RetryRule | None
    on_decode_error: Outcome | None
    timeout: Seconds | None
    poll_interval: Seconds | None


class Binds(Protocol[Row]):
    """Takes a handler whose first parameter takes the queue's rows, and hands it back."""

    def __call__(
        self, function: Callable[Concatenate[Row, More], Says], /
    ) -> Callable[Concatenate[Row, More], Says]: ...


class BindsBatch(Protocol[Row]):
    """Takes a handler whose first parameter takes a list of the queue's rows, and hands it back."""

    def __call__(
        self, function: Callable[Concatenate[list[Row], More], SaysOfBatch], /
    ) -> Callable[Concatenate[list[Row], More], SaysOfBatch]: ...


class Queue(Generic[Body]):
    """Name a table of the user's and what its columns are for; only `id` is required, each role switches one behaviour on.

    `Queue[T]` tells type checkers what the handlers' first parameter takes. Names may be schema-qualified with a dot; a
    part that holds a dot itself is written in double quotes. `locked_until` chooses the lease form, `advisory_lock` (a
    template over columns, "accounts-{account}") the advisory lock, neither the row lock.

    `fetch` is a SELECT of the user's own, run over the ids of each claim: what it returns for an id, a dict by column or a
    class of that shape, is what the handler takes. It must return the id column, once for each id. `:ids` in it stands for
    the claimed ids, as in `where j.id in (:ids)`; without it the SELECT is filtered by its id column from outside. An id
    that it does not return is settled by the decode policy. `payload` then serves inserts only.
    """

    writer: ClassVar[Writer]

    def __init__(
        self,
        table: str,
        *,
        id: str,
        payload: str | None = None,
        headers: str | None = None,
        group: str | None = None,
        fifo: bool = False,
        partition_key: str | None = None,
        priority: str | None = None,
        retry_after: str | None = None,
        attempt: str | None = None,
        processed_at: str | None = None,
        locked_until: str | None = None,
        last_error: str | None = None,
        advisory_lock: str | None = None,
        isolation: str | None = None,
        fetch: str | None = None,
    ) -> None:
        self.table = table
        self.id = id
        self.payload = payload
        self.headers = headers
        self.group = group
        self.fifo = fifo
        self.partition_key = partition_key
        self.priority = priority
        self.retry_after = retry_after
        self.attempt = attempt
        self.processed_at = processed_at
        self.locked_until = locked_until
        self.last_error = last_error
        self.advisory_lock = advisory_lock
        self.isolation = isolation
        self.fetch = fetch
        self.is_standard = False
        self.source = _caller()
        self.name = table
        self.subscriptions: list[Subscription] = []

    @classmethod
    def standard(cls, table: str) -> Queue[Body]:
        """Declare a queue over the ready-made columns that `shardrun ddl` creates; its dead letters are `<table>_dead`."""
        queue: Queue[Body] = cls(
            table,
            id="id",
            payload="payload",
            headers="headers",
            group="name",
            partition_key="partition_key",
            priority="priority",
            retry_after="retry_after",
            attempt="attempt",
            locked_until="locked_until",
            last_error="last_error",
        )
        queue.is_standard = True
        queue.source = _caller()
        return queue

    @property
    def roles(self) -> dict[str, str]:
        """Map each role that this queue has to its column."""
        return {role: column for role in ROLES if (column := getattr(self, role)) is not None}

    @property
    def form(self) -> Form:
        """Say how rows are held; a declaration that chooses two forms is refused at start."""
        if self.locked_until is not None:
            return Form.LEASE
        return Form.ROW_LOCK if self.advisory_lock is None else Form.ADVISORY

    @property
    def takes_rows(self) -> bool:
        """Tell whether handlers take rows: the table's, or those of `fetch`."""
        return self.payload is None or self.fetch is not None

    @property
    def standard_dead_letter(self) -> str | None:
        """Name the dead letter of a standard queue: its table with `_dead`, inside the quotes where the name has them."""
        if not self.is_standard:
            return None
        return f'{self.table[:-1]}_dead"' if self.table.endswith('"') else f"{self.table}_dead"

    @overload
    def handler(self, *, workers: int | None = None, **settings: Unpack[HandlerSettings]) -> Binds[Body]: ...

    @overload
    def handler(
        self,
        *,
        workers_by_key: int,
        key_scope: Literal["replica", "cluster"] = "replica",
        **settings: Unpack[HandlerSettings],
    ) -> Binds[Body]: ...

    @overload
    def handler(
        self, *, batch: int, workers: int | None = None, **settings: Unpack[HandlerSettings]
    ) -> BindsBatch[Body]: ...

    @overload
    def handler(
        self,
        *,
        batch: int,
        workers_by_key: int,
        key_scope: Literal["replica", "cluster"] = "replica",
        **settings: Unpack[HandlerSettings],
    ) -> BindsBatch[Body]: ...

    def handler(
        self,
        *,
        workers: int | None = None,
        workers_by_key: int | None = None,
        batch: int | None = None,
        key_scope: Literal["replica", "cluster"] = "replica",
        group: str | None = None,
        lease: Seconds = DEFAULT_LEASE,
        transactional: bool = False,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        dead_letter_group: str | None = None,
        retry: Backoff | RetryRule | None = None,
        on_decode_error: Outcome | None = None,
        timeout: Seconds | None = None,
        poll_interval: Seconds | None = None,
    ) -> Any:
        """Bind a function to this queue's rows; the function itself is handed back unchanged.

        `workers` and `workers_by_key` say how many rows of this handler one replica runs at once, over all its children
        together; `lease`, `timeout` and `poll_interval` are seconds or timedeltas.
        """

        def bind(function: Callable[..., Any]) -> Callable[..., Any]:
            code = getattr(function, "__code__", None)
            source = Source(code.co_filename, code.co_firstlineno) if code else self.source
            self.subscriptions.append(
                Subscription(
                    queue=self,
                    function=function,
                    source=source,
                    group=group,
                    workers=workers,
                    workers_by_key=workers_by_key,
                    batch=batch,
                    lease=seconds(lease),
                    transactional=transactional,
                    max_attempts=max_attempts,
                    dead_letter=dead_letter or (self.standard_dead_letter if dead_letter_group is None else None),
                    dead_letter_group=dead_letter_group,
                    retry=retry or Backoff(),
                    on_decode_error=on_decode_error,
                    timeout=None if timeout is None else seconds(timeout),
                    poll_interval=None if poll_interval is None else seconds(poll_interval),
                    key_scope=key_scope,
                )
            )
            return function

        return bind

    def insert(
        self,
        connection: Any,
        *,
        payload: Body | None = None,
        partition_key: Any = None,
        group: str | None = None,
        priority: Any = None,
        retry_after: Seconds | datetime | None = None,
        headers: Any = None,
        id: Any = None,
        notify: bool = False,
        **columns: Any,
    ) -> Any:
        """Write one row inside the caller's own transaction and return its id; never commits.

        `retry_after` is seconds or a timedelta from the database's now, or an aware datetime; str and bytes payloads go in
        as they are, all else as JSON; any other keyword is a column of the table. Raises `ShardrunError` for a role that
        the queue does not have.
        """
        roles = {
            "payload": payload,
            "partition_key": partition_key,
            "group": group,
            "priority": priority,
            "retry_after": retry_after,
            "headers": headers,
            "id": id,
        }
        given = {role: value for role, value in roles.items() if value is not None}
        return self.writer.insert(self, connection, given | columns, notify)

    def insert_many(self, connection: Any, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write many rows (dicts of `insert`'s keywords) inside the caller's own transaction; returns how many."""
        return self.writer.insert_many(self, connection, rows)

    def __repr__(self) -> str:
        return f"<Queue {self.name} over {self.table}>"


def seconds(value: Seconds) -> float:
    """Turn seconds or a timedelta into seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def split_name(name: str) -> tuple[str, ...]:
    """Split a table's name as a declaration writes it: at dots, outside double quotes; two of them stand for one."""
    parts = [""]
    quoted = False
    rest = name
    while rest:
        char, rest = rest[0], rest[1:]
        if quoted and char == '"' and rest.startswith('"'):
            parts[-1] += '"'
            rest = rest[1:]
        elif char == '"':
            quoted = not quoted
        elif char == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(parts)


def _caller() -> Source:
    frame = sys._getframe(1)
    while (
        frame.f_globals.get("__name__") in (__name__, "typing") and frame.f_back is not None
    ):  # Queue[T](...) goes by both
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno)
