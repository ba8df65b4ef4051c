"""Declare what each form of holding rows gives on each database: the code refuses by it, and README's table is made from it.

A cell is a form, a mode and a database.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardrun.db.check import where
from shardrun.errors import ShardrunError, Unsupported
from shardrun.queue import DEFAULT_LEASE, Form, Subscription
from shardrun.summary import counted


class On(enum.Enum):
    """A database, or two that are alike here; the values are what people read."""

    POSTGRES = "PostgreSQL"
    MYSQL = "MySQL and MariaDB"
    SQLITE = "SQLite"


class Mode(enum.Enum):
    """What a delivery is: a row, or several, in a transaction with the handler's writes or not."""

    PLAIN = "plain"
    TRANSACTIONAL = "`transactional=True`"
    BATCH = "`batch=`"
    BOTH = "`batch=` and `transactional=True`"


@dataclass(frozen=True, slots=True)
class Cell:
    """Whether a form and a mode are there on one database: `refusal` says why not."""

    refusal: str | None = None  # takes {table} and {id}
    short: str | None = None  # the same, or a condition on what is there, for README

    @property
    def is_there(self) -> bool:
        """Tell whether nothing refuses it."""
        return self.refusal is None


YES = Cell()
ONE_REPLICA = Cell(short="one replica per file")
NO_LOCKS = Cell(
    'SQLite cannot lock rows. Give it a lease column: Queue("{table}", id="{id}", locked_until="locked_until"), '
    'or use Queue.standard("{table}")',
    "it cannot lock rows",
)

# In the order of `On`: PostgreSQL, MySQL and MariaDB, SQLite.
CELLS: Mapping[tuple[Form, Mode], tuple[Cell, Cell, Cell]] = {
    (Form.ROW_LOCK, Mode.PLAIN): (YES, YES, NO_LOCKS),
    (Form.ROW_LOCK, Mode.TRANSACTIONAL): (YES, YES, NO_LOCKS),
    (Form.ROW_LOCK, Mode.BATCH): (YES, YES, NO_LOCKS),
    (Form.ROW_LOCK, Mode.BOTH): (YES, YES, NO_LOCKS),
    (Form.LEASE, Mode.PLAIN): (YES, YES, YES),
    (Form.LEASE, Mode.TRANSACTIONAL): (YES, YES, YES),
    (Form.LEASE, Mode.BATCH): (YES, YES, YES),
    (Form.LEASE, Mode.BOTH): (YES, YES, YES),
    (Form.ADVISORY, Mode.PLAIN): (YES, YES, ONE_REPLICA),
    (Form.ADVISORY, Mode.TRANSACTIONAL): (YES, YES, ONE_REPLICA),
    (Form.ADVISORY, Mode.BATCH): (YES, YES, ONE_REPLICA),
    (Form.ADVISORY, Mode.BOTH): (YES, YES, ONE_REPLICA),
}

