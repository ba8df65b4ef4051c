"""One contract for every form of holding rows, in every mode, on every database: each cell that is declared keeps it."""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardrun.db.forms import Mode, On, cell
from shardrun.queue import Form, Queue
from tests.process.site import Replica, Site
from tests.waiting import eventually
from tests.witness import START

BATCH = 4
"""Rows of a batch, as in the handler module."""

MODULE = str(Path(__file__).with_name("contract.py"))
DIALECTS = {"postgres": On.POSTGRES, "mariadb": On.MYSQL, "sqlite": On.SQLITE}

# What somebody else does to the row that runs: takes its lease over, for a moment, or ends the session that holds it.
TAKEN = {
    ("postgres", Form.LEASE): "update q set locked_until = clock_timestamp() + interval '1 second' where id = ?",
    ("mariadb", Form.LEASE): "update q set locked_until = utc_timestamp(6) + interval 1 second where id = ?",
    (
        "sqlite",
        Form.LEASE,
    ): "update q set locked_until = strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 second') where id = ?",
}
HOLDERS = {
    ("postgres", Form.ROW_LOCK): "select pid from pg_stat_activity where datname = current_database() "
    "and application_name like 'shardrun %' and state = 'idle in transaction' and ? > 0",
    ("postgres", Form.ADVISORY): "select pid from pg_locks where locktype = 'advisory' and granted and ? > 0",
    ("mariadb", Form.ROW_LOCK): "select trx_mysql_thread_id from information_schema.innodb_trx "
    "join information_schema.processlist on id = trx_mysql_thread_id "
    "where db = database() and command = 'Sleep' and ? > 0",
    ("mariadb", Form.ADVISORY): "select is_used_lock(concat('contract-', ?))",
}


@dataclass(frozen=True)
class Cell:
    """A form and a mode on one database."""

    dialect: str
    form: Form
    mode: Mode

    @property
    def name(self) -> str:
        """Name it, as the list of tests does."""
        return f"{self.dialect} {self.form.value} {self.mode.name.lower()}"

    @property
    def is_transactional(self) -> bool:
        """Tell whether what a handler writes is settled with its row."""
        return self.mode in (Mode.TRANSACTIONAL, Mode.BOTH)

    @property
    def has_batches(self) -> bool:
        """Tell whether a delivery has several rows."""
        return self.mode in (Mode.BATCH, Mode.BOTH)

    @property
    def replicas(self) -> int:
        """Say how many may serve one table at once."""
        return 1 if cell(self.form, self.mode, DIALECTS[self.dialect]).short else 2

    @property
    def is_locked(self) -> bool:
        """Tell whether nobody else can delete a row that runs."""
        return self.is_transactional or self.form is Form.ROW_LOCK

    @property
    def writes_alone(self) -> bool:
        """Tell whether nobody else, its coordinator neither, can write while a row runs."""
        return self.is_transactional and self.dialect == "sqlite"

    def environment(self, site: Site, **dead: Any) -> dict[str, str]:
        """Tell the handler module."""
        file = str(site.folder / "test.db") if self.dialect == "sqlite" else None
        at_once = 1 if self.writes_alone else self.replicas
        settings: dict[str, Any] = {"form": self.form.value, "transactional": self.is_transactional, "file": file}
        settings |= {"batch": self.has_batches, "at_once": at_once, "dead": dead or {"dead_letter": "q_dead"}}
        return {"CELL": json.dumps(settings)}


ALL = [
    Cell(dialect, form, mode)
    for dialect, form, mode in itertools.product(DIALECTS, Form, Mode)
    if cell(form, mode, DIALECTS[dialect]).is_there
]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Give a database of the cell's kind, with the tables `q` and `q_dead` and one for effects."""
    here: Cell = request.getfixturevalue("here")
    server: Any = None if here.dialect == "sqlite" else request.getfixturevalue(here.dialect)
    place = Site(here.dialect, tmp_path, server)
    place.create("q")
    place.run("create table effects (no integer)")
    yield place
    place.close()
    if here.dialect == "mariadb":
        server.drop_databases()


def add(site: Site, *acts: str | tuple[str, dict[str, Any]], **roles: Any) -> list[int]:
    """Insert rows that do one thing each, in one transaction, some with roles of their own; lists their ids."""
    each = [(act, {}) if isinstance(act, str) else act for act in acts]
    rows = [{"payload": {"do": act}, "group": "main", **roles, **own} for act, own in each]
    connection = site.another_connection()
    Queue.standard("q").insert_many(connection, rows)
    connection.commit()
    connection.close()
    first = site.next_id
    site.next_id += len(rows)
    return list(range(first, site.next_id))


