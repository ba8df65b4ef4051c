"""What replicas ask of a server: connections within their pool, and one claim per wait while there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import intervals, most_at_once

POLL = 0.2
EACH = {"postgres": 0.05, "mariadb": 0.15}
"""Seconds between looks at the server: MariaDB's list of transactions is read anew only after a tenth without a reader."""

QUEUES = ("q", "second", "third")
ROWS = 8

# Of coordinators, those that have a transaction open between two statements.
HOLDING = {
    "postgres": "select count(*) from pg_stat_activity where datname = current_database() "
    "and application_name like 'shardrun %' and application_name not like '% child %' and state = 'idle in transaction'",
    "mariadb": "select count(*) from information_schema.innodb_trx "
    "join information_schema.processlist as p on p.id = trx_mysql_thread_id "
    "join performance_schema.session_connect_attrs as a on a.processlist_id = p.id and a.attr_name = 'program_name' "
    "where p.db = database() and p.command = 'Sleep' and a.attr_value not like '% child %'",
}

# Queues without a partition key, whose claims may go side by side; each row writes an effect on its child's own connection,
# and may wait at a gate.
HANDLERS = """
import os, time
from pathlib import Path
from shardrun import Delivery, Queue
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
FORM = {"locked_until": "locked_until"} if os.environ.get("FORM") == "lease" else {}
witness = Witness(FOLDER / "witness")


def serve(table):
    queue = Queue(table, id="id", payload="payload", attempt="attempt", retry_after="retry_after", **FORM)

    def handle(body: dict, delivery: Delivery) -> None:
        witness.start(f"{table} {delivery.id}", table)
        with delivery.connection() as connection:
            connection.cursor().execute("insert into effects (name, no) values (%s, %s)", (table, delivery.id))
        time.sleep(0.02)
        while not (FOLDER / body.get("gate", "")).exists():
            time.sleep(0.01)
        witness.end(f"{table} {delivery.id}", table)

    handle.__name__ = f"handle_{table}"
    queue.handler(workers=8)(handle)
    return queue


"""


def handlers(site: Site, *tables: str) -> str:
    """Write the handler module for some tables; returns its name."""
    site.run("create table effects (name varchar(10), no integer)")
    (site.folder / "handlers.py").write_text(HANDLERS + "\n".join(f'{table} = serve("{table}")' for table in tables))
    return "handlers.py"


@pytest.fixture(params=["postgres", "mariadb"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Give a database on each server."""
    server: Any = request.getfixturevalue(request.param)
    site = Site(request.param, tmp_path, server)
    site.create("q")
    yield site
    site.close()
    if request.param == "mariadb":
        server.drop_databases()


def test_three_subscriptions_of_row_locks_leave_each_other_room_in_a_pool_of_four(served: Site) -> None:
    """C2, B1, F1: each row keeps a connection, one has slow rows; the others go on meanwhile, and the last one is free."""
    site = served
    site.create(*QUEUES[1:])
    site.add(*[{"gate": "gate"}] * ROWS, table="q")
    for table in QUEUES[1:]:
        site.add(*[{}] * ROWS, table=table)
    flags = (handlers(site, *QUEUES), "-p", "2", "--pool-size", "4", "--child-pool-size", "12")
    replica = site.start_module(*flags, "--until-empty", until=None)
    seen: list[tuple[int, int]] = []
    next_look = 0.0

    def look(tables: tuple[str, ...]) -> bool:
        nonlocal next_look
        if time.monotonic() >= next_look:
            sessions = len([name for name in site.sessions() if "child" not in name])
            seen.append((site.one(HOLDING[site.dialect]), sessions))
            next_look = time.monotonic() + EACH[site.dialect]
        return not any(site.count(table) for table in tables)

    eventually(lambda: look(QUEUES[1:]) and len(seen) > 1, 30)
    assert site.count("q") == ROWS
    eventually(lambda: not look(QUEUES) and 1 <= seen[-1][0] <= 3)
    site.open_gate()
    eventually(lambda: look(QUEUES), 30)
    assert replica.wait() == 0, replica.stderr
    assert max(held for held, _ in seen) <= 3
    assert max(sessions for _, sessions in seen) <= 4
    expected = [(table, row, 1) for table in QUEUES for row in range(1, ROWS + 1)]
    assert site.run("select name, no, count(*) from effects group by name, no order by name, no") == expected
    assert 2 <= most_at_once(intervals(site.witness.events())) <= 3


def claims(site: Site) -> int:
    """Count the claims that the server has seen, and on MariaDB other queries of the replica."""
    if site.dialect == "mariadb":
        return int(site.run("show global status like 'Com_select'")[0][1])
    return str(site.server.log).count("skip locked")  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["row lock", "lease"])
def test_an_empty_table_sees_one_claim_per_wait(served: Site, form: str) -> None:
    """C3: with eight lanes and three connections to claim on, one at a time; what is inserted then is worked off at once."""
    site = served
    if site.dialect == "postgres":
        with site.server.admin() as admin:  # type: ignore[union-attr]
            admin.execute(f"alter database \"{site.dsn.rpartition('/')[2]}\" set log_statement = 'all'")
    flags = ("-p", "2", "--pool-size", "4", "--child-pool-size", "4", "--poll-interval", str(POLL))
    replica = site.start_module(handlers(site, "q"), *flags, FORM=form)
    before = claims(site)
    eventually(lambda: claims(site) > before)
    began, first = time.monotonic(), claims(site)
    eventually(lambda: claims(site) >= first + 6, 20)
    seen = claims(site) - first
    assert seen <= 2 + (time.monotonic() - began) / (0.9 * POLL)
    site.add(*[{"gate": "gate"}] * 3)
    eventually(lambda: len(site.witness.rows()) == 3)
    site.open_gate()
    eventually(lambda: site.count() == 0)
    replica.stop()
