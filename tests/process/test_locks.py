"""The row lock and the advisory lock, from the outside: deaths, lost sessions, bounds, stops."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.site import Replica, Site
from tests.waiting import eventually
from tests.witness import START, intervals, most_at_once

FORMS = ["row lock", "advisory"]
ON_SERVER = pytest.mark.parametrize("form", FORMS)


SERVED = [f"{dialect} {form}" for dialect in ("postgres", "mariadb") for form in FORMS]


@pytest.fixture(params=[*SERVED, "sqlite advisory"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Give a database with each form of lock that it has."""
    yield from a_site(request, tmp_path)


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Give a database on each server with each form of lock."""
    yield from a_site(request, tmp_path)


def a_site(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Site, str]]:
    """Give a database, and the form that the fixture's parameter names."""
    dialect, _, form = request.param.partition(" ")
    server: Any = None if dialect == "sqlite" else request.getfixturevalue(dialect)
    site = Site(dialect, folder, server)
    site.create("q")
    yield site, form
    site.close()
    if dialect == "mariadb":
        server.drop_databases()


def attempts(site: Site, row: int) -> list[int]:
    """List the attempts under which a row started."""
    return [event.attempt for event in site.witness.events() if event.what == START and event.row == row]


def busy_sessions(site: Site) -> list[tuple[Any, ...]]:
    """List the server's sessions whose transaction is open between statements, or that hold a lock on a key."""
    if site.dialect == "mariadb":
        return site.run(
            "select trx_mysql_thread_id from information_schema.innodb_trx join information_schema.processlist "
            "on id = trx_mysql_thread_id where db = database() and command = 'Sleep' union "
            "select is_used_lock(concat('accounts-', ifnull(partition_key, ''))) as id from q having id is not null"
        )
    return site.run(
        "select pid from pg_stat_activity where application_name like 'shardrun %' and datname = current_database() "
        "and state = 'idle in transaction' union select pid from pg_locks where locktype = 'advisory' and granted"
    )


def test_a_row_that_kills_its_child_is_counted_and_dead_lettered_in_its_place(held: tuple[Site, str]) -> None:
    """H2, H4, R8, D5: each death spends one attempt of the row that ran, and no row of its key passes it."""
    site, form = held
    rows: list[tuple[str | None, dict[str, object]]] = []
    for key in ("a", "b", "c"):
        rows += [(key, {}), (key, {"do": "kill"} if key == "b" else {}), (key, {}), (key, {})]
    site.add_keyed(rows)
    site.work_off("-p", "2", form=form, max_attempts=3)
    assert {row: reason[0] for row, reason in site.dead().items()} == {6: 3}
    assert "killed by signal 9" in site.dead()[6][1]
    assert attempts(site, 6) == [1, 2, 3]
    assert {tuple(attempts(site, row)) for row in set(range(1, 13)) - {6}} == {(1,)}
    assert site.witness.order("b") == [5, 6, 6, 6, 7, 8]
    assert site.witness.order("a") == [1, 2, 3, 4]
    assert site.count() == 0


def test_a_handler_that_hangs_in_c_is_ended_on_time_at_the_cost_of_its_own_attempt(held: tuple[Site, str]) -> None:
    """E4, E3, R7, R8: the row goes to the dead letters at its last attempt, the others of its lane go on and spend nothing."""
    site, form = held
    site.add({}, {"do": "hold", "for": 60}, {}, {}, partition_key="k")
    replica = site.work_off("-p", "1", form=form, timeout=0.5, max_attempts=2)
    assert site.dead() == {2: (2, "ran longer than its timeout of 0.5 s")}
    assert [attempts(site, row) for row in (1, 2, 3, 4)] == [[1], [1, 2], [1], [1]]
    assert "spends attempt 2 of 2. Moved to q_dead." in replica.stderr
    assert site.count() == 0


def test_rows_of_a_coordinator_that_is_killed_are_free_at_once(held: tuple[Site, str]) -> None:
    """B1, B4, H3, R8: the server sees the end of its connections; the row lock's count is not touched by that."""
    site, form = held
    site.add({"do": "gate", "until": 1})
    first = site.start("-p", "1", form=form)
    eventually(lambda: site.witness.runs(1) == 1)
    first.crash()
    site.open_gate()
    began = time.monotonic()
    site.work_off("-p", "1", form=form)
    assert time.monotonic() - began < 20
    assert attempts(site, 1) == ([1, 1] if form == "row lock" else [1, 2])


