"""Children that die in the middle of a row: who is blamed, who is not, and how soon it goes on."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from itertools import pairwise

import pytest

from shardrun.policy.routing import lane_of
from tests.process.site import Replica, Site
from tests.waiting import eventually
from tests.witness import DIED, END, START, Event, intervals, most_at_once

CAUSES = {
    "kill": "killed by signal 9 (SIGKILL)",
    "segfault": "killed by signal 11 (SIGSEGV)",
    "abort": "killed by signal 6 (SIGABRT)",
    "exit": "exit code 0",
}


def attempts_of(site: Site, row: int) -> list[int]:
    """List the attempts under which a row started."""
    return all_attempts(site)[row]


def all_attempts(site: Site) -> dict[int, list[int]]:
    """List the attempts under which each row started."""
    attempts = defaultdict(list)
    for event in site.witness.events():
        if event.what == START:
            attempts[event.row].append(event.attempt)
    return attempts


def recovery(site: Site, row: int) -> float:
    """Measure the seconds from the first death to the next start of a row."""
    events = site.witness.events()
    at = next(number for number, event in enumerate(events) if event.what == DIED)
    again = next(event for event in events[at:] if event.what == START and event.row == row)
    return again.time - events[at].time


def started(site: Site, row: int) -> Event | None:
    """Find the first start of a row."""
    starts = (event for event in site.witness.events() if event.what == START and event.row == row)
    return next(starts, None)


def report(site: Site, what: str, seconds: float) -> None:
    """Print a measured time, for whoever runs the tests with -s."""
    print(f"\n{what}, {site.dialect}: again after {seconds * 1000:.0f} ms")


def in_lane(lane: int, lanes: int, count: int) -> list[str]:
    """Name keys that hash to a lane."""
    keys = (f"key-{number}" for number in range(10_000))
    return [key for key in keys if lane_of(key, lanes) == lane][:count]


def test_a_row_that_kills_its_child_is_counted_and_dead_lettered_and_its_neighbours_are_not(site: Site) -> None:
    """C09, H2, H4, R7, R8: SIGKILL, SIGSEGV, abort and _exit(0) spend one attempt each, of the row that ran."""
    rows: list[tuple[str | None, dict[str, object]]] = []
    for do in CAUSES:
        rows += [(do, {}), (do, {"do": do}), (do, {}), (do, {})]
    site.add_keyed(rows)
    replica = site.work_off("-p", "2", max_attempts=3)
    dead = site.dead()
    poison = dict(zip(range(2, 17, 4), CAUSES.values(), strict=True))
    assert set(dead) == set(poison)
    for row, cause in poison.items():
        assert attempts_of(site, row) == [1, 2, 3]
        assert dead[row][0] == 3
        assert cause in dead[row][1]
        assert f"Row {row} of queue spends attempt 3 of 3. Moved to q_dead" in replica.stderr
    assert {tuple(attempts_of(site, row)) for row in set(range(1, 17)) - set(poison)} == {(1,)}
    for do, first in zip(CAUSES, range(1, 17, 4), strict=True):
        assert site.witness.order(do) == [first, first + 1, first + 1, first + 1, first + 2, first + 3]
    assert site.count() == 0


def test_rows_handed_to_a_child_that_dies_keep_their_order_and_spend_no_attempt(site: Site) -> None:
    """D5, H2, R7: hundreds of rows wait in the rings of children that die several times."""
    left, right = in_lane(0, 2, 1)[0], in_lane(1, 2, 1)[0]
    deadly = {300, 301, 455, 700}
    site.add_keyed(
        [(key, {"do": "kill", "until": 1} if row in deadly else {}) for row in range(1, 401) for key in (left, right)]
    )
    site.work_off("-p", "2")
    for key, parity in ((left, 1), (right, 0)):
        rows = [row for row in range(1, 801) if row % 2 == parity]
        assert site.witness.order(key) == [row for row in rows for _ in range(2 if is_deadly(row, deadly) else 1)]
    assert all_attempts(site) == {row: [1, 2] if is_deadly(row, deadly) else [1] for row in range(1, 801)}
    assert site.count() == 0


def is_deadly(id: int, deadly: set[int]) -> bool:
    """Tell whether the row with this id was given a deadly payload: two rows were made for each number."""
    return (id + 1) // 2 in deadly


def test_the_other_children_go_on_while_one_is_replaced(site: Site) -> None:
    """C10, H2: same processes, same rows, and the dead one's lane is served again within a second."""
    site.add({"do": "segfault", "until": 1}, {"do": "gate"}, {"do": "gate"})
    replica = site.start("-p", "3", workers=3)
    eventually(lambda: site.witness.runs(1) == 2 and site.witness.rows() == {1, 2, 3})
    before = {event.pid for event in site.witness.events() if event.row in (2, 3)}
    report(site, "segfault", recovery(site, 1))
    assert recovery(site, 1) < 3
    after = set(replica.pids())
    assert len(after) == 3
    assert before < after
    dead = next(event.pid for event in site.witness.events() if event.what == DIED)
    assert dead not in after
    site.add(*[{}] * 40)
    site.open_gate()
    eventually(lambda: site.count() == 0)
    assert all(site.witness.runs(row) == 1 for row in range(2, 44))
    replica.stop()


