"""Wire everything: settings and declarations in, a running replica out. The only place that knows all the parts."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from shardrun import config, handler, registry
from shardrun.child.guard import fill_standard_descriptors
from shardrun.child.state import is_child
from shardrun.config import Settings
from shardrun.coordinator import clock, loop
from shardrun.coordinator.batches import Batched
from shardrun.coordinator.child import Spec
from shardrun.coordinator.listener import listening
from shardrun.coordinator.offers import Offered
from shardrun.coordinator.pins import Pinned
from shardrun.coordinator.replica import Replica
from shardrun.coordinator.service import Holding, Service
from shardrun.coordinator.threads import DatabaseThreads
from shardrun.coordinator.waiting import Events
from shardrun.db.connect import database
from shardrun.db.store import Connection, Database, Store
from shardrun.db.taking import described
from shardrun.errors import (
    Problems,
    ShardrunError,
    StatementFailed,
    UsageProblem,
)
from shardrun.policy import transactions
from shardrun.policy.budget import Budget, Needs, budget
from shardrun.policy.leases import LeaseBook
from shardrun.policy.pacing import LARGEST_CLAIM, Pacing
from shardrun.queue import Form, Queue, Subscription
from shardrun.registry import Declared
from shardrun.signature import plan
from shardrun.summary import Summary


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found to fit: a database that answers, and the statements of every subscription, prepared once."""

    settings: Settings
    declared: Declared
    database: Database
    stores: list[Store]
    prepared: list[int]  # statements of each store
    budget: Budget
    warnings: list[str]
    server: tuple[int, int] | None  # the server's own limit of connections, and how many are in use


def open_all(settings: Settings, declared: Declared) -> Opened:
    """Check everything that a start needs (A5); raises `Problems` with all that is wrong, and changes nothing."""
    problems = handler.problems(declared.subscriptions)
    target: Database | None = None
    stores: list[Store] = []
    prepared: list[int] = []
    warnings = handler.warnings(declared.subscriptions)
    server = None
    try:
        target = database(settings.dsn, settings.dsn_source)
        problems += listening_problems(settings, target)
        connection = target.connect("shardrun check")
    except ShardrunError as error:
        problems.append(error)
    else:
        try:
            stores = _open_stores(target, connection, declared.subscriptions, prepared, problems, warnings)
            if settings.listen_notify and target.listening:
                problems += target.listening.problems(connection)
            server = target.connection_limit(connection)
        finally:
            target.close(connection)
    parts = budget_of(settings, declared.subscriptions, target)
    problems += budget_problems(settings, parts, declared.subscriptions, target)
    if target is not None:
        lanes = lanes_of(settings, declared)
        problems += transactions.problems(declared.subscriptions, lanes, settings.child_pool_size, target.one_writer)
    if problems or target is None:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    return Opened(settings, declared, target, stores, prepared, parts, warnings, server)


def _open_stores(
    target: Database,
    connection: Connection,
    subscriptions: list[Subscription],
    prepared: list[int],
    problems: list[ShardrunError],
    warnings: list[str],
) -> list[Store]:
    stores: list[Store] = []
    resolved: list[tuple[Subscription, tuple[str, ...]]] = []
    for subscription in subscriptions:
        try:
            store = target.store(connection, subscription)
            statements = store.prepare(connection)
            plan(subscription, store.payload_kind)
        except Problems as several:
            problems += several.problems
        except ShardrunError as problem:
            problems.append(problem)
        else:
            stores.append(store)
            prepared.append(statements)
            resolved.append((subscription, store.layout.table.parts))
            warnings += target.warnings(connection, subscription)
    problems += handler.same_rows(resolved)
    return stores


def listening_problems(settings: Settings, target: Database) -> list[ShardrunError]:
    """Refuse --listen-notify where the database tells of nothing; at most one problem."""
    if not settings.listen_notify or target.listening:
        return []
    return [
        UsageProblem(
            f"--listen-notify: {target.describe()} has no NOTIFY, PostgreSQL alone has. Leave it out: rows are found within "
            f"--poll-interval ({settings.poll_interval:g} s), and at once what handlers insert in delivery.connection()."
        )
    ]


