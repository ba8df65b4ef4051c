"""Handlers that run past their timeout: ended on time, at the cost of their own attempt alone."""

from __future__ import annotations

import signal

import pytest

from tests.process.site import Site
from tests.process.test_deaths import all_attempts, started
from tests.waiting import eventually

HANG: dict[str, object] = {"do": "sleep", "for": 60}


def test_a_late_row_spends_its_own_attempt_and_its_neighbours_spend_none(site: Site) -> None:
    """E4, R7: in one child, one row hangs, one ends in time, one is interrupted in the middle, and others wait behind."""
    neighbour = {"do": "script", "acts": [{"do": "gate"}, {}]}
    site.add({**HANG, "until": 1}, {"do": "sleep", "for": 1}, neighbour)
    replica = site.start("-p", "1", workers=2, timeout=2)
    eventually(lambda: started(site, 3))
    site.add({}, {})
    eventually(lambda: site.count() == 0, 20)
    assert all_attempts(site) == {1: [1, 2], 2: [1], 3: [1, 1], 4: [1], 5: [1]}
    runs = [event.time for event in site.witness.events() if event.what == "start" and event.row in (1, 3)]
    assert runs[2] - runs[0] >= 2, "ended too early"
    assert runs[2] - runs[0] < 10
    assert (
        " was ended: row 1 of queue ran longer than its timeout of 2 s and spends attempt 1. Again in "
        in replica.stderr
    )
    assert "row goes on in a new child" in replica.stderr
    assert " died" not in replica.stderr
    replica.stop()


def test_a_row_that_always_hangs_goes_to_the_dead_letters_and_its_lane_goes_on(site: Site) -> None:
    """E3, E4, D5, B2: even in C with the GIL held; the late row gives up its place, rows behind it go on meanwhile."""
    site.add({}, {"do": "hold", "for": 60}, {}, {}, partition_key="k")
    replica = site.work_off("-p", "1", timeout=0.5, max_attempts=2)
    assert site.dead() == {2: (2, "ran longer than its timeout of 0.5 s")}
    assert all_attempts(site) == {1: [1], 2: [1, 2], 3: [1], 4: [1]}
    assert site.witness.order("k") == [1, 2, 3, 4, 2]
    assert "spends attempt 2 of 2. Moved to q_dead." in replica.stderr


def test_sql_of_a_late_handler_is_ended_before_its_row_runs_again(server_site: Site) -> None:
    """E4, R4: the statement would go on for 30 s on the server."""
    site = server_site
    site.add({"do": "sql", "sql": ["update q set priority = 7 where id = 1", "select pg_sleep(30)"], "until": 1})
    replica = site.start("-p", "1", timeout=1)
    eventually(lambda: site.count() == 0, 20)
    assert all_attempts(site) == {1: [1, 2]}
    assert not site.run("select 1 from pg_stat_activity where query = 'select pg_sleep(30)' and state = 'active'")
    replica.stop()


@pytest.mark.parametrize(
    ("timeout", "drain", "code", "attempts"),
    [(1, "25", 0, 1), (60, "0.3", 1, 0)],
    ids=["the timeout comes first", "the drain's end comes first"],
)
def test_on_a_drain_only_a_timeout_of_its_own_costs_a_row_its_attempt(
    file_site: Site, timeout: int, drain: str, code: int, attempts: int
) -> None:
    """E4, H5: a stop waits for a handler that hangs until the first of both; being interrupted spends nothing."""
    site = file_site
    site.add(HANG)
    replica = site.start("-p", "1", "--drain-timeout", drain, timeout=timeout)
    eventually(lambda: started(site, 1))
    replica.family()
    replica.send(signal.SIGTERM)
    assert replica.wait(15) == code
    assert site.attempts() == {1: attempts}
    assert site.held() == 0
    assert ("ran longer than its timeout" in replica.stderr) == bool(attempts)


def test_an_async_handler_that_never_comes_back_is_ended_too(file_site: Site) -> None:
    """E4: the event loop's other rows go on in the new child, with nothing spent."""
    site = file_site
    (site.folder / "waits.py").write_text(WAITS)
    site.add({"hang": True}, {}, {})
    replica = site.start_module("waits.py", "-p", "1", "--until-empty", until=None)
    assert replica.wait() == 0
    assert site.dead() == {1: (1, "ran longer than its timeout of 0.5 s")}
    assert site.count() == 0
    assert replica.stderr.count("was ended") == 1


WAITS = """
import asyncio
from shardrun import Queue

queue = Queue.standard("q")

@queue.handler(workers=2, timeout=0.5, max_attempts=1)
async def handle(body: dict) -> None:
    await asyncio.sleep(60 if body else 0)
"""
