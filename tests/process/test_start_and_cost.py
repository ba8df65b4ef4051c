"""How a start ends when it cannot begin, and what a run costs the database."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.process.site import Site
from tests.servers import Postgres
from tests.waiting import eventually

GOOD = """
from shardrun import Queue
queue = Queue.standard("q")

@queue.handler()
def handle(body: dict) -> None: ...
"""

IN_CHILDREN_ONLY = """
import os, sys
if "child" in sys.argv[0]:
    raise RuntimeError("only here")
"""

MODULES = {
    "missing import": "import no_such_module_anywhere" + GOOD,
    "syntax": GOOD + "\ndef (:\n",
    "no handler": 'from shardrun import Queue\nqueue = Queue.standard("q")\n',
    "signature": GOOD.replace("body: dict", "body: dict, other: int"),
    "raises in a child": IN_CHILDREN_ONLY + GOOD,
    "dies in a child": IN_CHILDREN_ONLY.replace('raise RuntimeError("only here")', "os._exit(3)") + GOOD,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_used_ends_the_start(file_site: Site, name: str) -> None:
    """C40: exit 2 in seconds, one sentence that names the file, no row claimed, no endless respawning."""
    site = file_site
    site.add({}, {})
    (site.folder / "handlers.py").write_text(MODULES[name])
    replica = site.start_module("handlers.py", "-p", "2", until=None)
    assert replica.wait(15) == 2, replica.stderr
    assert site.attempts() == {1: 0, 2: 0}
    assert site.run("select locked_until from q") == [(None,), (None,)]
    if "child" not in name:
        assert "handlers.py" in replica.stderr
    if name != "missing import":
        assert "Traceback" not in replica.stderr


def test_exit_codes_tell_usage_database_and_table_apart(site: Site) -> None:
    """A5, H5: 2, 3 and 4, each with a sentence on stderr and nothing on stdout."""
    (site.folder / "handlers.py").write_text(GOOD)
    missing = "sqlite:///nowhere.db" if site.dialect == "sqlite" else "postgresql://x:never-shown-9@127.0.0.1:1/none"
    cases = [
        (2, ["handlers.py", "-p", "0"], None),
        (2, ["nowhere.py"], None),
        (3, ["handlers.py"], missing),
        (4, ["handlers.py"], None),
    ]
    for code, flags, dsn in cases:
        if code == 4:
            site.run("drop table q_dead")
        replica = site.start_module(*flags, until=None, dsn=dsn)
        assert replica.wait(15) == code, replica.stderr
        assert replica.stderr.startswith("shardrun: ")
        assert "Traceback" not in replica.stderr
        assert "never-shown" not in replica.stderr
        assert replica.stdout == ""


def test_an_empty_table_is_a_good_end(site: Site) -> None:
    """H5: exit 0, one summary line on stdout and nothing else there."""
    replica = site.work_off("-p", "1")
    assert re.fullmatch(r"0 acked, .* rows/s\)\n", replica.stdout)


CLAIM = "with clock as materialized ("
"""A claim's first line, which is what the server's log has of it in one line."""


@contextmanager
def statements_of(site: Site) -> Iterator[list[str]]:
    """Collect the statements that the server runs in this site's database while the block runs."""
    server = site.server
    assert isinstance(server, Postgres)
    name = site.dsn.rpartition("/")[2]
    with server.admin() as admin:
        admin.execute(f"alter database \"{name}\" set log_statement = 'all'")
        admin.execute(f"alter database \"{name}\" set application_name = ''")
    statements: list[str] = []
    before = len(server.log)
    try:
        yield statements
    finally:
        statements += re.findall(r"(?:statement|execute [^:]*): (.*)", server.log[before:])


def test_an_idle_replica_claims_once_in_a_poll_interval(server_site: Site) -> None:
    """C3, P4: one claim at a time on an empty table, whatever the number of workers, and nothing but claims."""
    site = server_site
    with statements_of(site):
        replica = site.start("-p", "2", workers=8)
        site.add(*[{}] * 5)
        eventually(lambda: site.count() == 0)
    with statements_of(site) as statements:
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 2)
        seconds = time.monotonic() - began
    replica.stop()
    claims = [each for each in statements if each == CLAIM]
    assert set(statements) <= {CLAIM, "select count(*) from q"}
    assert 1 <= len(claims) <= seconds / (0.1 * 0.9) + 1


