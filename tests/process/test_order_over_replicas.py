"""Order over replicas: FIFO groups and keys, three replicas at once, while rows, children and coordinators fail.

SHARDRUN_STRANDS=2000 runs as many groups (and a fifth as many keys) as that; few are enough to show a fault.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from shardrun.queue import Queue
from tests.process.site import Replica, Site
from tests.waiting import eventually
from tests.witness import DIED, START, Event, intervals, most_at_once

MODULE = __file__.replace("test_order_over_replicas", "ordering")
STRANDS = int(os.environ.get("SHARDRUN_STRANDS", "40"))
ROWS = 20
"""In each group; keys have five times as many."""

LONGEST = 300.0 + STRANDS
"""Seconds that a run may take."""

PACE = max(1.0, min(STRANDS / 40, 5.0))
"""How far kills lie apart. Smaller: few children live for long enough to run rows."""

ENDS = ("ack", "dead")
PLACES = {
    "sqlite": "file_site",
    "postgres": "server_site",
    "mariadb": "mariadb_site",
}
CASES = {
    "fifo, lease, SQLite": ("sqlite", "fifo", "lease"),
    "fifo, lease, PostgreSQL": ("postgres", "fifo", "lease"),
    "fifo, lease, MariaDB": ("mariadb", "fifo", "lease"),
    "fifo, row lock, PostgreSQL": ("postgres", "fifo", "row lock"),
    "fifo, row lock, MariaDB": ("mariadb", "fifo", "row lock"),
    "keys, SQLite": ("sqlite", "cluster", "lease"),
    "keys, PostgreSQL": ("postgres", "cluster", "lease"),
    "keys, MariaDB": ("mariadb", "cluster", "lease"),
}


@pytest.fixture(params=list(CASES))
def site(request: pytest.FixtureRequest) -> Site:
    """Give a database with the tables of a queue that keeps an order."""
    dialect, order, form = CASES[request.param]
    place: Site = request.getfixturevalue(PLACES[dialect])
    declare(place, order, form, trouble=0.06)
    if STRANDS > 40:  # few rows are found without an index as well, and slowly
        due = "retry_after nulls first" if dialect == "postgres" else "retry_after"
        columns = f"name, attempt, {due}, id" if order == "fifo" else "partition_key, attempt, id"
        place.run(f"create index q_claim_in_order on q ({columns})")
    return place


def declare(site: Site, order: str, form: str, trouble: float) -> None:
    """Write down what the handler module declares."""
    (site.folder / "form").write_text(json.dumps({"order": order, "form": form, "trouble": trouble}))


def is_fifo(site: Site) -> bool:
    """Tell which order it is."""
    return bool(json.loads((site.folder / "form").read_text())["order"] == "fifo")


def fill(site: Site) -> dict[str, list[int]]:
    """Insert the rows of all strands, mixed; returns their ids by strand, in order."""
    strands, rows = (STRANDS, ROWS) if is_fifo(site) else (STRANDS // 5, 5 * ROWS)
    if "row lock" in (site.folder / "form").read_text():  # a row at a time, each with a transaction of its own
        strands //= 2
    names = [f"s{number % strands}" for number in range(strands * rows)]
    Random(7).shuffle(names)
    queue = Queue.standard("q")
    connection = site.another_connection()
    role = "group" if is_fifo(site) else "partition_key"
    queue.insert_many(connection, [{"payload": {}, role: name} for name in names])
    connection.commit()
    connection.close()
    ids: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names, 1):
        ids[name].append(number)
    return ids


class LateRows:
    """Rows whose transaction commits after that of rows with greater ids."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._queue = Queue.standard("q")
        self._role = "group" if is_fifo(site) else "partition_key"
        self.ids: set[int] = set()

    def insert(self, strand: str) -> None:
        """Insert two rows, the second committed while the first is not; on SQLite, where one writes at a time, both at once."""
        early, late = self._site.another_connection(), self._site.another_connection()
        connections = (early, early) if self._site.dialect == "sqlite" else (late, early)
        for connection in connections:
            roles: dict[str, Any] = {self._role: strand}
            row = self._queue.insert(connection, payload={}, **roles)
            self.ids.add(int(row))
        early.commit()
        eventually(lambda: bool(self._site.witness.rows()))
        late.commit()
        early.close()
        late.close()


