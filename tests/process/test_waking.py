"""Rows that handlers insert for other handlers run at once, however long the poll interval is."""

from __future__ import annotations

import re

from tests.process.site import Site
from tests.servers import Postgres
from tests.waiting import eventually

CHAIN = """
import os, time
from pathlib import Path
from shardrun import Delivery, Queue

FOLDER = Path(os.environ["ACTS_FOLDER"])
first = Queue.standard("q")
second = Queue.standard("other")


def ran(what):
    with open(FOLDER / "ran", "a") as file:
        file.write(what + "\\n")


@first.handler(workers=1)
def begin(body: dict, delivery: Delivery) -> None:
    if "last" in body:
        return ran("last")
    while not (FOLDER / "gate").exists():
        time.sleep(0.01)
    try:
        with delivery.connection() as db:
            second.insert(db, group="reports", payload={})
            raise LookupError
    except LookupError:
        pass
    with delivery.connection() as db:
        second.insert(db, group="mails", payload={})
    while not (FOLDER / "end").exists():
        time.sleep(0.01)


@second.handler(group="mails", workers=1)
def mail(body: dict, delivery: Delivery) -> None:
    with delivery.connection() as db:
        first.insert_many(db, [{"payload": {"last": True}}])
    ran("mail")


@second.handler(group="reports", workers=1)
def report(body: dict) -> None: ...
"""


def log_of(site: Site) -> str:
    return site.server.log if isinstance(site.server, Postgres) else ""


def log_statements(site: Site) -> None:
    """Have the server write down every statement, with its parameters."""
    if isinstance(site.server, Postgres):
        with site.server.admin() as admin:
            admin.execute(f"alter database \"{site.dsn.rpartition('/')[2]}\" set log_statement = 'all'")


def test_a_chain_of_handlers_runs_through_long_before_the_poll(site: Site) -> None:
    """G1: poll interval 10 min; another queue's row runs while its inserter still does, then one of the own queue.

    Other groups are not woken, nor by what was rolled back: on a server that logs statements, nothing claims for them.
    """
    site.create("other")
    site.add({})
    (site.folder / "handlers.py").write_text(CHAIN)
    log_statements(site)
    replica = site.start_module("handlers.py", "-p", "2", "--child-pool-size", "1", "--poll-interval", "600")
    replica.says("the table has no unfinished row", times=2)  # of mails, of reports; the first row is under way
    before = log_of(site)
    site.open_gate()
    ran = site.folder / "ran"
    eventually(lambda: ran.exists() and "mail" in ran.read_text())
    assert site.count("q") == 2
    site.open_gate("end")
    eventually(lambda: "last" in ran.read_text())
    eventually(lambda: site.count("q") == 0 == site.count("other"))
    replica.stop()
    claims = re.findall(r"parameters: \$1 = '(mails|reports)', \$2 = '1'", log_of(site)[len(before) :])
    assert set(claims) == ({"mails"} if site.server else set())  # what was rolled back woke nobody
    assert len(claims) <= 3
