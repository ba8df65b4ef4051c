"""MariaDB from the outside: what differs by the server, each once. What is the same on every database is proved on others."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pymysql

from tests.process import test_stopping
from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import DIED, END, START

SLOW = "select benchmark(10000000000, md5(1))"  # a sleep would notice after 5 s that its client is gone
RUNS = f"select id from information_schema.processlist where info = '{SLOW}'"
KILLED = "select id from information_schema.processlist where db = database() and id <> connection_id()"


def test_sql_that_outlives_its_child_is_ended_before_the_row_runs_again(mariadb_site: Site) -> None:
    """R4, H2: MariaDB goes on with a dead client's statement, and with its lock on the queue's own row."""
    site = mariadb_site
    site.add({"do": "sql", "sql": ["update q set priority = 7 where id = 1", SLOW], "until": 1}, {}, partition_key="k")
    replica = site.start("-p", "1")
    ((session,),) = eventually(lambda: site.run(RUNS))
    site.witness.kill(site.witness.events()[0].pid)
    eventually(lambda: site.count() == 0)
    assert not site.run("select 1 from information_schema.processlist where id = ?", session)
    assert site.witness.order("k") == [1, 1, 2]
    assert [event.attempt for event in site.witness.events() if event.what == END] == [2, 1]
    replica.stop()


def test_a_killed_coordinator_leaves_nothing_that_a_new_start_does_not_end(mariadb_site: Site) -> None:
    """C13, C02, H3: its children were in SQL; that goes on in the server, holds its lock, and then the row runs again."""
    site = mariadb_site
    act = {"do": "sql", "sql": ["update q set priority = 1 where id = 9", "select sleep(4)"], "until": 1}
    site.add(act, act, *[{}] * 8)
    replica = site.start("-p", "2", workers=2, lease=1.5)
    eventually(lambda: site.witness.rows() == {1, 2})
    replica.crash()
    site.work_off("-p", "2", workers=2, lease=1.5)
    assert site.count() == 0
    assert [site.witness.runs(row) for row in range(1, 11)] == [2, 2, *[1] * 8]
    assert all(site.witness.overlap_of_row(row) == 1 for row in range(1, 11))


def test_a_drain_lets_what_runs_finish_and_gives_the_rest_back(mariadb_site: Site) -> None:
    """H5, C21, B2: at once, due at once, no attempt spent, in order."""
    test_stopping.test_a_signal_drains(mariadb_site, signal.SIGTERM)


def test_two_replicas_share_rows_exactly_within_their_connections(mariadb_site: Site) -> None:
    """H8, F2, R10: none lost, none handled twice though children are killed; both have a part, neither passes its limit."""
    site, rows = mariadb_site, 3000
    site.add(*[{"do": "sql", "sql": ["do 0"]}] * rows)
    replicas = [site.start("-p", "2", "--connection-limit", "5", until=None) for _ in range(2)]
    for replica in replicas:
        replica.says("ready")
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, len(site.sessions()))
        return site.count() == 0

    for replica in replicas:
        eventually(look) if site.count() < rows / 10 else replica.kill_child(replica.family()[0])
    eventually(look, 60)
    for replica in replicas:
        replica.stop()
    shares = [int(replica.stderr.split("stopped: ")[1].split(" acked")[0].replace(",", "")) for replica in replicas]
    assert sum(shares) == rows
    assert min(shares) > 0
    assert 4 <= most <= 10
    events = site.witness.events()
    died = {event.pid for event in events if event.what == DIED}
    runs: dict[int, list[int]] = {row: [] for row in range(1, rows + 1)}
    for event in events:
        if event.what == START:
            runs[event.row].append(event.pid)
    assert all(pids and set(pids[:-1]) <= died for pids in runs.values())


def test_a_server_that_is_killed_and_started_again_costs_no_row_its_order(mariadb_site: Site) -> None:
    """C71, R2, F4: for longer than a lease, in the middle of rows; nothing runs twice, the same processes go on."""
    site, server = mariadb_site, mariadb_site.server
    assert server is not None
    site.add(*[{}] * 50, {"do": "sleep", "for": 3}, *[{}] * 20, partition_key="k")
    site.add({"do": "gate"}, partition_key="other")
    replica = site.start("-p", "2", workers_by_key=2, lease=1)
    eventually(lambda: site.witness.runs(51) and site.witness.runs(72) and site.held() >= 21)
    before = replica.pids()
    site.disconnect()
    server.kill()
    replica.says("the connection to the database is gone")
    eventually(lambda: site.witness.ended(51))
    server.start()
    site.connect()
    site.open_gate()
    eventually(lambda: site.count() == 0, 20)
    assert all(site.witness.runs(row) == 1 for row in range(1, 73))
    assert site.witness.order("k") == list(range(1, 72))
    assert replica.pids() == before
    replica.stop()


def test_connections_that_are_ended_all_the_time_lose_and_repeat_nothing(mariadb_site: Site) -> None:
    """C71, C72, F4, R1: KILL for every session, five times a second, through a whole run."""
    site = mariadb_site
    site.add(*[{"do": "sleep", "for": 0.02}] * 80)
    replica = site.start("-p", "2", lease=1)
    before = replica.pids()
    ended, at = 0, time.monotonic()

    def end_some() -> bool:
        nonlocal ended, at
        if time.monotonic() - at > 0.2 and ended < 40:
            for (session,) in site.run(KILLED):
                with suppress(pymysql.err.OperationalError):  # it may have gone by itself
                    site.run("kill ?", session)
                ended += 1
            at = time.monotonic()
        return site.count() == 0

    eventually(end_some, 40)
    assert ended > 5
    assert all(site.witness.runs(row) == 1 for row in range(1, 81))
    assert replica.pids() == before
    replica.stop()
