"""Tables as a catalogue describes them, and a queue laid over one: what the statements are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardrun.lock_key import Piece, pieces, problem
from shardrun.queue import Form, Subscription

TIMES = ("timestamptz", "timestamp")
JSON = ("json", "jsonb")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is the family of its type (int, text, json, ...), `type` the database's own spelling of it.

    `digits` are those kept of a second's fraction, `length` the characters that fit. `equality` says how the database
    compares two values: "exact", "nocase", "trim", or None where bytes cannot say it.
    """

    name: str
    kind: str
    type: str
    nullable: bool = True
    has_default: bool = False
    generated: bool = False
    digits: int = 6
    length: int | None = None
    equality: str | None = "exact"


@dataclass(frozen=True, slots=True)
class Index:
    """An index: its columns as (name, descending, nulls first), and its condition's text, if it has one.

    Nulls first is None where nulls lie as every ascending order of that database has them.
    """

    name: str
    columns: tuple[tuple[str, bool, bool | None], ...]
    condition: str | None = None
    is_unique: bool = False  # by its first column alone; told on MySQL and MariaDB


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalogue has it. `unique` names the columns that are unique by themselves."""

    parts: tuple[str, ...]
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...] = ()
    unique: frozenset[str] = frozenset()
    indexes: tuple[Index, ...] = ()
    rewrites: bool = False  # triggers, rules or policies may keep an update from being written
    obstacle: str | None = None  # why it cannot be a queue: "is a view, and ..."

    @property
    def name(self) -> str:
        """Write the name as people do, with dots."""
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """A subscription's queue over its table: the column of each role, and where its dead letters go."""

    table: Table
    roles: Mapping[str, Column]
    group: str | None = None
    lease: float = 30.0
    by_key: bool = False
    dead: Table | None = None
    dead_group: str | None = None
    copied: tuple[str, ...] = field(default=())  # the columns that a dead letter keeps
    fetched: bool = False  # the queue's own SELECT gives the handler what it takes
    form: Form = Form.LEASE
    lock_key: tuple[Piece, ...] = ()  # the pieces of the key that an advisory lock is on
    isolation: str | None = None
    strand: str | None = None  # the role whose equal values make a strand (see db/strands.py)

    def column(self, role: str) -> Column | None:
        """Find the column that plays a role, if one does."""
        return self.roles.get(role)

    @property
    def row_mode(self) -> bool:
        """Tell whether the handler takes the table's row itself, for want of a payload and of a SELECT."""
        return "payload" not in self.roles and not self.fetched

    @property
    def order(self) -> tuple[str, ...]:
        """List the roles that make the claim order."""
        return tuple(role for role in ("priority", "retry_after", "id") if role in self.roles)

    @property
    def is_fifo(self) -> bool:
        """Tell whether strands are FIFO groups: one row of each in work at a time."""
        return self.strand == "group"

    @property
    def strand_order(self) -> tuple[str, ...]:
        """List the roles that make the order within a strand, behind rows that have begun.

        Under `key_scope="cluster"` a row that is put off keeps its place, and so the due time has no part in it.
        """
        return self.order if self.is_fifo else tuple(role for role in self.order if role != "retry_after")

    @property
    def index(self) -> tuple[str, ...]:
        """List the roles whose columns the claim's index needs, in order."""
        group = ("group",) if self.group is not None or self.is_fifo else ()
        if self.strand is None:
            return (*group, *self.order)
        return (*group, *(() if self.is_fifo else (self.strand,)), "attempt", *self.strand_order)


def lay(table: Table, subscription: Subscription, dead: Table | None = None) -> Layout:
    """Lay a subscription's queue over a table that is known to fit it."""
    roles = {role: table.columns[name] for role, name in subscription.queue.roles.items()}
    if fetched := subscription.queue.fetch is not None:
        roles.pop("payload", None)  # it is for inserts only
    copied = tuple(
        name
        for name, column in table.columns.items()
        if dead is not None and name in dead.columns and not dead.columns[name].generated and column is not None
    )
    return Layout(
        table=table,
        roles=roles,
        group=subscription.group,
        lease=subscription.lease,
        by_key=subscription.by_key,
        dead=dead,
        dead_group=subscription.dead_letter_group,
        copied=copied,
        fetched=fetched,
        form=subscription.queue.form,
        lock_key=_lock_key(subscription.queue.advisory_lock),
        isolation=subscription.queue.isolation,
        strand=_strand(subscription),
    )


def _strand(subscription: Subscription) -> str | None:
    if subscription.queue.fifo:
        return "group"
    return "partition_key" if subscription.key_scope == "cluster" else None


def _lock_key(template: str | None) -> tuple[Piece, ...]:
    return () if template is None or problem(template) else tuple(pieces(template))


def payload_kind(layout: Layout) -> str | None:
    """Say what a row's body is: "json", "text" or "binary" as stored, None where it is a whole row."""
    payload = layout.column("payload")
    if payload is None:
        return None
    if payload.kind == "binary":
        return "binary"
    return "text" if payload.kind in ("text", "uuid", "enum", "other") else "json"