def budget_of(settings: Settings, subscriptions: Sequence[Subscription], target: Database | None) -> Budget:
    """Divide the connections that one replica may open on this database."""
    one_writer = target is not None and target.one_writer
    pool = 1 if one_writer else needs_of(settings, subscriptions).pool(settings.pool_size)
    return budget(settings.processes, pool, settings.child_pool_size, settings.listen_notify)


def budget_problems(
    settings: Settings, parts: Budget, subscriptions: Sequence[Subscription], target: Database | None
) -> list[ShardrunError]:
    """List what is wrong with the connections that one replica may open."""
    found: list[ShardrunError | None] = [parts.check(settings.connection_limit)]
    if target is None or not target.one_writer:
        found.append(needs_of(settings, subscriptions).problem(parts.coordinator))
    return [problem for problem in found if problem]


def needs_of(settings: Settings, subscriptions: Sequence[Subscription]) -> Needs:
    """Say what the coordinator's pool has to serve."""
    holding = [each for each in subscriptions if each.queue.form is not Form.LEASE and not each.transactional]
    held = [each.lanes(settings.processes) for each in holding]
    return Needs(held, leases=len(held) < len(subscriptions))


def ddl(settings: Settings, declared: Declared, apply: bool) -> list[str]:
    """Write the CREATE statements of all queues; `apply` runs what is missing and returns that."""
    target = database(settings.dsn, settings.dsn_source, create=apply)
    connection = target.connect("shardrun ddl") if apply else None
    statements: list[str] = []
    try:
        for queue in declared.queues:
            for statement in target.ddl(queue, queue.subscriptions, connection):
                if connection is not None:
                    with target.naming_errors(connection):
                        connection.execute(statement)
                statements.append(statement)
    finally:
        if connection is not None:
            target.close(connection)
    return statements


def enqueue(settings: Settings, queue: Queue[Any], rows: list[dict[str, Any]]) -> int:
    """Insert rows in one transaction; returns how many."""
    target = database(settings.dsn, settings.dsn_source, create=True)
    connection = target.connect_child("shardrun enqueue")
    try:
        with target.naming_errors(connection), target.transaction(connection):
            return queue.insert_many(connection, rows)
    except StatementFailed:
        _look_at_table(target, queue)  # where it does not fit, that says more
        raise
    finally:
        target.close(connection)


def _look_at_table(target: Database, queue: Queue[Any]) -> None:
    connection = target.connect("shardrun enqueue")
    try:
        target.store(connection, Subscription(queue=queue, function=_look_at_table, source=queue.source))
    finally:
        target.close(connection)


def replica_name() -> str:
    """Name this replica for the server's list of sessions: host and process."""
    return f"{socket.gethostname()[:24]}-{os.getpid()}"


def start(opened: Opened, on_progress: Callable[[Replica], None] | None = None, name: str | None = None) -> Summary:
    """Run one replica until a signal, a failure or an empty table ends it."""
    if not hasattr(os, "pidfd_open"):
        raise UsageProblem("this system has no pidfd: shardrun needs Linux 5.3 or newer in this version.")
    fill_standard_descriptors()  # lest a ring gets the number of a closed stdout, and prints go there
    with ExitStack() as alone:
        for each in {each.queue.form: each for each in opened.declared.subscriptions}.values():
            alone.enter_context(opened.database.only_replica(each))
        return _serve(opened, on_progress, name or replica_name())