def starts(site: Site, row: int) -> list[int]:
    """List the attempts under which a row began."""
    return [event.attempt for event in site.witness.events() if event.what == START and event.row == row]


def runner(site: Site, row: int) -> int:
    """Tell which child ran a row first."""
    return next(event.pid for event in site.witness.events() if event.what == START and event.row == row)


def share_and_drain(site: Site, here: Cell) -> Replica:
    """Have replicas share rows, and stop one in the middle of a row; gives the other, in the middle of one, too."""
    add(site, *["meet"] * 6, priority=0)
    gates = set(add(site, *["gate"] * (3 * BATCH), priority=0))
    settings = here.environment(site)
    flags = (MODULE, "-p", "1", "--child-pool-size", "2")
    replicas = [site.start_module(*flags, until=None, **settings) for _ in range(here.replicas)]
    for replica in replicas:
        replica.says("ready")
    row = eventually(lambda: site.witness.rows() & gates, 20).pop()
    (stopping,) = [each for each in replicas if runner(site, row) in each.pids()]
    stopping.send(signal.SIGTERM)
    stopping.says("draining")
    for each in (
        replicas if here.writes_alone else [stopping]
    ):  # the other's row would keep this one from giving rows back
        site.open_gate(f"gate-{each.pid}")
    assert stopping.wait() == 0, stopping.stderr
    if here.replicas == 1:
        replicas.append(site.start_module(*flags, **settings))
    (other,) = [each for each in replicas if each is not stopping]
    eventually(lambda: any(runner(site, each) in other.pids() for each in site.witness.rows() & gates), 20)
    assert len([each for each in site.witness.rows() & gates if runner(site, each) not in other.pids()]) <= BATCH
    return other


# In claim order: by priority, then by due time, NULL first, then by id.
MIXED: list[tuple[str, dict[str, Any]]] = [
    ("ack", {"priority": 5}),
    ("retry", {"priority": 3, "retry_after": 0}),
    ("snooze", {"priority": 3}),
    ("drop", {"priority": 2}),
    ("dead", {"priority": 2, "retry_after": 0}),
    ("delete", {"priority": 2}),
    ("ack", {"priority": 1}),
]
ORDER = [6, 3, 5, 4, 2, 1, 0]


def take_away(site: Site, here: Cell, row: int, replica: Replica) -> None:
    """Have somebody else take a row that runs, and let its handler end."""
    eventually(lambda: site.witness.runs(row) == 1, 20)
    if (here.dialect, here.form) in TAKEN:
        site.run(TAKEN[here.dialect, here.form], row)
    elif not here.is_transactional:
        ((session,),) = site.run(HOLDERS[here.dialect, here.form], row)
        site.run("kill connection ?" if here.dialect == "mariadb" else "select pg_terminate_backend(?)", session)
        replica.says("the lock is lost")
    site.open_gate("late")


def end_alone(site: Site, here: Cell, replica: Replica) -> dict[str, int]:
    """Have a row each raise for ever, kill its child, and end late: one after another, lest they are of one batch."""
    rows = {}
    for act in ["raise", "kill", "late"]:
        if act == "late" and here.replicas == 1 and not here.is_transactional:
            continue  # its only holder is the replica itself
        (rows[act],) = add(site, act)
        if act == "late" and not here.is_transactional:
            take_away(site, here, rows[act], replica)
        eventually(lambda: site.count() == 0, 20)
    return rows


def stop_before_the_end(site: Site, here: Cell, replica: Replica) -> tuple[list[int], int]:
    """Stop a replica in the middle of a row, with leases on some that follow; lists the rows that ran, and which that was.

    It reads ahead when it has found rows to be quick.
    """
    before = 40 if here.form is Form.LEASE else 4
    rows = add(site, *["bare"] * before, "last", *["bare"] * 8)
    last = rows[before]
    eventually(lambda: site.witness.runs(last) == 1, 20)
    if here.form is Form.LEASE and not here.writes_alone:
        eventually(lambda: site.held() > (BATCH if here.has_batches else 1), 20)
    replica.send(signal.SIGTERM)
    replica.says("draining")
    site.open_gate("last")
    assert replica.wait() == 0, replica.stderr
    ran = [row for row in rows if row in site.witness.rows()]
    assert len(ran) <= before + BATCH
    assert {row: count or 0 for row, count in site.attempts().items()} == dict.fromkeys(rows[len(ran) :], 0)
    assert not site.held()
    return ran, last


