"""A coordinator that is killed: nothing of it stays, and a new start takes over."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import psutil
import pytest

from tests.process.site import GONE, Replica, Site, is_alive, shared_memory
from tests.waiting import eventually


def die(site: Site, replica: Replica) -> None:
    """Kill a coordinator and see that nothing of it is left."""
    replica.crash()
    eventually(lambda: not site.sessions(), GONE)
    assert shared_memory() <= site.shared_before


LONG_SQL = {
    "postgres": "select pg_sleep(20)",
    "sqlite": "with recursive c(x) as (select 1 union all select x + 1 from c where x < 1000000000) select max(x) from c",
}


@pytest.mark.parametrize(
    "act",
    [{"do": "sleep", "for": 20}, {"do": "hold", "for": 20}, {"do": "sql"}],
    ids=["asleep", "holding the GIL", "in SQL that holds locks"],
)
def test_its_children_go_with_it_and_a_new_start_finishes(site: Site, act: dict[str, Any]) -> None:
    """C13, C02, H3, R9: whatever the children are doing."""
    act = {**act, "sql": ["update q set priority = 1 where id = 9", LONG_SQL[site.dialect]], "until": 1}
    site.add(act, act, *[{}] * 8)
    replica = site.start("-p", "2", workers=2, lease=1.5)
    eventually(lambda: site.witness.rows() == {1, 2})
    die(site, replica)
    site.work_off("-p", "2", workers=2, lease=1.5)
    assert site.count() == 0
    assert all(site.witness.overlap_of_row(row) == 1 for row in range(1, 11))
    assert all(site.witness.runs(row) == 1 for row in range(3, 11))


def test_idle_children_go_with_it(site: Site) -> None:
    """C13, C16, H3: three times over, nothing adds up."""
    for _ in range(3):
        replica = site.start("-p", "2")
        die(site, replica)


def test_no_child_outlives_a_kill_in_the_middle_of_spawning(file_site: Site) -> None:
    """C13, R9: killed 0 to 20 ms after the first child is there, ten times (seeded)."""
    chance = random.Random(13)
    for _ in range(10):
        replica = file_site.start("-p", "4", until=None)
        first = eventually(replica.family)[0]
        spawned = psutil.Process(replica.pid)
        until = first.create_time() + chance.uniform(0, 0.02)
        while time.time() < until:
            pass
        family = spawned.children(recursive=True)
        replica.send(signal.SIGKILL)
        replica.wait()
        group = replica.pid
        eventually(lambda: not any(map(is_alive, family)) and not of_group(group), GONE)  # noqa: B023 - called here
        assert "Traceback" not in replica.stderr
    assert shared_memory() <= file_site.shared_before


def of_group(group: int) -> list[psutil.Process]:
    """List the living processes of a process group."""
    return [each for each in psutil.process_iter() if is_alive(each) and group_of(each.pid) == group]


def group_of(pid: int) -> int | None:
    """Name a process's group, where it still is."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_rows_that_only_waited_are_not_dead_lettered_however_often_it_dies(site: Site) -> None:
    """R8: rows of a dead replica are taken one to a free lane, so that the next death cannot count them again."""
    site.add(*[{}] * 50, {"do": "sleep", "for": 20}, *[{}] * 20, partition_key="k")
    settings: dict[str, Any] = {"lease": 1, "max_attempts": 2}
    for death in (1, 2):
        replica = site.start("-p", "1", **settings)
        eventually(lambda: site.witness.runs(51) == death)  # noqa: B023 - called here
        if death == 1:
            eventually(lambda: site.held() == 21)
        die(site, replica)
    site.work_off("-p", "1", **settings)
    assert set(site.dead()) == {51}
    assert site.witness.order("k") == [*range(1, 51), 51, 51, *range(52, 72)]


def test_only_its_own_attempts_are_spent_when_a_row_dies_with_its_coordinator(site: Site) -> None:
    """C45: the last attempt dies with the replica; the next start buries the row, says why, and goes on behind it."""
    site.add({"do": "sleep", "for": 20}, {}, {}, partition_key="k")
    replica = site.start("-p", "1", lease=1, max_attempts=1)
    eventually(lambda: site.witness.runs(1))
    die(site, replica)
    site.work_off("-p", "1", lease=1, max_attempts=1)
    dead = site.dead()
    assert set(dead) == {1}
    assert "the death of the replica" in dead[1][1]
    assert site.witness.order("k") == [1, 2, 3]


def test_rows_with_one_attempt_in_all_do_not_wait_in_a_replica_that_may_die(site: Site) -> None:
    """R8: nothing but the row that ran is claimed when the replica dies, so no row is dead-lettered that never ran."""
    site.add(*[{}] * 50, {"do": "sleep", "for": 20, "until": 1}, *[{}] * 20, partition_key="k")
    replica = site.start("-p", "1", lease=1, max_attempts=1)
    eventually(lambda: site.witness.runs(51) and site.held() == 1)
    die(site, replica)
    site.work_off("-p", "1", lease=1, max_attempts=1)
    assert set(site.dead()) == {51}
    assert all(site.witness.runs(row) == 1 for row in range(52, 72))
