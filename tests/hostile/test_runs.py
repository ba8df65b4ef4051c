"""Hostile names and stubborn rows in a real replica, from `shardrun ddl` to the dead letters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.site import ROOT, Site
from tests.waiting import eventually

NAMES = """
from shardrun import Backoff, Delivery, Drop, Queue, Retry, Snooze

q = Queue({table!r}, id="User Id", payload="pay%load", headers="select", group="group", partition_key='a"b', priority="naïve %s",
          retry_after="Status", attempt="%(id)s", locked_until="locked until", last_error="'; drop table x; --")

@q.handler(group="a %s", workers_by_key=2, max_attempts=2, dead_letter={dead!r}, retry=Backoff(first=0, jitter=0))
def handle(body: dict, delivery: Delivery):
    act = body["act"]
    if act == "fail":
        raise ValueError("100% of \\"it\\" failed; %s")
    if delivery.attempt == 1 and act in ("retry", "snooze"):
        return Retry() if act == "retry" else Drop("100% %s")
"""


def shardrun(site: Site, *arguments: str) -> str:
    """Run a command of the command line to its end."""
    command = [sys.executable, "-m", "shardrun", *arguments, "--dsn", site.dsn]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=site.folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_names_that_need_quoting_from_ddl_to_dead_letters(site: Site) -> None:
    """A1, A6, C92: reserved words, capitals, spaces, quotes, percent signs, unicode, 63 bytes, a schema off the path."""
    table, dead = f'"or""der %d {"n" * 46}ü"', '"dead %s"'
    if site.dialect == "postgres":
        site.run('create schema "My Schema"')
        table, dead = f'"My Schema".{table}', f'"My Schema".{dead}'
    file = Path(site.folder, "tried.py")
    file.write_text(NAMES.format(table=table, dead=dead))
    shardrun(site, "ddl", str(file), "--apply")
    assert shardrun(site, "ddl", str(file), "--apply").strip().count("create ") == 0
    for number, act in enumerate(("ack", "retry", "snooze", "fail")):
        rows = [f'{{"act": "{act}"}}']
        shardrun(site, "enqueue", f"{file}:q", *rows, "--key", f"k%s{number}", "--group", "a %s")
    replica = site.start_module(str(file), "--until-empty", "--processes", "2", until=None)
    assert replica.wait(60) == 0, replica.stderr
    assert "warning" not in replica.stderr
    assert site.count(table) == 0
    text = """select "%(id)s", "'; drop table x; --", "a""b" from """
    assert site.run(f"{text}{dead}") == [(2, 'ValueError: 100% of "it" failed; %s', "k%s3")]


STUBBORN = """
from shardrun import Backoff, Queue
q = Queue.standard("q")

@q.handler(lease=1, max_attempts=3, retry=Backoff(first=0, jitter=0))
def handle(body: dict):
    with open("runs", "a") as file:
        file.write(f"{body['n']}\\n")
"""


@pytest.mark.parametrize("reference", ["", "deferrable initially deferred"])
def test_a_row_that_cannot_be_deleted_is_not_run_for_ever(server_site: Site, reference: str) -> None:
    """C93: the others are acked, the log names the constraint, and the row is run no more than max_attempts times."""
    site = server_site
    site.add(*({"n": number} for number in range(1, 6)))
    site.run(
        f"create table audit (row_id bigint, constraint seen_by foreign key (row_id) references q (id) {reference})"
    )
    site.run("insert into audit values (2)")
    file = Path(site.folder, "tried.py")
    file.write_text(STUBBORN)
    replica = site.start_module(str(file), "--processes", "1")
    replica.says('violates foreign key constraint "seen_by"')
    replica.says("(BURY)", times=2)
    runs = Path(site.folder, "runs").read_text().split()
    assert sorted(runs) == ["1", "2", "2", "2", "3", "4", "5"]
    assert site.run("select id from q") == [(2,)]
    assert site.count("q_dead") == 0
    site.run("delete from audit")
    eventually(lambda: site.count("q_dead") == 1, 20)
    replica.stop()
    assert site.count() == 0
