"""Check what was declared, as far as that needs no database; `plan` says how a handler is called (signature.py)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardrun import fetching, lock_key
from shardrun.decoding import DoesNotFit
from shardrun.errors import DeclarationProblem, NotInThisVersion, ShardrunError, UsageProblem
from shardrun.outcome import Backoff, DeadLetter, Drop, Retry
from shardrun.queue import ROLES, Form, Queue, Subscription, seconds, split_name
from shardrun.signature import Plan, check_signature, place, plan, subject

__all__ = ["DoesNotFit", "Plan", "place", "plan", "problems", "same_rows", "subject", "warnings"]

ISOLATIONS = ("read committed", "repeatable read", "serializable")
"""Levels that a queue may ask for; below them no claim could trust what it reads."""

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def problems(subscriptions: Sequence[Subscription]) -> list[ShardrunError]:
    """List everything that is wrong with these subscriptions, their queues and their handlers' signatures."""
    found: list[ShardrunError] = []
    for queue in {id(each.queue): each.queue for each in subscriptions}.values():
        found += _of_queue(queue)
    sound = [each for each in subscriptions if isinstance(each.queue.table, str)]
    for subscription in sound:
        for check in _CHECKS:
            found += check(subscription)
    return found + list(_same_rows([(each, tuple(split_name(each.queue.table))) for each in sound]))


def warnings(subscriptions: Sequence[Subscription]) -> list[str]:
    """List what works and may not be meant, one sentence each."""
    return _without_order(subscriptions) + _without_delays(subscriptions)


def _without_order(subscriptions: Sequence[Subscription]) -> list[str]:
    return [
        f"{subject(each)}: workers={each.workers} runs the rows of one {each.queue.partition_key} side by side, in no order. "
        f"For order by key use workers_by_key={each.workers}."
        for each in subscriptions
        if each.workers is not None
        and each.workers_by_key is None
        and each.queue.partition_key is not None
        and not each.queue.fifo
    ]


def _without_delays(subscriptions: Sequence[Subscription]) -> list[str]:
    queues = {id(each.queue): each.queue for each in subscriptions}.values()
    return [
        f"queue {queue.name} ({place(queue.source)}) has no column for due times: a failed row is tried again at once, and "
        f'Snooze counts as a failure. Add retry_after="<column>" to Queue(...).'
        for queue in queues
        if queue.retry_after is None and queue.form is not Form.LEASE
    ]


def _of_queue(queue: Queue[Any]) -> Iterator[ShardrunError]:
    where = f"queue {queue.name} ({place(queue.source)})"
    if not isinstance(queue.table, str):
        yield DeclarationProblem(f"{where}: {queue.table!r} is not the name of a table.")
    for role in ROLES:
        column = getattr(queue, role)
        if column is None or (isinstance(column, str) and column):
            continue
        way_out = "One column must identify a row." if role == "id" else f"Leave {role}= out where there is no column."
        yield DeclarationProblem(f"{where}: {role}={column!r} is not the name of one column. {way_out}")
    if queue.fetch is not None and (wrong := fetching.problem(queue.fetch)):
        yield DeclarationProblem(f"{where}: {wrong}")
    if queue.fifo:
        yield from _of_fifo(queue, where)
    if queue.advisory_lock is not None:
        if queue.locked_until is not None:
            yield DeclarationProblem(
                f"{where}: it names locked_until={queue.locked_until!r} (a lease) and advisory_lock={queue.advisory_lock!r}. "
                "Choose one."
            )
        if wrong := lock_key.problem(queue.advisory_lock):
            yield DeclarationProblem(f"{where}: {wrong}")
    if queue.isolation is not None and queue.isolation not in ISOLATIONS:
        known = ", ".join(f'"{each}"' for each in ISOLATIONS)
        yield DeclarationProblem(f"{where}: isolation={queue.isolation!r} is no isolation level. Use one of {known}.")


def _of_fifo(queue: Queue[Any], where: str) -> Iterator[ShardrunError]:
    for role, why in (("group", "its groups are what is kept in order"), ("attempt", _BEGUN)):
        if getattr(queue, role) is None:
            yield DeclarationProblem(f'{where}: fifo=True needs {role}="<column>": {why}.')
    if queue.advisory_lock is not None:
        yield NotInThisVersion(where, "fifo=True with advisory_lock=", "Choose one.")


_BEGUN = "a row that has begun is known by its count of attempts, and nothing passes it"