def summary(*replicas: Replica) -> dict[str, int]:
    """Add up what replicas have counted."""
    total: Counter[str] = Counter()
    for replica in replicas:
        said = replica.stderr.split("stopped: ")[1]
        total.update({name: int(count) for count, name in re.findall(r"(\d+) (acked|retried|dropped|dead|lost)", said)})
    return dict(total)


@pytest.mark.parametrize("here", ALL, ids=lambda here: here.name)
def test_a_form_keeps_the_contract(here: Cell, site: Site) -> None:
    """B1, B2, B4, B5, B6, D2, E1, E2, E3, H2, H5, H8, R3, R8: two claimers share rows and each row's effect is there once;
    drains in the middle give back what has not begun, at once and uncounted; rows come in claim order and end as they say;
    a crash costs its row one attempt; what raises is dead-lettered after the last; who has lost a row settles nothing.
    """
    other = share_and_drain(site, here)
    shared = site.next_id - 1
    site.open_gate(f"gate-{other.pid}")
    eventually(lambda: site.count() == 0, 20)
    alone = end_alone(site, here, other)
    mixed = add(site, *MIXED)
    eventually(lambda: site.count() == 0, 20)
    bare, last = stop_before_the_end(site, here, other)
    ran = {row: starts(site, row) for row in range(1, bare[-1] + 1)}
    late_again = [1, 1] if here.form is Form.ROW_LOCK and not here.is_transactional else [1, 2]
    more = {mixed[1]: [1, 2], mixed[2]: [1, 1], alone["raise"]: [1, 2, 3], alone["kill"]: [1, 2]}
    more |= {alone["late"]: late_again} if "late" in alone else {}
    assert ran == {row: more.get(row, [1]) for row in ran}
    began = dict.fromkeys(event.row for event in site.witness.events() if event.what == START)
    assert [row for row in began if row in mixed] == [mixed[place] for place in ORDER]
    assert site.dead() == {mixed[4]: (1, "by hand"), alone["raise"]: (3, "ValueError: always")}
    assert (site.folder / "delete").read_text().startswith("refused" if here.is_locked else "deleted")
    assert effects(site) == expected_effects(here, [*range(1, shared + 1), last], mixed, alone)
    assert summary(*site.replicas) == counts(here, shared + len(bare), "late" in alone)


TO_A_GROUP = [
    Cell("postgres", Form.ROW_LOCK, Mode.PLAIN),
    Cell("mariadb", Form.LEASE, Mode.TRANSACTIONAL),
    Cell("sqlite", Form.ADVISORY, Mode.PLAIN),
]


@pytest.mark.parametrize("here", TO_A_GROUP, ids=lambda here: here.name)
def test_dead_letters_go_to_a_group_of_the_same_table(here: Cell, site: Site) -> None:
    """E3, B1, B2, B4: with their attempts and their reason; a run until empty does not wait for them."""
    dead, raising, _ = add(site, "dead", "raise", "ack")
    environment = here.environment(site, dead_letter_group="dead")
    replica = site.start_module(MODULE, "-p", "1", "--child-pool-size", "2", "--until-empty", until=None, **environment)
    assert replica.wait() == 0, replica.stderr
    left = site.run("select id, name, attempt, last_error from q order by id")
    assert left == [(dead, "dead", 1, "by hand"), (raising, "dead", 3, "ValueError: always")]
    assert "1 acked, 2 retried, 0 dropped, 2 dead, 0 lost" in replica.stdout


def effects(site: Site) -> dict[int, int]:
    """Count what each row has written."""
    return dict(site.run("select no, count(*) from effects group by no"))


def expected_effects(here: Cell, plain: list[int], mixed: list[int], alone: Mapping[str, int]) -> dict[int, int]:
    """Say what each row writes: once, but for a row that was taken away from a handler whose writes are its own."""
    once = {*plain, *mixed, alone["kill"]} - {mixed[4]}
    if here.mode is not Mode.TRANSACTIONAL:
        once.remove(mixed[3])  # dropped: what it wrote in a transaction of its own is kept
    late = {alone["late"]: 1 if here.is_transactional else 2} if "late" in alone else {}
    return dict.fromkeys(once, 1) | late


def counts(here: Cell, plain: int, has_late: bool) -> dict[str, int]:
    """Say what replicas count."""
    late_fails = here.is_transactional
    return {
        "acked": plain + 5 + here.is_locked + has_late,
        "retried": 4 + late_fails,
        "dropped": 1,
        "dead": 2,
        "lost": (not here.is_locked) + (has_late and not late_fails),
    }