@pytest.mark.timeout(LONGEST + 100)
def test_three_replicas_keep_the_order_whatever_goes_wrong(site: Site) -> None:
    """D3, D4, D5, R5, R6, H8: failures, delayed retries, snoozes, dead letters, kills of all kinds, late commits.

    One row of a strand in work at a time; none passes one that has begun and not ended (a snoozed row of a group may be
    passed); those that were there from the beginning begin in the order of their ids.
    """
    flags = ("-p", "2", "--child-pool-size", "1")
    replicas = [site.start_module(MODULE, *flags) for _ in range(3)]
    ids = fill(site)
    late, chance = LateRows(site), Random(3)
    until, crash_at = time.monotonic() + LONGEST, [sum(map(len, ids.values())) * share // 3 for share in (1, 2)]
    while (left := site.count()) and time.monotonic() < until:
        if len(late.ids) < 20:
            late.insert(f"s{chance.randrange(len(ids))}")
        kill_one(replicas, chance)
        if crash_at and left < crash_at[-1]:
            crash_at.pop()
            replicas.pop(0).crash()
            replicas.append(site.start_module(MODULE, *flags, until=None))
    for replica in replicas:
        replica.says(" ready in ")  # before that, a signal ends it as it ends any program
        replica.stop()
    assert (site.count(), crash_at) == (0, [])
    events = site.witness.events()
    check_ends(events, site)
    by_strand: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.what != DIED:
            by_strand[event.key].append(event)
    assert set(by_strand) == set(ids)
    for strand, own in by_strand.items():
        check_order(strand, own, late.ids, snoozed_may_be_passed=is_fifo(site))
    check_overlaps(events)


def kill_one(replicas: list[Replica], chance: Random) -> None:
    """Kill a child that has run for a moment, now and then; one that cannot even load would end its replica."""
    moment = time.monotonic() + PACE * chance.uniform(0.2, 0.6)
    eventually(lambda: time.monotonic() >= moment)
    replica = chance.choice([each for each in replicas if " ready in " in each.stderr])
    if family := replica.family():
        replica.kill_child(chance.choice(family))


def as_plain(event: Event) -> Event:
    """Write an end, however it was, as the witness's own."""
    return event if event.what in (START, DIED) else event._replace(what="end")


def check_ends(events: list[Event], site: Site) -> None:
    """Every row ended, once, or was ended by the deaths that it met."""
    ends: dict[int, int] = defaultdict(int)
    for event in events:
        if event.what in ENDS:
            ends[event.row] += 1
    rows = {event.row for event in events if event.what == START}
    spent = {row for row, (_, error) in site.dead().items() if "no use" not in error}
    assert rows - spent == set(ends) - spent
    again = {row: count for row, count in ends.items() if count > 1}
    died = {event.pid for event in events if event.what == DIED}
    by_row: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        if event.row in again and event.what in ENDS:
            by_row[event.row].append(event.pid)
    assert all(set(pids[:-1]) <= died for pids in by_row.values()), by_row  # settled by nobody before the death


def check_overlaps(events: list[Event]) -> None:
    """No two runs of a strand were open at once."""
    runs: dict[str, list[Any]] = defaultdict(list)
    for run in intervals([as_plain(event) for event in events]):
        runs[run.start.key].append(run)
    assert {strand: most for strand, of in runs.items() if (most := most_at_once(of)) > 1} == {}


def check_order(strand: str, events: list[Event], late: set[int], snoozed_may_be_passed: bool) -> None:
    """Rows begin in the order of their ids, and none passes one that has begun and may not be passed.

    Acks that a dead coordinator had not written are no ends: their rows run again, before what had begun behind them.
    """
    begun: set[int] = set()
    open_rows: set[int] = set()
    ended: set[int] = set()
    greatest = 0
    for event in events:
        if event.what == START:
            passed = open_rows - {event.row}
            if event.row in ended:
                passed = {row for row in passed if row < event.row}
            assert not passed, f"{strand}: row {event.row} passes {passed}"
            if event.row not in begun and event.row not in late:
                assert event.row > greatest, f"{strand}: row {event.row} begins after row {greatest}"
                greatest = event.row
            begun.add(event.row)
            open_rows.add(event.row)
        elif event.what in ENDS or (event.what == "snooze" and snoozed_may_be_passed):
            open_rows.discard(event.row)
            ended.update({event.row} if event.what in ENDS else ())