def _strands(each: Subscription) -> Iterator[ShardrunError]:
    """Refuse what does not go with an order over all replicas."""
    queue, row_lock = each.queue, each.queue.form is Form.ROW_LOCK
    if queue.fifo and (each.by_key or each.key_scope == "cluster"):
        yield UsageProblem(
            f"{subject(each)} asks for order by key, and fifo=True of queue {queue.name} gives order by group: one row of a "
            "group at a time, over all replicas. Choose one: workers=n goes with fifo."
        )
    elif queue.fifo and row_lock and (each.transactional or each.batch is not None):
        asked = "transactional=True" if each.transactional else "batch="
        way_out = 'Give the queue a lease column: locked_until="<column>".'
        yield NotInThisVersion(subject(each), f"{asked} with fifo=True in the row lock form", way_out)
    elif each.key_scope == "cluster" and queue.partition_key is not None:
        if queue.form is not Form.LEASE:
            way_out = 'Give the queue a lease column: locked_until="<column>".'
            yield NotInThisVersion(subject(each), f'key_scope="cluster" in the {queue.form.value} form', way_out)
        if queue.attempt is None:
            yield DeclarationProblem(f'{subject(each)}: key_scope="cluster" needs attempt="<column>": {_BEGUN}.')
        if not each.by_key:
            yield UsageProblem(
                f'{subject(each)}: key_scope="cluster" orders rows by key, and workers={each.workers} does not. Use '
                f"workers_by_key={each.workers}."
            )


def _signature(each: Subscription) -> Iterator[ShardrunError]:
    try:
        check_signature(each)
    except UsageProblem as problem:
        yield problem


def _modes(each: Subscription) -> Iterator[ShardrunError]:
    if each.transactional and inspect.iscoroutinefunction(each.function):
        yield UsageProblem(
            f"{subject(each)} is transactional and async def: the statements of its transaction would block the event loop. "
            "Make it a plain def, or leave transactional= out."
        )
    if each.key_scope not in ("replica", "cluster"):
        yield UsageProblem(f'{subject(each)}: key_scope={each.key_scope!r} is neither "replica" nor "cluster".')


