"""What `shardrun start --until-empty` makes of every outcome, on both databases."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.process.every_ending import ANSWERS, FAILURES
from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import START, intervals, most_at_once

MODULE = str(Path(__file__).with_name("every_ending.py"))
ONCE_MORE = {"retry": [1, 2], "retry later": [1, 2], "snooze": [1, 1]}
WELL = ("none", "ack", "drop")


@pytest.mark.parametrize("mode", [{}, {"TRANSACTIONAL": "1"}])
def test_every_ending_writes_what_it_says(site: Site, mode: dict[str, str]) -> None:
    """B5, E1, E2, E3, C28, C43: outcomes, exceptions of every kind, returns that mean nothing; good rows behind each key.

    In transactional mode, where the children settle, attempts, dead letters, counts and summary are the same.
    """
    site.create("slow", "threaded")
    names = [*ANSWERS, *FAILURES]
    site.add_keyed([*((name, {"end": name}) for name in names), *((name, {"end": "none"}) for name in names)])
    replica = site.start_module(MODULE, "-p", "2", "--until-empty", until=None, **mode)
    assert replica.wait() == 0, replica.stderr
    attempts = defaultdict(list)
    for event in site.witness.events():
        if event.what == START:
            attempts[event.row].append(event.attempt)
    dead = site.dead()
    for row, name in enumerate(names, 1):
        if name in WELL:
            assert attempts[row] == [1], name
        elif name in ONCE_MORE:
            assert attempts[row] == ONCE_MORE[name], name
        elif name == "dead letter":
            assert dead.pop(row) == (1, "by hand")
            assert attempts[row] == [1]
        else:
            assert attempts[row] == [1, 2, 3], name
            count, error = dead.pop(row)
            assert count == 3
            assert error
            if name in FAILURES:
                assert type(FAILURES[name]).__name__ in error
    assert not dead
    assert site.count() == 0
    assert all(attempts[row] == [1] for row in range(len(names) + 1, 2 * len(names) + 1))
    assert "died" not in replica.stderr
    failing = len(FAILURES) + 3
    good = len(names) + 2 + 3
    assert f"{good} acked, {2 * failing + 3} retried, 1 dropped, {failing + 1} dead, 0 lost" in replica.stdout


def test_several_queues_async_handlers_and_thread_lanes_run_in_one_start(site: Site) -> None:
    """H7, R19: rows of one child side by side, on one event loop or on threads, while other queues go on."""
    site.create("slow", "threaded")
    site.add({"end": "none"}, {"end": "exit"}, table="q")
    site.add(*[{"for": 0.5}] * 6, table="slow")
    site.add(*[{"together": 6}] * 6, table="threaded")
    replica = site.start_module(MODULE, "-p", "2", "--until-empty", until=None)
    assert replica.wait() == 0, replica.stderr
    assert site.count() == site.count("slow") == site.count("threaded") == 0
    runs = intervals(site.witness.events())
    assert most_at_once([run for run in runs if str(run.start.row).startswith("async")]) >= 3
    assert most_at_once([run for run in runs if str(run.start.row).startswith("thread")]) == 6
    assert len({run.start.key for run in runs if str(run.start.row).startswith("async")}) == 1


def test_a_row_that_does_not_fit_its_handler_is_dead_lettered_at_once(site: Site) -> None:
    """A4, E3: with its reason, its stored payload, and its attempt counted; rows behind it go on."""
    site.add(["no dict"], {}, partition_key="k")  # type: ignore[arg-type]
    before = site.run("select payload from q where id = 1")
    replica = site.work_off("-p", "1")
    (count, error) = site.dead()[1]
    assert count == 1
    assert error
    assert site.run("select payload from q_dead") == before
    assert site.witness.rows() == {2}
    assert "1 dead" in replica.stdout


def test_rows_come_by_priority_then_due_time_then_id(site: Site) -> None:
    """D2: NULL due times first; what is due later waits for its time and is counted as later."""
    site.add({"n": 1}, {"n": 2}, partition_key="k", priority=5)
    site.add({"n": 3}, partition_key="k", priority=1)
    site.add({"n": 4}, partition_key="k", priority=1)
    site.add({"n": 5}, partition_key="k", priority=1, retry_after=3600)
    now = "now() - interval '1 hour'" if site.dialect == "postgres" else "datetime('now', '-1 hour')"
    site.run(f"update q set retry_after = {now} where id = 3")
    replica = site.work_off("-p", "1", lease=5)
    assert site.witness.order("k") == [4, 3, 1, 2]
    assert set(site.attempts()) == {5}
    assert "1 later" in replica.stdout


def test_a_delivery_tells_key_headers_group_and_attempt(site: Site) -> None:
    """E5, H7: and a handler takes only the group that it names."""
    site.add({"do": "note"}, partition_key="k1", headers={"trace": "abc"}, group="mine")
    site.add({"do": "note"}, partition_key="k2", group="others")
    site.work_off("-p", "1", group="mine")
    notes = [json.loads(line) for line in (site.folder / "notes").read_text().splitlines()]
    expected = {"id": 1, "key": "k1", "attempt": 1, "headers": {"trace": "abc"}, "group": "mine", "draining": False}
    assert notes == [expected]
    assert site.attempts() == {2: 0}


PROCESSED = """
from shardrun import Delivery, Drop, Queue