# What holds wherever a cell is there: for the row lock, the lease, the advisory lock.
GUARANTEES: Mapping[str, tuple[str, str, str]] = {
    "chosen by": ("neither role", "`locked_until=`", '`advisory_lock="accounts-{account}"`'),
    "a row in work is held by": (
        "a transaction that stays open",
        "an expiry in its own column, extended every half lease",
        "a session's lock on its key; on SQLite a lock that its only replica keeps itself",
    ),
    "with it are held back": (
        "no other rows",
        "no other rows",
        "all rows whose key is the same: of any table, replica, or program that takes that lock",
    ),
    "a delivery, or a batch, holds": (
        "one of the coordinator's connections; with `transactional=True` one of its child's",
        "no connection; with `transactional=True` one of its child's",
        "one of the coordinator's connections, on SQLite none; with `transactional=True` one of its child's",
    ),
    "an attempt is counted": (
        "when it is settled",
        "at the claim; given back to rows that did not begin",
        "the same; with `transactional=True` when it is settled",
    ),
    "a dead child costs": (
        "its running row one attempt; a batch goes on row by row, and each row that ends well gets its attempt back; what its "
        "transaction wrote is undone",
        "the same",
        "the same",
    ),
    "a dead coordinator costs": (
        "no attempt; its rows are free as soon as the server sees that it is gone",
        f"each row that it had claimed one attempt; they are free when their leases (`lease=`, {DEFAULT_LEASE:g} s) have run out",
        "each row that it had claimed one attempt, with `transactional=True` none; they are free as soon as the server sees that "
        "it is gone",
    ),
    "a hold is lost when": (
        "its connection broke",
        "the coordinator was stopped or cut off for longer than the lease",
        "its connection broke",
    ),
    "then its settlement": (
        "is refused, and the row may run again",
        "is refused, and so is its commit; the row may run again",
        "is refused, and the row may run again",
    ),
    "what a handler writes takes effect": (
        "at least once; through `delivery.tx` once, together with the settlement",
        "the same",
        "the same",
    ),
    "rows of one key run": (
        "one at a time and in order, within a replica",
        "the same",
        "the same; rows of one lock's key one at a time everywhere",
    ),
    "an order over all replicas": (
        "in groups, with `fifo=True`",
        'in groups, with `fifo=True`; in keys, with `key_scope="cluster"`',
        "not there",
    ),
}


def mode(subscription: Subscription) -> Mode:
    """Say what a subscription's deliveries are."""
    if subscription.batch is not None:
        return Mode.BOTH if subscription.transactional else Mode.BATCH
    return Mode.TRANSACTIONAL if subscription.transactional else Mode.PLAIN


def cell(form: Form, asked: Mode, on: On) -> Cell:
    """Look up what a database gives."""
    return CELLS[form, asked][list(On).index(on)]


def refusals(on: On, subscription: Subscription) -> Iterator[ShardrunError]:
    """Refuse a subscription that this database cannot serve: at most one problem."""
    queue = subscription.queue
    refusal = cell(queue.form, mode(subscription), on).refusal
    if refusal is not None:
        yield Unsupported(f"{where(queue)}: {refusal.format(table=queue.table, id=queue.id)}")


def described(subscription: Subscription) -> str:
    """Say how rows are held and delivered: `lease 30 s, transactional, timeout 60 s`."""
    queue = subscription.queue
    form = f"lease {subscription.lease:g} s" if queue.form is Form.LEASE else queue.form.value
    parts = [form if queue.advisory_lock is None else f"lock on {queue.advisory_lock}"]
    if queue.fifo:
        parts.append(f"one row at a time by {queue.group}")
    elif subscription.has_strands:
        parts.append("in order over replicas")
    if subscription.transactional:
        parts.append("transactional")
    if subscription.batch is not None:
        parts.append(f"up to {counted(subscription.batch, 'row')} at once")
    if subscription.timeout is not None:
        parts.append(f"timeout {subscription.timeout:g} s")
    return ", ".join(parts)


def table() -> list[str]:
    """Write README's table: a column for each form, what there is of it where, and what holds there."""
    forms = list(Form)
    lines = [_line("", [each.value for each in forms]), "|---|" + "---|" * len(forms)]
    chosen, *held = GUARANTEES.items()
    lines.append(_line(*chosen))
    lines += [_line(each.value, [_there(CELLS[form, each]) for form in forms]) for each in Mode]
    return lines + [_line(*each) for each in held]


def _line(head: str, cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join([head, *cells])} |"


def _there(cells: tuple[Cell, Cell, Cell]) -> str:
    """Say on which databases something is there, under which condition, and why not on the others."""
    pairs = list(zip(On, cells, strict=True))
    if cells == (YES, YES, YES):
        return "everywhere"
    parts = [", ".join(on.value + (f" ({each.short})" if each.short else "") for on, each in pairs if each.is_there)]
    parts += [f"not on {on.value}: {each.short}" for on, each in pairs if not each.is_there]
    return "; ".join(part for part in parts if part)
