"""Do what operators ask beside a start: reckon connections, count rows, and list, requeue and purge dead letters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardrun import handler, registry
from shardrun.boot import budget_of, listening_problems, needs_of
from shardrun.config import Settings
from shardrun.db import forms
from shardrun.db.connect import database
from shardrun.db.operate import BATCH, Counts, DeadLetters, Failures, Sessions
from shardrun.db.settling import in_order
from shardrun.db.store import Connection, Database
from shardrun.errors import (
    Conflict,
    DatabaseUnreachable,
    DeclarationProblem,
    NotInThisVersion,
    Problems,
    ShardrunError,
    UsageProblem,
)
from shardrun.policy.budget import Budget, replicas_problem
from shardrun.queue import Form, Queue, Subscription, split_name
from shardrun.registry import Declared

CHOSEN = 1_000_000
"""Dead letters that one command takes on at most: their ids are held in memory. The next run takes on the rest."""

TRIES = 3
"""How often a batch is tried that the database refuses for a passing reason (a deadlock). Larger: more patience."""

PARKED = "parked by an operator"
"""What stands in last_error of a row that was parked, where no other reason is given."""

REPLICA = re.compile(r"shardrun (\S+-\d+)(?: child \d+| listener)?")
"""The names that the parts of a replica bear on the server; commands have others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The connections of one replica and of several, beside what the server has; `unknown` says why that is not told."""

    budget: Budget
    replicas: int
    limit: int | None
    sessions: Sessions | None
    unknown: str | None

    @property
    def others(self) -> int | None:
        """Count the connections that are in use on the server by others than shardrun, as far as they can be told apart."""
        return self.sessions and self.sessions.in_use - len(self.sessions.ours or ())

    @property
    def left(self) -> int | None:
        """Count what the server has left beside the others and these replicas."""
        if self.sessions is None or self.others is None:
            return None
        return self.sessions.limit - self.others - self.replicas * self.budget.total

    @property
    def problem(self) -> UsageProblem | None:
        """Say why this does not fit, if it does not."""
        if over := self.budget.check(self.limit):
            return over
        if self.sessions is None or self.others is None:
            return None
        return replicas_problem(self.budget, self.replicas, self.sessions.limit, self.others)


def plan(settings: Settings, declared: Declared, replicas: int) -> Plan:
    """Reckon what replicas with these settings may open; a server that does not answer is no obstacle."""
    target = database(settings.dsn, settings.dsn_source)
    for problem in listening_problems(settings, target):
        raise problem
    if replicas < 1:
        raise UsageProblem(f"--replicas {replicas} is no number of replicas: give 1 or more.")
    parts = budget_of(settings, declared.subscriptions, target)
    if not target.one_writer and (small := needs_of(settings, declared.subscriptions).problem(parts.coordinator)):
        raise small
    sessions: Sessions | None = None
    unknown: str | None = "the database is a file: it has no limit of connections"
    if not target.one_writer:
        try:
            with _connected(target, "shardrun plan") as connection:
                sessions, unknown = target.sessions(connection), None
        except DatabaseUnreachable as problem:
            unknown = f"the server's own limit is not known: {problem}"
    return Plan(parts, replicas, settings.connection_limit, sessions, unknown)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What one subscription's rows are up to; a queue that no handler is declared for has one line of its own."""

    queue: str
    handler: str | None
    table: str
    group: str | None
    form: str  # how rows are held and delivered
    counts: Counts
    order: str | None = None  # the column whose values keep an order over replicas, and what it is: a group, or a key
    ordered: str = "group"


@dataclass(frozen=True, slots=True)
class Status:
    """What the queues hold, and who is connected."""

    database: str
    queues: list[QueueStatus]
    sessions: Sessions | None

    @property
    def replicas(self) -> list[str] | None:
        """Name the replicas that are connected to this database; None where it has no list of sessions."""
        if self.sessions is None or self.sessions.here is None:
            return None
        found = (REPLICA.fullmatch(name) for name in self.sessions.here)
        return sorted({match[1] for match in found if match})