def _serve(opened: Opened, on_progress: Callable[[Replica], None] | None, name: str) -> Summary:
    settings = opened.settings
    events = Events()
    part = f"shardrun {name}"
    threads = DatabaseThreads(opened.database, opened.budget.coordinator, part, events.post)
    replica = Replica(
        name=name,
        database=opened.database,
        threads=threads,
        events=events,
        services=_services(opened),
        spec=_spec(opened, part),
        until_empty=settings.until_empty,
        drain_timeout=settings.drain_timeout,
        on_progress=on_progress,
    )
    try:
        with _calm_collector(), listening(replica, opened.database.listening if settings.listen_notify else None):
            loop.run(replica)
    finally:
        threads.close()
        events.close()
    return _summary(replica, clock.now() - replica.began if replica.began else 0.0)


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Let the garbage collector look less often: rows come and go by the thousand, and form no cycles."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _services(opened: Opened) -> list[Service]:
    settings = opened.settings
    services = []
    subscriptions = transactions.with_timeouts(opened.declared.subscriptions, opened.database.one_writer)
    pairs = zip(subscriptions, opened.declared.labels, opened.stores, strict=True)
    for subscription, label, store in pairs:
        poll = settings.poll_interval if subscription.poll_interval is None else subscription.poll_interval
        size = subscription.batch or 1
        holding = _holding(subscription, opened.database.one_writer)
        in_turn = isinstance(holding, Offered) or _in_turn(subscription, opened.database)
        services.append(
            Service(
                subscription=subscription,
                label=label,
                store=store,
                pacing=Pacing(
                    poll=poll,
                    together=1 if in_turn else max(1, opened.budget.coordinator - 1),
                    most=size if holding.pins else max(size, LARGEST_CLAIM),
                ),
                book=LeaseBook(subscription.lease if subscription.queue.form is Form.LEASE else float("inf")),
                children=settings.processes,
                holding=holding,
            )
        )
    return services


def _in_turn(subscription: Subscription, target: Database) -> bool:
    """Tell whether one claim at a time is to be under way: others beside it would cost more, or break an order (C4)."""
    costs_more = subscription.queue.form is Form.LEASE and target.leases_in_turn
    keeps_order = subscription.has_strands or subscription.queue.partition_key is not None
    return target.one_writer or costs_more or keeps_order


def _holding(subscription: Subscription, one_writer: bool) -> Holding:
    """Choose how a subscription's rows are held."""
    if subscription.queue.form is Form.LEASE:
        return Batched()
    if subscription.transactional:
        return Offered()
    return Batched(reads_ahead=False) if one_writer else Pinned()


def lanes_of(settings: Settings, declared: Declared) -> list[list[int]]:
    """Spread the lanes of all subscriptions over the children: the subscription of each lane, for each child."""
    lanes: list[list[int]] = [[] for _ in range(settings.processes)]
    place = 0
    for number, subscription in enumerate(declared.subscriptions):
        for _ in range(subscription.lanes(settings.processes)):
            lanes[place % settings.processes].append(number)
            place += 1
    return lanes


def _spec(opened: Opened, part: str) -> Spec:
    settings, declared = opened.settings, opened.declared
    pairs = zip(declared.subscriptions, opened.stores, strict=True)
    return Spec(
        modules=declared.sources,
        subscriptions=declared.labels,
        lanes=lanes_of(settings, declared),
        payload_kinds=[store.payload_kind for store in opened.stores],
        dsn=opened.database.dsn,
        pool=settings.child_pool_size,
        part=part,
        log_level=settings.log_level,
        path=list(sys.path),
        cwd=os.getcwd(),
        environment=dict(os.environ),
        layouts=[described(store.layout) if each.transactional else None for each, store in pairs],
    )


def _summary(replica: Replica, seconds: float) -> Summary:
    counts = [service.counts for service in replica.services]
    return Summary(
        acked=sum(each.acked for each in counts),
        retried=sum(each.retried for each in counts),
        dropped=sum(each.dropped for each in counts),
        dead=sum(each.dead for each in counts),
        lost=sum(each.lost for each in counts),
        later=sum(service.backlog.later for service in replica.services if service.backlog),
        seconds=seconds,
        interrupted=replica.interrupted,
    )


def run(*declared: object, **settings: Any) -> Summary:
    """Be `shardrun start` from Python: serve queues, handlers or sources; keywords are the command's flags with `_`.

    Stands under `if __name__ == "__main__":`, since children import the file. Raises `ShardrunError`.
    """
    if is_child():
        raise UsageProblem(
            'shardrun.run() was called while a child imported this file. Put it under: if __name__ == "__main__":'
        )
    found = registry.from_objects(declared)
    merged = config.load(settings, settings.pop("config", None), os.environ, os.getcwd())
    return start(open_all(merged, found))