def test_rows_in_work_leave_a_connection_of_the_pool_free(served: tuple[Site, str]) -> None:
    """C2, F2: with more lanes than connections fewer rows run at once, never more than the pool less one; all get done."""
    site, form = served
    site.add_keyed([(f"key-{row}", {"do": "sleep", "for": 0.1}) for row in range(30)])
    site.start("-p", "2", "--pool-size", "4", form=form, workers=8)
    seen = []
    next_look = 0.0

    def all_done() -> bool:
        nonlocal next_look
        if time.monotonic() >= next_look:
            seen.append((len(busy_sessions(site)), len([name for name in site.sessions() if "child" not in name])))
            next_look = (
                time.monotonic() + 0.15
            )  # MariaDB reads its list of transactions anew after a tenth without a reader
        return site.count() == 0

    eventually(all_done, 60)
    assert 1 <= max(held for held, _ in seen) <= 3
    assert max(sessions for _, sessions in seen) <= 4
    assert most_at_once(intervals(site.witness.events())) == 3
    assert {site.witness.runs(row) for row in range(1, 31)} == {1}


def test_a_handler_learns_that_its_lock_is_gone_and_its_settlement_is_refused(served: tuple[Site, str]) -> None:
    """B1, B4: the session that held the row is ended; the handler's `draining` turns true, and the row runs again."""
    site, form = served
    site.add({"do": "script", "acts": [{"do": "drain"}, {}]})
    replica = site.start("-p", "1", form=form)
    eventually(lambda: site.witness.runs(1) == 1)
    ((pid,),) = busy_sessions(site)
    site.run("kill connection ?" if site.dialect == "mariadb" else "select pg_terminate_backend(?)", pid)
    replica.says("queue row 1: the lock is lost, another may hold the row")
    eventually(lambda: site.count() == 0)
    assert attempts(site, 1) == ([1, 1] if form == "row lock" else [1, 2])
    assert site.witness.overlap_of_row(1) <= 1
    assert "queue row 1: lost; another replica holds it" in replica.stderr
    replica.stop()


def test_a_drain_lets_what_runs_finish_and_gives_the_rest_back_uncounted(held: tuple[Site, str]) -> None:
    """H5, R8: nothing is claimed any more, what has not begun goes back; after the timeout so does what runs."""
    site, form = held
    of_a: list[dict[str, Any]] = [{"do": "gate"}, {"do": "drain"}, {}, {}]
    of_b: list[dict[str, Any]] = [{"do": "gate"}, {"do": "gate", "gate": "never"}]  # on a lane of their own everywhere
    site.add_keyed([*(("a", body) for body in of_a), *(("b", body) for body in of_b)])
    replica = site.start("-p", "2", "--drain-timeout", "1.5", form=form, workers_by_key=2)
    eventually(lambda: site.witness.rows() >= {1, 5})
    replica.send(signal.SIGTERM)
    replica.says("draining")
    site.open_gate()
    assert replica.wait() == 0
    assert site.witness.rows() == {1, 5}
    assert {row: count or 0 for row, count in site.attempts().items()} == {2: 0, 3: 0, 4: 0, 6: 0}
    later = site.start("-p", "2", "--drain-timeout", "0.2", form=form, workers_by_key=2)
    eventually(lambda: site.witness.rows() == {1, 2, 5, 6})
    later.send(signal.SIGTERM)
    assert later.wait() == 1
    assert {row: count or 0 for row, count in site.attempts().items()}[6] == 0
    if site.server is not None:
        eventually(lambda: not busy_sessions(site))


@ON_SERVER
def test_a_run_until_empty_waits_for_rows_that_others_hold(server_site: Site, form: str) -> None:
    """Contract 2: a row that another has locked is due all the same, and waited for."""
    site = server_site
    site.add_keyed([("a", {}), ("b", {})])
    other = site.another_connection()
    lock = "select id from q where id = 1 for update"
    other.execute(lock if form == "row lock" else "select pg_advisory_xact_lock(hashtextextended('accounts-a', 0))")
    replica = site.start("-p", "1", "--until-empty", form=form)
    eventually(lambda: site.count() == 1)
    assert replica.process.poll() is None
    other.rollback()
    other.close()
    assert replica.wait() == 0, replica.stderr
    assert site.witness.runs(1) == 1


def test_a_second_replica_of_a_file_does_not_start(file_site: Site) -> None:
    """B4: on SQLite one replica per file, by a lock that ends with its process however that ends."""
    first = file_site.start("-p", "1", form="advisory")
    second = file_site.start("-p", "1", form="advisory", until=None)
    assert second.wait() == 4
    assert f"another replica (pid {first.pid}) serves advisory_lock=" in second.stderr
    assert "Traceback" not in second.stderr
    first.crash()
    third: Replica = file_site.start("-p", "1", form="advisory")
    third.stop()