def status(settings: Settings, declared: Declared) -> Status:
    """Count what the declared queues hold; no table is read further than the counts' bounds."""
    if not declared.queues:
        raise UsageProblem(f"{' '.join(settings.handlers)} declares no queue.")
    target = database(settings.dsn, settings.dsn_source)
    queues, problems = list[QueueStatus](), list[ShardrunError]()
    with _connected(target, "shardrun status") as connection:
        for each in _subscriptions(declared):
            try:
                counts = target.counts(connection, each)
            except Problems as several:
                problems += several.problems
            else:
                name = each.name if each in declared.subscriptions else None
                form = forms.described(each)
                status = QueueStatus(each.queue.name, name, each.queue.table, each.group, form, counts, *_order(each))
                queues.append(status)
        sessions = target.sessions(connection)
    if problems:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    return Status(target.describe(), queues, sessions)


@dataclass(slots=True)
class Done:
    """What became of dead letters: rows, their keys, those left where they lie, and ids that are not among them."""

    rows: int = 0
    keys: set[Any] = field(default_factory=set)
    left: list[Any] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)
    more: bool = False


@dataclass(frozen=True, slots=True)
class Home:
    """A place where dead letters of a queue lie, with the subscription whose rows they were."""

    letters: DeadLetters
    subscription: Subscription
    connection: Connection
    rivals: list[Subscription]  # whose rows lie in the same group, so that nothing tells whose they were

    @property
    def place(self) -> str:
        """Name where they lie: `table app.mails_dead`, `group dead of app.mails`."""
        one = self.subscription
        return f"table {one.dead_letter}" if one.dead_letter else f"group {one.dead_letter_group} of {one.queue.table}"

    def failures(self, error: str | None) -> Failures:
        """Group them by error."""
        self._check(error)
        return self.letters.failures(self.connection, error)

    def requeue(self, ids: Sequence[Any] | None, error: str | None, dry: bool) -> Done:
        """Put dead letters back into their queue, batch by batch; `dry` only tells."""
        if self.rivals:
            groups = ", ".join(repr(each.group) for each in (self.subscription, *self.rivals))
            raise UsageProblem(
                f"rows of the groups {groups} lie together in {self.place}, and nothing tells whose they were. "
                f"Name the handler whose group they shall get, as HANDLERS:{self.subscription.name}"
            )
        return self._act(ids, error, dry, self._requeue)

    def purge(self, ids: Sequence[Any] | None, error: str | None, dry: bool) -> Done:
        """Delete dead letters, batch by batch; `dry` only tells."""
        return self._act(ids, error, dry, self._purge)

    def park(self, ids: Sequence[Any], reason: str | None, dry: bool) -> Done:
        """Move rows of the queue that no one holds to the dead letters, batch by batch; `dry` only tells."""
        if reason is not None and not self.letters.knows_errors:
            raise DeclarationProblem(
                f"queue {self.subscription.queue.name} has no last_error role to write --reason to."
            )
        if self.subscription.queue.form is Form.ADVISORY:
            where, way_out = f"queue {self.subscription.queue.name}", "Stop its replicas, and move rows by SQL."
            raise NotInThisVersion(where, "dead park in the advisory lock form", way_out)
        waiting = in_order(self.letters.waiting(self.connection, ids))
        done = Done(unknown=sorted(set(ids) - set(waiting), key=str))
        for start in range(0, len(waiting), BATCH):
            batch = waiting[start : start + BATCH]
            moved = self._try(partial(self._park, batch, PARKED if reason is None else reason, dry), done)
            done.rows += len(moved)
            done.left += self.letters.waiting(self.connection, [each for each in batch if each not in moved])
        return done

    def _park(self, ids: Sequence[Any], reason: str, dry: bool) -> set[Any]:
        return set(self.letters.idle(self.connection, ids) if dry else self.letters.park(self.connection, ids, reason))

    def _act(
        self,
        ids: Sequence[Any] | None,
        error: str | None,
        dry: bool,
        act: Callable[[Sequence[Any], str | None, bool, Done], set[Any]],
    ) -> Done:
        self._check(error)
        chosen = in_order(self.letters.choose(self.connection, error, ids, CHOSEN))
        done = Done(unknown=sorted(set(ids or ()) - set(chosen), key=str), more=len(chosen) == CHOSEN)
        for start in range(0, len(chosen), BATCH):
            batch = chosen[start : start + BATCH]
            acted = self._try(partial(act, batch, error, dry, done), done)
            done.rows += len(acted)
            if rest := [each for each in batch if each not in acted]:
                done.left += self.letters.choose(self.connection, error, rest, len(rest))
        return done

    def _requeue(self, ids: Sequence[Any], error: str | None, dry: bool, done: Done) -> set[Any]:
        if dry:
            return set(ids) - self.letters.stuck(self.connection, ids)
        moved = self.letters.requeue(self.connection, ids, error)
        done.keys |= {one.key for one in moved if one.key is not None}
        return {one.id for one in moved}

    def _purge(self, ids: Sequence[Any], error: str | None, dry: bool, _done: Done) -> set[Any]:
        if not dry:
            return set(self.letters.purge(self.connection, ids, error))
        in_table = self.subscription.dead_letter is not None
        return set(ids) if in_table else set(ids) - self.letters.stuck(self.connection, ids)

    def _try(self, act: Callable[[], set[Any]], done: Done) -> set[Any]:
        for last in (*[False] * (TRIES - 1), True):
            try:
                return act()
            except Conflict as problem:
                if last:
                    raise _after(done, problem) from problem
            except ShardrunError as problem:
                raise _after(done, problem) from problem
        raise AssertionError("the last try returns or raises")

    def _check(self, error: str | None) -> None:
        if error is not None and not self.letters.knows_errors:
            queue = self.subscription.queue
            raise DeclarationProblem(
                f"queue {queue.name} has no last_error role, so --error has nothing to look at. Name the rows by id, or "
                f'add last_error="<column>" to Queue(...).'
            )