def test_a_thousand_small_rows_cost_few_statements(server_site: Site) -> None:
    """B2, C6: claims and settlements take many rows each."""
    site = server_site
    site.add(*[{}] * 1000)
    with statements_of(site) as statements:
        site.work_off("-p", "2")
    claims = sum(each == CLAIM for each in statements)
    settled = sum(each.startswith("delete from") for each in statements)
    print(f"\n1,000 rows: {claims} claims, {settled} settlements, {len(statements)} statements in all")
    assert claims < 60
    assert settled < 200


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_foreign_writer_never_makes_the_database_locked(file_site: Site, journal: str) -> None:
    """C87, C5: fifty small transactions a second from outside, and once the write lock for 3 s."""
    site = file_site
    site.run(f"pragma journal_mode = {journal}")
    site.run("create table foreign_rows (n integer)")
    site.add(*[{}] * 250, *[{"do": "sql", "sql": ["insert into foreign_rows values (1)"]}] * 250)
    stopped = threading.Event()

    def write() -> None:
        with closing(site.another_connection()) as connection:
            while not stopped.wait(0.02):
                with connection:
                    connection.execute("insert into foreign_rows values (0)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        replica = site.start("-p", "2", lease=10)
        eventually(lambda: site.count() < 400)
        with closing(site.another_connection()) as connection:
            connection.execute("begin immediate")
            until = time.monotonic() + 3
            eventually(lambda: time.monotonic() > until)
            connection.rollback()
        eventually(lambda: site.count() == 0, 30)
    finally:
        stopped.set()
        writer.join()
    replica.stop()
    assert site.count("q_dead") == 0
    assert "locked" not in replica.stderr
    assert {event.attempt for event in site.witness.events()} == {1}
    assert all(site.witness.runs(row) == 1 for row in (1, 250, 251, 500))
    assert site.one("select count(*) from foreign_rows where n = 1") == 250


PROCESSES_OF_ITS_OWN = """
import multiprocessing, os, subprocess
from concurrent.futures import ProcessPoolExecutor
from shardrun import Queue

queue = Queue.standard("q")


def double(number: int) -> int:
    return number * 2


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map(double, [1, 2, 3]) == [2, 4, 6]


def executor() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        assert list(workers.map(double, [1, 2])) == [2, 4]


def codes() -> None:
    assert {subprocess.run(["sh", "-c", "exit 7"]).returncode for _ in range(20)} == {7}


def waits() -> None:
    child = os.fork()
    if not child:
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def returns_in_a_fork() -> None:
    os.fork()


def leaves() -> None:
    subprocess.Popen(["sleep", "1"])


@queue.handler(max_attempts=1, workers=2)
def handle(body: dict) -> None:
    globals()[body["do"]]()
"""


def test_handlers_may_start_processes_of_their_own(file_site: Site) -> None:
    """C36, H7: pools, executors, subprocesses, forks that come back from the handler; exit codes reach the user."""
    site = file_site
    acts = ["pool", "executor", "codes", "waits", "returns_in_a_fork", "leaves"]
    site.add(*[{"do": act} for act in acts])
    (site.folder / "handlers.py").write_text(PROCESSES_OF_ITS_OWN)
    replica = site.start_module("handlers.py", "-p", "2", "--until-empty", until=None)
    assert replica.wait() == 0, replica.stderr
    assert site.dead() == {}, replica.stderr
    assert f"{len(acts)} acked" in replica.stdout


def test_rows_larger_than_a_ring_arrive_and_their_childs_death_blocks_nobody(site: Site) -> None:
    """C15, H1: rows of 2 MB cross a ring of 1 MB; a child that dies while one is on its way is replaced."""
    big = "x" * 2_000_000
    site.add({"do": "segfault", "until": 1, "big": big}, *[{"big": big}] * 9)
    site.add({"do": "kill", "until": 1, "big": big}, *[{"big": big}] * 5, partition_key="k")
    site.work_off("-p", "2", lease=5)
    assert site.count() == 0
    assert site.witness.rows() == set(range(1, 17))
    assert site.witness.runs(11) == 2