done = Queue("done", id="id", payload="body", processed_at="processed_at", locked_until="locked_until", last_error="why")


@done.handler(workers=2)
def handle(body: str) -> Drop | None:
    return Drop("not wanted") if body == "drop" else None
"""


def test_a_processed_at_column_keeps_acked_rows(site: Site) -> None:
    """A1, E1: ack and drop set it, drop writes its reason; the rows are not claimed again."""
    key = "bigint primary key" if site.dialect == "postgres" else "integer primary key"
    time = "timestamptz" if site.dialect == "postgres" else "text"
    site.run(f"create table done (id {key}, body text, processed_at {time}, locked_until {time}, why text)")
    site.run("insert into done (id, body) values (1, 'ack'), (2, 'drop'), (3, 'ack')")
    (site.folder / "handlers.py").write_text(PROCESSED)
    for expected in ("2 acked, 0 retried, 1 dropped", "0 acked, 0 retried, 0 dropped"):
        replica = site.start_module("handlers.py", "-p", "1", "--until-empty", until=None)
        assert replica.wait() == 0, replica.stderr
        assert expected in replica.stdout
    assert site.run("select id, why from done where processed_at is not null order by id") == [
        (1, None),
        (2, "not wanted"),
        (3, None),
    ]


def test_until_empty_waits_for_rows_that_others_hold_and_for_what_it_put_off(site: Site) -> None:
    """C02, C04: a row under someone's lease is waited for, and a row of a ghost is taken over; nothing was touched by hand."""
    later = (
        "now() + interval '2 seconds'"
        if site.dialect == "postgres"
        else "strftime('%Y-%m-%d %H:%M:%f','now','+2 seconds')"
    )
    past = (
        "now() - interval '1 minute'"
        if site.dialect == "postgres"
        else "strftime('%Y-%m-%d %H:%M:%f','now','-1 minute')"
    )
    site.add({}, {}, {}, {"do": "script", "acts": [{"do": "answer", "answer": ["Retry", 1]}, {}]})
    site.run(f"update q set locked_until = {later} where id = 1")
    site.run(f"update q set locked_until = {past} where id = 2")
    site.work_off("-p", "1", lease=2)
    assert site.count() == 0
    assert site.witness.rows() == {1, 2, 3, 4}


def test_null_keys_spread_and_other_keys_do_not(site: Site) -> None:
    """C47, D1: NULL runs side by side; a key and the empty string each one at a time, in id order."""
    site.add_keyed([(key, {"do": "sleep", "for": 0.02}) for _ in range(10) for key in (None, None, None, "a", "")])
    site.work_off("-p", "2", workers_by_key=4)
    assert site.witness.overlap("a") == site.witness.overlap("") == 1
    assert site.witness.order("a") == sorted(site.witness.order("a"))
    assert site.witness.order("") == sorted(site.witness.order(""))
    assert site.witness.overlap(None) >= 2


def test_keys_go_to_the_same_child_in_every_run(file_site: Site) -> None:
    """C48: whatever PYTHONHASHSEED says."""
    site = file_site
    maps = []
    for seed in ("1", "2"):
        site.witness.path.unlink(missing_ok=True)
        site.add_keyed([(f"key-{number}", {"do": "nothing"}) for number in range(60)])
        replica = site.start_module(
            str(Path(__file__).with_name("acts.py")), "-p", "2", PYTHONHASHSEED=seed, ACTS='{"workers_by_key": 2}'
        )
        order = replica.pids()
        eventually(lambda: site.count() == 0)
        replica.stop()
        maps.append({event.key: order.index(event.pid) for event in site.witness.events()})
    assert maps[0] == maps[1]
    assert set(maps[0].values()) == {0, 1}