@contextmanager
def homes(settings: Settings, declared: Declared, apart: bool = False) -> Iterator[list[Home]]:
    """Open the places where the dead letters of one declared queue lie; `apart` gives each handler's rows one of its own."""
    (queue,) = declared.queues
    subscriptions = _subscriptions(declared)
    problems = handler.problems(declared.subscriptions)
    if problems:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    target = database(settings.dsn, settings.dsn_source)
    with _connected(target, "shardrun dead") as connection:
        found: dict[object, Home] = {}
        for each in subscriptions:
            place = (each.name,) if apart else each.dead_letter_group or (each.dead_letter, each.group)
            if place in found:
                found[place].rivals.append(each)
            elif letters := target.dead_letters(connection, each):
                found[place] = Home(letters, each, connection, [])
        if not found:
            raise DeclarationProblem(
                f"queue {queue.name} has no dead letters: none of its handlers declares dead_letter= or dead_letter_group=."
            )
        yield list(found.values())


def check_alone(declared: Declared) -> None:
    """Refuse to take all of a table of dead letters into which another queue puts its own."""
    (queue,) = declared.queues
    for mine in {each.dead_letter for each in _subscriptions(declared) if each.dead_letter}:
        for other in (variable.queue for variable in registry.name_queues()):
            shares = any(_same(each.dead_letter, mine) for each in other.subscriptions)
            if shares and not _same(other.table, queue.table):
                raise UsageProblem(
                    f"table {mine} also takes the dead letters of queue {other.name}, and nothing tells whose they are. "
                    f"Name the rows of {queue.name} by id."
                )


def _order(each: Subscription) -> tuple[str | None, str]:
    """Name the column whose values keep an order over replicas, and say what they are."""
    if each.queue.fifo:
        return each.queue.group, "group"
    return (each.queue.partition_key if each.key_scope == "cluster" else None), "key"


def _same(first: str | None, second: str) -> bool:
    return first is not None and split_name(first) == split_name(second)


def _after(done: Done, problem: ShardrunError) -> ShardrunError:
    """Add to a problem what was done before it came up, if anything was."""
    if not done.rows:
        return problem
    return ShardrunError(f"{str(problem).rstrip('.')}. {done.rows:,} rows were done before; run it again for the rest.")


def _subscriptions(declared: Declared) -> list[Subscription]:
    """List the subscriptions, and one without a handler for each queue that has none here."""
    found = []
    for queue in declared.queues:
        own = [each for each in declared.subscriptions if each.queue is queue]
        found += own or [_unbound(queue)]
    return found


def _unbound(queue: Queue[Any]) -> Subscription:
    def nothing() -> None: ...

    return Subscription(queue, nothing, queue.source, dead_letter=queue.standard_dead_letter)


@contextmanager
def _connected(target: Database, part: str) -> Iterator[Connection]:
    if not hasattr(target, "counts"):
        raise NotInThisVersion(part, "operating this database", "Its rows are yours: use SQL.")
    connection = target.connect(part)
    try:
        yield connection
    finally:
        target.close(connection)