@pytest.mark.parametrize("locks", [False, True], ids=["asleep", "holding the row's lock"])
def test_sql_that_outlives_its_child_is_ended_before_the_row_runs_again(server_site: Site, locks: bool) -> None:
    """R4, H2: a SIGKILLed handler's statement would go on for 30 s, and with it the lock on the queue's own row."""
    site = server_site
    lock = ["update q set priority = 7 where id = 1"] if locks else []
    site.add({"do": "sql", "sql": [*lock, "select pg_sleep(30)"], "until": 1})
    replica = site.start("-p", "1")
    asleep = "select pid from pg_stat_activity where query = 'select pg_sleep(30)' and state = 'active'"
    session = eventually(lambda: site.run(asleep))[0][0]
    child = site.witness.events()[0].pid
    site.witness.kill(child)
    eventually(lambda: site.count() == 0)
    assert not site.run("select 1 from pg_stat_activity where pid = ?", session)
    assert attempts_of(site, 1) == [1, 2]
    assert recovery(site, 1) < 3
    report(site, f"killed in SQL, {'locking' if locks else 'not locking'}", recovery(site, 1))
    replica.stop()


def test_rows_wait_for_the_one_before_them_while_its_sql_cannot_be_ended(server_site: Site) -> None:
    """R4, D5: the new child is there long before the old one's session is gone, and may not pass over its row."""
    site = server_site
    slow = {"do": "sql", "sql": ["select pg_sleep(30)"], "until": 1}
    site.add(*[{}] * 50, slow, *[{}] * 5, partition_key="k")
    replica = site.start("-p", "1")
    asleep = "select pid from pg_stat_activity where query = 'select pg_sleep(30)' and state = 'active'"
    session = eventually(lambda: site.run(asleep))[0][0]
    os.kill(session, signal.SIGSTOP)
    try:
        site.witness.kill(site.witness.events()[-1].pid)
        site.add(*[{}] * 5, partition_key="k")
        eventually(lambda: site.loaded() == 3 and site.held() == 11)
        assert site.witness.runs(51) == 1
    finally:
        os.kill(session, signal.SIGCONT)
    eventually(lambda: site.count() == 0)
    assert site.witness.order("k") == [*range(1, 52), 51, *range(52, 62)]
    replica.stop()


def test_respawns_back_off_while_a_row_kills_each_new_child(file_site: Site) -> None:
    """H4: the wait doubles while children die without finishing a row."""
    file_site.add({"do": "kill"})
    file_site.work_off("-p", "1", max_attempts=6)
    starts = [event.time for event in file_site.witness.events() if event.what == START]
    assert len(starts) == 6
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits[4] > 0.8
    assert waits[0] < waits[4]


class TestSideBySide:
    """Rows that ran beside each other in one child when it died."""

    def start(self, site: Site, max_attempts: int) -> Replica:
        """Run row 1, which dies when the gate opens, beside rows 2 to 4."""
        site.add({"do": "beside"}, *[{"do": "script", "acts": [{"do": "gate", "gate": "later"}, {}]}] * 3)
        replica = site.start("-p", "1", workers=4, max_attempts=max_attempts)
        eventually(lambda: site.witness.rows() == {1, 2, 3, 4})
        site.open_gate()
        return replica

    def test_each_spends_an_attempt_and_runs_alone_next(self, site: Site) -> None:
        """R7, H4: the row that kills ends in the dead letters, and the others run once more each, all of them alone."""
        replica = self.start(site, max_attempts=3)
        site.add(*[{}] * 8)
        eventually(lambda: site.count() == 0)
        assert attempts_of(site, 1) == [1, 2, 3]
        assert set(site.dead()) == {1}
        assert [attempts_of(site, row) for row in (2, 3, 4)] == [[1, 2]] * 3
        events = site.witness.events()
        first_death = next(event.time for event in events if event.what == DIED)
        alone = [run for run in intervals(events) if run.start.time > first_death and run.start.row in (1, 2, 3, 4)]
        assert most_at_once(alone) == 1
        replica.stop()

    def test_none_of_the_others_is_buried_for_it(self, site: Site) -> None:
        """R7, H4: at its last attempt, too, a row that only ran beside the one that kills gets its run alone."""
        replica = self.start(site, max_attempts=1)
        eventually(lambda: site.count() == 0)
        assert set(site.dead()) == {1}
        assert {event.row for event in site.witness.events() if event.what == END} == {2, 3, 4}
        assert "Row 2 of queue was at its last attempt, and runs again by itself" in replica.stderr
        replica.stop()

    def test_one_that_ends_well_alone_gets_its_attempt_back(self, site: Site) -> None:
        """R7: Retry counts one attempt, the death that was not its own none."""
        acts = [{"do": "gate", "gate": "later"}, {"do": "answer", "answer": ["Retry"]}, {}]
        site.add({"do": "beside", "until": 1}, {"do": "script", "acts": acts})
        replica = site.start("-p", "1", workers=2, max_attempts=9)
        eventually(lambda: site.witness.rows() == {1, 2})
        site.open_gate()
        eventually(lambda: site.count() == 0)
        assert attempts_of(site, 2) == [1, 2, 2]
        replica.stop()


def test_children_killed_from_outside_are_replaced_whatever_they_do(site: Site) -> None:
    """C10, H2: an idle child, one that computes and holds the GIL, and one that has just started."""
    site.add({"do": "hold", "for": 60, "until": 1})
    replica = site.start("-p", "2")
    busy = eventually(lambda: started(site, 1))
    for child in replica.pids():
        site.witness.kill(child)
    eventually(lambda: site.witness.ended(1) == 1)
    assert busy is not None
    assert attempts_of(site, 1) == [1, 2]
    eventually(lambda: len(replica.pids()) == 2)
    os.kill(replica.pids()[-1], signal.SIGKILL)
    began = time.monotonic()
    site.add(*[{}] * 20)
    eventually(lambda: site.count() == 0)
    report(site, "20 rows while a child is replaced", time.monotonic() - began)
    replica.stop()