def _lanes(each: Subscription) -> Iterator[ShardrunError]:
    for name in ("workers", "workers_by_key", "batch", "max_attempts"):
        value = getattr(each, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield UsageProblem(f"{subject(each)}: {name}={value!r} is not a whole number of 1 or more.")
    if each.workers is not None and each.workers_by_key is not None:
        yield UsageProblem(
            f"{subject(each)} asks for workers={each.workers} and workers_by_key={each.workers_by_key}. Choose workers_by_key "
            "for order within a key, or workers."
        )
    if each.workers_by_key is not None and each.queue.partition_key is None:
        yield DeclarationProblem(
            f"{subject(each)} of queue {each.queue.name} asks for workers_by_key={each.workers_by_key}, but the queue names no "
            f'partition_key. Add partition_key="<column>" to Queue(...), or use workers={each.workers_by_key}.'
        )


def _times(each: Subscription) -> Iterator[ShardrunError]:
    for name in ("lease", "timeout", "poll_interval"):
        value = getattr(each, name)
        if value is not None and not (_is_number(value) and value > 0):
            yield UsageProblem(
                f"{subject(each)}: {name}={value!r} is not a time: give seconds (more than 0) or a timedelta."
            )


def _retry(each: Subscription) -> Iterator[ShardrunError]:
    rule = each.retry
    if not isinstance(rule, Backoff):
        if not callable(rule) or isinstance(rule, type):
            yield UsageProblem(
                f"{subject(each)}: retry={rule!r} is no retry rule: give Backoff(first=1, factor=2) or a function "
                "(attempt, exception) -> seconds or an outcome."
            )
        return
    bounds = {"first": (0, math.inf), "factor": (1, math.inf), "longest": (0, math.inf), "jitter": (0, 1)}
    for name, (least, most) in bounds.items():
        value = getattr(rule, name)
        if not (_is_number(value) and least <= value <= most):
            limit = f"{least} or more" if most == math.inf else f"{least} to {most}"
            yield UsageProblem(f"{subject(each)}: Backoff({name}={value!r}) is not a number of {limit}.")


def _decode_policy(each: Subscription) -> Iterator[ShardrunError]:
    policy = each.on_decode_error
    if policy is None:
        return
    if not isinstance(policy, Drop | Retry | DeadLetter):
        yield UsageProblem(
            f"{subject(each)}: on_decode_error={policy!r} is none of Drop(), Retry(after=60), DeadLetter()."
        )
    elif isinstance(policy, Retry) and policy.after is not None:
        after = policy.after if isinstance(policy.after, bool) else seconds(policy.after)
        if not (_is_number(after) and after >= 0):
            yield UsageProblem(
                f"{subject(each)}: on_decode_error=Retry(after={policy.after!r}) is no delay: give seconds (0 or more) or a "
                "timedelta."
            )
    elif isinstance(policy, DeadLetter) and each.dead_letter is None and each.dead_letter_group is None:
        yield DeclarationProblem(
            f"{subject(each)} has on_decode_error=DeadLetter() and no dead letters. {_add_dead_letter(each)}"
        )


def _dead_letters(each: Subscription) -> Iterator[ShardrunError]:
    queue = each.queue
    if each.max_attempts is not None and each.dead_letter is None and each.dead_letter_group is None:
        yield DeclarationProblem(
            f"{subject(each)} has max_attempts={each.max_attempts} and nowhere to put a row after "
            f"{_ordinal(each.max_attempts)}. {_add_dead_letter(each)}"
        )
    if each.max_attempts is not None and queue.attempt is None:
        yield DeclarationProblem(
            f"{subject(each)} has max_attempts={each.max_attempts} and queue {queue.name} has no column to count attempts in. "
            'Add attempt="<column>" to Queue(...).'
        )
    if each.dead_letter is not None and each.dead_letter_group is not None:
        yield UsageProblem(
            f"{subject(each)} has dead_letter={each.dead_letter!r} and dead_letter_group={each.dead_letter_group!r}. Choose one."
        )
    if each.dead_letter is not None and _same_table(each.dead_letter, queue.table):
        yield DeclarationProblem(
            f"{subject(each)} would read its own dead letters: dead_letter={each.dead_letter!r} is the queue's own table. Name "
            "another table, or use dead_letter_group= and group=."
        )


def _groups(each: Subscription) -> Iterator[ShardrunError]:
    for name in ("group", "dead_letter_group"):
        value = getattr(each, name)
        if value is not None and each.queue.group is None:
            yield DeclarationProblem(
                f"{subject(each)} of queue {each.queue.name} asks for {name}={value!r}, but the queue names no group column. "
                'Add group="<column>" to Queue(...).'
            )
    if each.dead_letter_group is None or each.group not in (None, each.dead_letter_group):
        return
    reads = "it takes every group" if each.group is None else "that is the group it takes"
    yield DeclarationProblem(
        f"{subject(each)} would read its own dead letters: dead_letter_group={each.dead_letter_group!r}, and {reads}. Give it "
        "a group= of its own."
    )


def same_rows(resolved: Sequence[tuple[Subscription, tuple[str, ...]]]) -> list[ShardrunError]:
    """Find handlers that take each other's rows where one table was declared by several names; it is given resolved."""
    several: dict[tuple[str, ...], set[str]] = {}
    for each, table in resolved:
        several.setdefault(table, set()).add(".".join(split_name(each.queue.table)))
    return list(_same_rows([(each, table) for each, table in resolved if len(several[table]) > 1]))


def _same_rows(found: Sequence[tuple[Subscription, tuple[str, ...]]]) -> Iterator[ShardrunError]:
    """Find handlers that take each other's rows, also through two declarations of one table."""
    tables: dict[tuple[str, ...], list[Subscription]] = {}
    for each, table in found:
        tables.setdefault(table, []).append(each)
    for sharing in tables.values():
        groups = [each.group for each in sharing]
        clashing = sharing if None in groups else [each for each in sharing if groups.count(each.group) > 1]
        if len(clashing) > 1:
            *names, last = (f"{each.name} ({place(each.source)})" for each in clashing)
            count = "two" if len(clashing) == 2 else len(clashing)
            yield DeclarationProblem(
                f"queue {clashing[0].queue.name} has {count} handlers for the same rows: {', '.join(names)} and {last}. Give "
                "each its group=, or make them one."
            )


_CHECKS: tuple[Callable[[Subscription], Iterator[ShardrunError]], ...] = (
    _signature,
    _strands,
    _modes,
    _lanes,
    _times,
    _retry,
    _decode_policy,
    _dead_letters,
    _groups,
)


def _add_dead_letter(each: Subscription) -> str:
    table = each.queue.table
    name = f'{table[:-1]}_dead"' if table.endswith('"') else f"{table}_dead"
    return f'Add dead_letter={_quoted(name)} (shardrun ddl prints that table) or dead_letter_group="dead".'


def _quoted(name: str) -> str:
    return f"'{name}'" if '"' in name else f'"{name}"'


def _ordinal(number: int) -> str:
    return f"the {_ORDINALS[number - 1]}" if number in range(1, len(_ORDINALS) + 1) else f"attempt {number}"


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _same_table(first: Any, second: str) -> bool:
    return isinstance(first, str) and split_name(first) == split_name(second)
