"""Replicas side by side on one table, and the connections that they hold."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import DIED, START

ROWS = 10_000
LIMIT = 5

SESSIONS = """
    select application_name from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and application_name like 'shardrun %'
"""

SESSIONS_OF_COORDINATORS = """
    select pid from pg_stat_activity
    where application_name like 'shardrun %' and application_name not like '% child %'
"""


def test_two_replicas_share_ten_thousand_rows_within_their_connections(server_site: Site) -> None:
    """H8, F2, C106: none lost, none handled twice, the limit never passed while children are killed and replaced."""
    site = server_site
    site.add(*[{"do": "session"}] * ROWS)
    flags = ("-p", "2", "--pool-size", "3", "--connection-limit", str(LIMIT))
    replicas = [site.start(*flags, until=None) for _ in range(2)]
    for replica in replicas:
        replica.says("ready")
    most: Counter[str] = Counter()
    next_look = next_kill = time.monotonic()
    killed = 0

    def look() -> bool:
        nonlocal next_look, next_kill, killed
        now = time.monotonic()
        if now >= next_look:
            next_look = now + 0.05
            held = Counter(" ".join(name.split()[:2]) for (name,) in site.run(SESSIONS))
            for replica_name, count in held.items():
                most[replica_name] = max(most[replica_name], count)
        if now >= next_kill and killed < 6:
            next_kill = now + 0.4
            replica = replicas[killed % 2]
            if family := replica.family():
                replica.kill_child(family[0])
                killed += 1
        return site.count() == 0

    eventually(look, 60)
    for replica in replicas:
        replica.stop()
    assert len(most) == 2
    assert max(most.values()) <= LIMIT, most
    check_runs(site)
    shares = [int(replica.stderr.split("stopped: ")[1].split(" acked")[0].replace(",", "")) for replica in replicas]
    assert sum(shares) == ROWS
    assert min(shares) > ROWS / 20
    print(f"\nshares {shares}, connections at most {dict(most)}, {killed} children killed")


def check_runs(site: Site) -> None:
    """Every row ran once, and again only where the process that ran it died."""
    events = site.witness.events()
    died = {event.pid for event in events if event.what == DIED}
    runs = defaultdict(list)
    for event in events:
        if event.what == START:
            runs[event.row].append(event.pid)
    assert set(runs) == set(range(1, ROWS + 1))
    assert all(set(pids[:-1]) <= died for pids in runs.values())


def test_a_limit_that_could_be_passed_does_not_start(site: Site) -> None:
    """F2, C106: exit 2, and the sentence shows the sum and what to change."""
    replica = site.start("-p", "4", "--connection-limit", "4", until=None)
    assert replica.wait() == 2
    assert "the limit is 4" in replica.stderr
    assert "--processes" in replica.stderr


def test_children_have_sessions_of_their_own(server_site: Site) -> None:
    """C72, F1: no two children ever share a session, and the coordinator's survive every child's death."""
    site = server_site
    site.add(*[{"do": "session"}] * 300)
    replica = site.start("-p", "2")
    before = set(eventually(lambda: site.run(SESSIONS_OF_COORDINATORS)))
    for _ in range(5):
        eventually(lambda: len(replica.family()) == 2)
        replica.kill_child(replica.family()[0])
        site.add(*[{"do": "session"}] * 50)
        eventually(lambda: site.count() == 0)
    assert before <= set(site.run(SESSIONS_OF_COORDINATORS))
    pairs = {tuple(line.split()) for line in (site.folder / "sessions").read_text().splitlines()}
    assert len({session for session, _ in pairs}) == len(pairs)
    replica.stop()


def test_a_child_without_handlers_that_ask_opens_no_connection(server_site: Site) -> None:
    """F1: the pool opens on first use."""
    site = server_site
    site.add(*[{}] * 50)
    replica = site.start("-p", "2")
    eventually(lambda: site.count() == 0)
    assert not site.run("select 1 from pg_stat_activity where application_name like '%child%'")
    replica.stop()
