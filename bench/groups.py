"""Measure what a claim of FIFO groups costs where there are many: `python -m bench groups`.

A table of a million rows in 1,000 groups, and one in 100,000; once with all groups free, and once with nine of ten put off
by a row that has failed. A claim takes 50 rows, which are acked; what it cost is the median of some, and how many groups it
looked at is their mean.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, cast

from bench import places, report
from shardrun import Queue
from shardrun.db.connect import database
from shardrun.db.strands import Seen, StrandStore

TABLE = "bench_groups"
FEW, MANY = 1_000, 100_000
CLAIMS, LIMIT = 30, 50

groups: Queue[str] = Queue(
    TABLE,
    id="id",
    payload="payload",
    group="name",
    fifo=True,
    attempt="attempt",
    retry_after="retry_after",
    locked_until="locked_until",
)


@groups.handler()
def do_nothing(body: str) -> None:
    """Do nothing with a row."""


PLACES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "PostgreSQL": places.postgres,
    "MariaDB": places.mariadb,
    "SQLite": places.sqlite,
}

CREATE = {
    "PostgreSQL": "id bigint primary key, payload text, name text, attempt integer not null, retry_after timestamptz, "
    "locked_until timestamptz",
    "MariaDB": "id bigint primary key, payload text, name varchar(64), attempt integer not null, retry_after datetime(6), "
    "locked_until datetime(6)",
    "SQLite": "id integer primary key, payload text, name text, attempt integer not null, retry_after timestamp, "
    "locked_until timestamp",
}

LATER = {
    "PostgreSQL": "now() + interval '1 hour'",
    "MariaDB": "utc_timestamp(6) + interval 1 hour",
    "SQLite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour')",
}

NUMBERS = {
    "PostgreSQL": "generate_series(1, {rows}) as s (n)",
    "MariaDB": "(select seq as n from seq_1_to_{rows}) as s",
    "SQLite": "(with recursive c (n) as (select 1 union all select n + 1 from c where n < {rows}) select n from c) as s",
}

TEXT = {
    "PostgreSQL": "'g' || (n % {groups})",
    "MariaDB": "concat('g', n % {groups})",
    "SQLite": "'g' || (n % {groups})",
}
ANALYZE = {"PostgreSQL": "vacuum analyze {table}", "MariaDB": "analyze table {table}", "SQLite": "analyze {table}"}


@dataclass(frozen=True)
class Cost:
    """What a claim cost: seconds, and groups that it looked at."""

    seconds: float
    looked_at: float


def main(arguments: list[str]) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="bench groups", description="Measure claims of FIFO groups.")
    parser.add_argument("databases", nargs="*", choices=[[], *PLACES], help=f"{' '.join(PLACES)} (all)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a table (1,000,000)")
    given = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in report.machine({}).items()))
    for name in given.databases or PLACES:
        with PLACES[name]() as place:
            for blocked in (False, True):
                few, many = (_measure(name, place.dsn, count, given.rows, blocked) for count in (FEW, MANY))
                state = "nine of ten put off" if blocked else "all free"
                print(
                    f"{name:<11} {state:<20} {FEW:,} groups: {_shown(few)}   {MANY:,} groups: {_shown(many)}   "
                    f"ratio {many.seconds / few.seconds:.2f}"
                )


def _shown(cost: Cost) -> str:
    return f"{1e3 * cost.seconds:6.1f} ms a claim of {LIMIT}, {cost.looked_at:5.0f} groups looked at"


def _measure(name: str, dsn: str, count: int, rows: int, blocked: bool) -> Cost:
    target = database(dsn, create=True)
    connection = target.connect("shardrun bench")
    for statement in _table(name, count, rows, blocked):
        connection.execute(statement)
    (subscription,) = groups.subscriptions
    groups.name = "groups"
    for warning in target.warnings(connection, subscription):
        connection.execute(warning[warning.lower().index("create index") :].replace("concurrently ", ""))
    connection.execute(ANALYZE[name].format(table=TABLE))
    store = cast(StrandStore, target.store(connection, subscription))
    visits: list[int] = []
    look = store.strands.verbs.look

    def counted(*given: Any) -> tuple[list[Seen], list[Seen]]:
        found = look(*given)
        visits[-1] += len(found[0]) + len(found[1])
        return found

    store.strands.verbs.look = counted  # type: ignore[assignment, method-assign]
    taken = []
    for _ in range(CLAIMS):
        visits.append(0)
        began = time.perf_counter()
        claimed = store.claim_strands(connection, LIMIT, [], frozenset())
        taken.append((time.perf_counter() - began) * LIMIT / max(1, len(claimed)))
        assert claimed, f"{name}: a claim took nothing"
        acked: dict[str, list[Any]] = {}
        for row in claimed:
            acked.setdefault(row.token, []).append(row.id)
        store.settle(connection, [], acked=acked)
    connection.execute(f"drop table {TABLE}")
    target.close(connection)
    return Cost(median(taken[2:]), mean(visits[2:]))


def _table(name: str, count: int, rows: int, blocked: bool) -> Iterator[str]:
    """Write the statements that make and fill the table; rows of a group lie far apart."""
    yield f"drop table if exists {TABLE}"
    yield f"create table {TABLE} ({CREATE[name]})"
    numbers, group = NUMBERS[name].format(rows=rows), TEXT[name].format(groups=count)
    first = f"n <= {count} and n % 10 > 0" if blocked else "n < 0"
    yield (
        f"insert into {TABLE} (id, payload, name, attempt, retry_after) select n, 'x', {group}, case when {first} then 1 else 0 "
        f"end, case when {first} then {LATER[name]} end from {numbers}"
    )
