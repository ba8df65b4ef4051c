"""Stops in order, impatient ones, and fresh code under SIGHUP."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import START


def starts_of_leftovers(site: Site, *rows: int) -> None:
    """Start again; the rows begin at once, not a lease later."""
    (site.folder / "gate").touch()
    replica = site.start("-p", "2", lease=30)
    eventually(lambda: all(site.witness.ended(row) for row in rows), 10)
    replica.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(site: Site, number: signal.Signals) -> None:
    """H5, C21, B2: what runs may finish, what has not started goes back at once and due at once, no attempt spent."""
    site.add(*[{}] * 40, {"do": "gate"}, *[{}] * 30, partition_key="k")
    replica = site.start("-p", "2", lease=30)
    eventually(lambda: site.witness.runs(41) and site.held() > 1)
    replica.family()
    replica.send(number)
    replica.says("draining")
    eventually(lambda: site.held() == 1)
    assert site.attempts() == {41: 1, **dict.fromkeys(range(42, 72), 0)}
    site.add({})
    site.open_gate()
    assert replica.wait() == 0
    assert site.attempts() == dict.fromkeys(range(42, 73), 0)
    assert site.held() == 0
    assert site.witness.order("k") == list(range(1, 42))
    starts_of_leftovers(site, *range(42, 73))
    assert site.witness.order("k") == list(range(1, 72))


def test_handlers_that_do_not_finish_in_time_are_ended(site: Site) -> None:
    """H5, C21: exit 1; their rows are free at once, and being interrupted spends no attempt."""
    site.add({"do": "gate"}, {"do": "hold", "for": 60, "until": 1}, {})
    replica = site.start("-p", "2", "--drain-timeout", "0.5", workers=2, lease=30)
    eventually(lambda: site.witness.rows() == {1, 2})
    replica.family()
    replica.send(signal.SIGTERM)
    assert replica.wait(10) == 1
    assert site.attempts() == {1: 0, 2: 0, 3: 0}
    assert site.held() == 0
    assert "Traceback" not in replica.stderr


def test_a_second_signal_ends_at_once(site: Site) -> None:
    """H5, C21: no waiting for handlers, exit 1, rows free."""
    site.add({"do": "gate"}, {"do": "gate"}, {}, {})
    replica = site.start("-p", "2", workers=2, lease=30)
    eventually(lambda: site.witness.rows() == {1, 2})
    replica.family()
    replica.send(signal.SIGTERM)
    replica.says("draining")
    replica.send(signal.SIGTERM)
    assert replica.wait(10) == 1
    assert site.attempts() == dict.fromkeys(range(1, 5), 0)
    assert site.held() == 0
    starts_of_leftovers(site, 1, 2, 3, 4)


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_reaches_every_process_and_handlers_see_nothing_of_it(file_site: Site, times: int) -> None:
    """C22, H5, H7: children leave the stop to the coordinator; three in a row end at once."""
    site = file_site
    site.add({"do": "slices", "for": 1}, {"do": "slices", "for": 1})
    replica = site.start("-p", "2", workers=2)
    eventually(lambda: site.witness.rows() == {1, 2})
    replica.family()
    for time in range(times):
        replica.send_group(signal.SIGINT)
        replica.says("draining") if time == 0 else None
    code = replica.wait(10)
    assert not (site.folder / "raised").exists()
    assert "Traceback" not in replica.stderr
    if times == 1:
        assert code == 0
        assert site.count() == 0
        assert site.witness.runs(1) == site.witness.runs(2) == 1
    else:
        assert code == 1
        assert site.attempts() == {1: 0, 2: 0}
        assert site.held() == 0


def test_a_stop_before_it_is_ready_is_a_good_end(file_site: Site) -> None:
    """H5: children that still import are ended; no row was touched."""
    site = file_site
    site.add({})
    handlers = site.folder / "slow.py"
    handlers.write_text(SLOW_IMPORT)
    replica = site.start_module("slow.py", "-p", "2", until=None)
    eventually(lambda: len(replica.family()) == 2)
    eventually(lambda: (site.folder / "importing").exists())
    replica.send(signal.SIGTERM)
    assert replica.wait(10) in (0, 1)
    assert site.attempts() == {1: 0}


SLOW_IMPORT = """
import os, time
from pathlib import Path
from shardrun import Queue

queue = Queue.standard("q")
folder = Path(os.environ["ACTS_FOLDER"])
mine = folder / "first"
if mine.exists():
    (folder / "importing").touch()
    time.sleep(30)
mine.touch()


@queue.handler()
def handle(body: dict) -> None: ...
"""


def test_a_child_that_dies_while_it_drains_spends_its_rows_attempt_and_no_other(site: Site) -> None:
    """H5, H2: the row goes back with its cause, those behind it untouched; nothing is respawned for it."""
    site.add(*[{}] * 40, {"do": "beside"}, *[{}] * 10, partition_key="k")
    replica = site.start("-p", "1", lease=30)
    eventually(lambda: site.witness.runs(41))
    replica.family()
    replica.send(signal.SIGTERM)
    replica.says("draining")
    site.open_gate()
    assert replica.wait() == 0, replica.stderr
    assert site.attempts() == {41: 1, **dict.fromkeys(range(42, 52), 0)}
    assert site.held() == 0
    assert "SIGKILL" in site.one("select last_error from q where id = 41")


def test_stopping_ends_the_wait_for_an_empty_table(site: Site) -> None:
    """H5: --until-empty drains on a signal like any other start."""
    site.add({"do": "gate"}, {}, {}, partition_key="k")
    replica = site.start("--until-empty", "-p", "1")
    eventually(lambda: site.witness.runs(1))
    replica.family()
    replica.send(signal.SIGTERM)
    replica.says("draining")
    site.open_gate()
    assert replica.wait() == 0
    assert site.attempts() == {2: 0, 3: 0}


VERSIONED = """
import os
from shardrun import Delivery, Queue
from tests.witness import Witness
from pathlib import Path

VERSION = {version}
witness = Witness(Path(os.environ["ACTS_FOLDER"]) / "witness")
queue = Queue.standard("q")
{broken}

@queue.handler()
def handle(body: dict, delivery: Delivery) -> None:
    witness.start([VERSION, delivery.id], delivery.key, delivery.attempt)
    gate = Path(os.environ["ACTS_FOLDER"]) / "gate"
    while body.get("do") == "gate" and not gate.exists():
        __import__("time").sleep(0.01)
    witness.end([VERSION, delivery.id], delivery.key, delivery.attempt)
"""


HANGS_ONCE = """
hanging = Path(os.environ["ACTS_FOLDER"]) / "hanging"
if not hanging.exists():
    hanging.write_text(str(os.getpid()))
    __import__("time").sleep(60)
"""


class TestFreshCode:
    """SIGHUP."""

    def write(self, site: Site, version: int, broken: str = "") -> Path:
        """Write a version of the handler module, as a deploy does."""
        path = site.folder / "handlers.py"
        new = site.folder / "handlers.new"
        new.write_text(VERSIONED.format(version=version, broken=broken))
        os.replace(new, path)
        return path

    def versions(self, site: Site) -> dict[int, int]:
        """Tell which version ran each row; a row that ran twice fails."""
        pairs = [event.row for event in site.witness.events() if event.what == START]
        assert len(pairs) == len({row for _, row in pairs})
        return {row: version for version, row in pairs}

    def test_replaces_the_children_one_by_one_and_loses_nothing(self, site: Site) -> None:
        """H5, D5: rows of a key stay in order while old and new children hand over; old ones finish what they run."""
        self.write(site, 1)
        site.add(*[{}] * 100, {"do": "gate"}, *[{}] * 99, partition_key="k")
        replica = site.start_module("handlers.py", "-p", "2")
        before = replica.pids()
        eventually(lambda: len(self.versions(site)) == 101)
        self.write(site, 2)
        replica.send(signal.SIGHUP)
        eventually(lambda: len(set(replica.pids()) - set(before)) >= 1)
        site.open_gate()
        eventually(lambda: site.count() == 0, 20)
        eventually(lambda: len(pids := set(replica.pids())) == 2 and not pids & set(before), 20)
        site.add(*[{}] * 20)
        eventually(lambda: site.count() == 0)
        versions = self.versions(site)
        assert versions[101] == 1
        assert {versions[row] for row in range(201, 221)} == {2}
        assert [row for _, row in site.witness.order("k")] == list(range(1, 201))
        replica.stop()

    def test_that_does_not_import_leaves_the_old_children(self, site: Site) -> None:
        """H5, C40: the sentence is in the log, and rows go on under the old code."""
        self.write(site, 1)
        replica = site.start_module("handlers.py", "-p", "2")
        before = replica.pids()
        self.write(site, 2, broken="import no_such_module_anywhere")
        replica.send(signal.SIGHUP)
        replica.says("no_such_module_anywhere")
        site.add(*[{}] * 10)
        eventually(lambda: site.count() == 0)
        assert set(self.versions(site).values()) == {1}
        assert replica.pids() == before
        self.write(site, 3)
        replica.send(signal.SIGHUP)
        eventually(lambda: len(pids := set(replica.pids())) == 2 and not pids & set(before), 20)
        replica.stop()

    def test_comes_also_to_a_child_that_has_just_died(self, file_site: Site) -> None:
        """H2, H5: SIGHUP right after a death; every place has a fresh child in the end, and no more."""
        site = file_site
        self.write(site, 1)
        replica = site.start_module("handlers.py", "-p", "2")
        before = replica.pids()
        self.write(site, 2)
        os.kill(before[0], signal.SIGKILL)
        replica.says("died")
        replica.send(signal.SIGHUP)
        replica.says("replacing 2 children")
        site.add(*[{}] * 10)
        eventually(lambda: site.count() == 0)
        eventually(lambda: len(pids := set(replica.pids())) == 2 and not pids & set(before), 20)
        replica.stop()

    def test_overtakes_a_replacement_that_still_loads(self, file_site: Site) -> None:
        """H5: the child of a place has died, the next one hangs in its import, and a good version comes."""
        site = file_site
        self.write(site, 1)
        replica = site.start_module("handlers.py", "-p", "2")
        before = replica.pids()
        self.write(site, 2, broken=HANGS_ONCE)
        os.kill(before[0], signal.SIGKILL)
        path = site.folder / "hanging"
        hanging = int(eventually(lambda: path.exists() and path.read_text()))
        self.write(site, 3)
        replica.send(signal.SIGHUP)
        eventually(lambda: len(pids := set(replica.pids())) == 2 and not pids & {*before, hanging}, 20)
        site.add(*[{}] * 10)
        eventually(lambda: site.count() == 0)
        assert set(self.versions(site).values()) == {3}
        replica.stop()

    def test_that_hangs_in_its_import_does_not_hold_up_a_stop(self, file_site: Site) -> None:
        """H5: SIGTERM while a replacement loads."""
        site = file_site
        self.write(site, 1)
        replica = site.start_module("handlers.py", "-p", "2")
        self.write(site, 2, broken=HANGS_ONCE)
        replica.send(signal.SIGHUP)
        eventually(lambda: (site.folder / "hanging").exists())
        site.add(*[{}] * 10)
        eventually(lambda: site.count() == 0)
        replica.stop(10)

    def test_is_not_lost_while_the_children_still_start(self, file_site: Site) -> None:
        """H5: a SIGHUP before `ready` replaces the children once they are there."""
        site = file_site
        self.write(site, 1)
        replica = site.start_module("handlers.py", "-p", "1", until=None)
        first = eventually(replica.pids)
        eventually(lambda: site_is_watching(replica.pid))
        replica.send(signal.SIGHUP)
        replica.says("ready")
        eventually(lambda: (pids := replica.pids()) and len(pids) == 1 and pids != first, 20)
        replica.stop()


def site_is_watching(pid: int) -> bool:
    """Tell whether a process catches SIGHUP by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGHUP - 1) & 1)


def test_a_replacement_lives_where_the_first_child_did(site: Site) -> None:
    """C33: a handler that leaves its folder, environment and paths in ruins harms no later child; no second file appears."""
    handlers = site.folder / "handlers.py"
    handlers.write_text(RUINOUS)
    site.add({"do": "ruin"}, *[{}] * 30, partition_key="k")
    dsn = "sqlite:///test.db" if site.dialect == "sqlite" else site.dsn
    files = set(site.folder.rglob("*.db"))
    site.start_module("handlers.py", "-p", "1", "--until-empty", until=None, dsn=dsn)
    assert site.replicas[-1].wait() == 0, site.replicas[-1].stderr
    ran = json.loads(f"[{','.join((site.folder / 'ran').read_text().split())}]")
    assert ran == [1, 1, *range(2, 32)]
    assert set(site.folder.rglob("*.db")) == files
    assert os.access(site.folder / "ran-2", os.R_OK)


RUINOUS = """
import os, signal, sys, tempfile
from shardrun import Delivery, Queue

queue = Queue.standard("q")


@queue.handler()
def handle(body: dict, delivery: Delivery) -> None:
    with open("ran", "a") as file:
        file.write(f"{delivery.id}\\n")
    with open(f"ran-{delivery.id}", "w") as file:
        file.write("here")
    if body and delivery.attempt == 1:
        os.chdir(folder := tempfile.mkdtemp())
        os.rmdir(folder)
        os.environ["PGHOST"] = "nowhere"
        os.environ["TZ"] = "Asia/Tokyo"
        os.umask(0o777)
        sys.path.clear()
        os.kill(os.getpid(), signal.SIGKILL)
"""
