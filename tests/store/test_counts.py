"""What `status` counts: exactly where there is little, within bounds where there is much."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from shardrun.db.mysql import driver
from shardrun.db.mysql import status as mysql_status
from shardrun.db.operate import MOST, Count, Counts
from shardrun.db.postgres import status as postgres_status
from shardrun.db.sqlite import status as sqlite_status
from shardrun.db.table import Layout, lay
from shardrun.queue import Subscription
from tests.store.place import Place, subscribe, usual


def counts(place: Place, subscription: Subscription) -> Counts:
    """Count as `status` does."""
    return place.database.counts(place.own, subscription)


def numbers(found: Counts) -> list[int | None]:
    """Take the counts alone."""
    return [count and count.number for count in (found.due, found.in_work, found.later, found.dead)]


def create_index(place: Place, subscription: Subscription) -> None:
    """Create the index that the claim wants."""
    for statement in place.database.ddl(subscription.queue, [subscription], place.own):
        if "index" in statement:
            place.run(statement)


def layout_of(place: Place, subscription: Subscription) -> Layout:
    """Lay a subscription over its table, as the database does."""
    store: Any = place.database.store(place.own, subscription)
    return lay(store.layout.table, subscription, store.layout.dead)


@pytest.mark.parametrize("indexed", [True, False])
def test_due_held_later_and_dead_rows_are_told_apart(place: Place, indexed: bool) -> None:
    """K1: a held row is in work until its lease ends, then due; the oldest due time is of a free row."""
    place.create_usual()
    subscription = subscribe(usual(), dead_letter="q_dead")
    if indexed:
        create_index(place, subscription)
    assert numbers(counts(place, subscription)) == [0, 0, 0, 0]
    soon, past, old, older = (place.seconds(seconds) for seconds in (60, -1, -90, -900))
    place.run(
        f"insert into q (priority, retry_after, locked_until) values (1, null, null), (1, null, {soon}), (2, {old}, null), "
        f"(2, {older}, {soon}), (2, {soon}, null), (3, {soon}, {past}), (null, {past}, {past}), (null, null, {soon})"
    )
    place.run("insert into q_dead (id) values (1), (2)")
    found = counts(place, subscription)
    assert numbers(found) == [3, 3, 2, 2]
    assert found.oldest is not None
    assert 89.9 < found.oldest < 890  # the two clocks' readings are rounded
    assert found.indexed is indexed
    assert not any(count and count.more for count in (found.due, found.in_work, found.later, found.dead))


@pytest.mark.parametrize("indexed", [True, False])
def test_a_subscription_counts_its_own_group_and_its_own_dead_letters(place: Place, indexed: bool) -> None:
    """K1: other groups of the table, and finished rows, do not count."""
    place.create_usual(group="text", processed_at="time")
    queue = usual(group="group", processed_at="processed_at")
    buries = subscribe(queue, group="mine", dead_letter_group="gone")
    copies = subscribe(queue, group="other", dead_letter="q_dead")
    if indexed:
        create_index(place, buries)
    for group, count in (("mine", 3), ("gone", 2), ("other", 5)):
        place.fill(count, group=group, priority=count)
    place.run(
        f"insert into q (\"group\", processed_at) values ('mine', {place.seconds(-1)}), ('gone', {place.seconds(-1)})"
    )
    place.run("insert into q_dead (id, \"group\") values (1, 'other'), (2, 'mine')")
    assert numbers(counts(place, buries)) == [3, 0, 0, 2]
    assert numbers(counts(place, copies)) == [5, 0, 0, 1]


def test_what_a_queue_has_no_column_for_is_not_known(place: Place) -> None:
    """K1: without `retry_after` nothing is later, and no due time is old; without dead letters there is no count of them."""
    without = ["retry_after", "priority"]
    place.create_usual(without=without)
    subscription = subscribe(usual(without=without))
    place.run(f"insert into q (locked_until) values (null), ({place.seconds(60)}), ({place.seconds(-60)})")
    found = counts(place, subscription)
    assert found == Counts(Count(2), Count(1), None, None, None, indexed=True)


def test_counts_stop_at_a_hundred_thousand(place: Place) -> None:
    """K1: `100,000+`, also where a few of the first are in work."""
    place.create_usual()
    subscription = subscribe(usual(), dead_letter="q_dead")
    create_index(place, subscription)
    number = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 111000)"
    if place.dialect == "mariadb":
        number = "with n (i) as (select seq from seq_1_to_111000)"
    when = f"case when i <= 100500 then null else {place.seconds(3600)} end"
    held = f"case when i <= 7 then {place.seconds(60)} end"
    place.run(f"insert into q (priority, retry_after, locked_until) {number} select 1, {when}, {held} from n")
    place.run(f"insert into q_dead (id) {number} select i from n")
    found = counts(place, subscription)
    assert found.due == Count(MOST, more=True)
    assert (found.in_work, found.later, found.dead) == (Count(7), Count(10500), Count(MOST + 1, more=True))
    place.run(f"insert into q (priority) {number} select 2 from n")
    assert counts(place, subscription).in_work == Count(7, more=True)


def test_postgres_reads_no_more_rows_than_the_bounds_say(open_place: Any) -> None:
    """K1: by index, whatever the table holds: finished rows, other groups, rows of other priorities and due times."""
    place = open_place("postgres")
    place.create_usual(group="text", processed_at="time")
    subscription = subscribe(usual(group="group", processed_at="processed_at"), group="mine", dead_letter_group="gone")
    create_index(place, subscription)
    create_index(place, subscribe(usual(processed_at="processed_at")))  # in which other groups lie between
    place.run(
        'insert into q ("group", priority, processed_at, retry_after) '
        "select case when i % 2 = 0 then 'mine' else 'other' end, i % 3, case when i % 5 > 0 then now() end, "
        "case when i % 7 < 3 then null when i % 7 < 5 then now() - interval '1 day' else now() + interval '1 day' end "
        "from generate_series(1, 20000) i"
    )
    place.run("analyze q")
    layout, values = layout_of(place, subscription), {"group": "mine", "dead_group": "gone"}
    bounded = [(postgres_status.counts(layout, 100, 100), 320), (postgres_status.counts_by_id(layout, 100), 110)]
    bounded += [(dead, 10) for dead in [postgres_status.dead(layout, indexed=True, most=100)] if dead]
    for statement, most in bounded:
        for group in ("mine", "nobody's"):
            plan = place.own.execute(f"explain (analyze, format json) {statement.text}", {**values, "group": group})
            scans = list(scans_of(plan.fetchone()[0][0]["Plan"]))
            assert [scan["Node Type"] for scan in scans if scan["Node Type"] == "Seq Scan"] == []
            assert sum(read_by(scan) for scan in scans) <= most, json.dumps(scans, indent=1)


def scans_of(node: dict[str, Any]) -> Any:
    """List the nodes of a plan that read the table."""
    if "Relation Name" in node:
        yield node
    for child in node.get("Plans", ()):
        yield from scans_of(child)


def read_by(scan: dict[str, Any]) -> int:
    """Tell how many rows a node looked at."""
    return int((scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"])


def test_mariadb_reads_no_more_rows_than_the_bounds_say(open_place: Any) -> None:
    """K1: by index, whatever the table holds; each priority is one look."""
    place = open_place("mariadb")
    place.create_usual(group="text", processed_at="time")
    subscription = subscribe(usual(group="group", processed_at="processed_at"), group="mine", dead_letter_group="gone")
    create_index(place, subscription)
    place.run(
        'insert into q ("group", priority, processed_at, retry_after) '
        "select if(seq % 2 = 0, 'mine', 'other'), seq % 3, if(seq % 5 > 0, utc_timestamp(), null), "
        "case when seq % 7 < 3 then null when seq % 7 < 5 then '2020-01-01' else '2999-01-01' end from seq_1_to_20000"
    )
    place.run("analyze table q")
    layout = layout_of(place, subscription)
    values = {"group": "mine", "dead_group": "gone", "level": 1, "undated": 100, "past": 100, "later": 100}
    bounded = [(mysql_status.counts(layout), 310), (mysql_status.counts_by_id(layout, 100), 110)]
    bounded += [(dead, 10) for dead in [mysql_status.dead(layout, indexed=True, most=100)] if dead]
    bounded += [(step, 5) for step in [mysql_status.first_level(layout), mysql_status.next_level(layout)] if step]
    for statement, most in bounded:
        for group in ("mine", "nobody's"):
            asked, before = rows_read(place), rows_read(place)
            driver.run(place.own, statement, {**values, "group": group})
            read = rows_read(place) - before - (before - asked)
            assert read <= 2 * most  # once from the table, once from what was gathered


def rows_read(place: Place) -> int:
    """Tell how many rows the session has read so far; asking reads some itself, as many each time."""
    asked = "select sum(variable_value) from information_schema.session_status where variable_name like 'Handler_read%'"
    return int(place.run(f"{asked} and variable_name not like '%deleted'")[0][0])


def test_sqlite_works_no_longer_than_the_bounds_say(open_place: Any) -> None:
    """K1: by index; the work, in SQLite's own instructions, does not grow with the table."""
    place = open_place("sqlite")
    place.create_usual(group="text", processed_at="time")
    subscription = subscribe(usual(group="group", processed_at="processed_at"), group="mine", dead_letter_group="gone")
    create_index(place, subscription)
    fill = (
        'insert into q ("group", priority, processed_at, retry_after) '
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < 10000) "
        "select iif(i % 2 = 0, 'mine', 'other'), i % 3, iif(i % 5 > 0, '2026-01-01 00:00:00', null), "
        "case when i % 7 < 3 then null when i % 7 < 5 then '2020-01-01 00:00:00' else '2999-01-01 00:00:00' end from n"
    )
    place.run(fill)
    layout = layout_of(place, subscription)
    statements = [
        (sqlite_status.counts(layout, 100, 100), ["mine"]),
        (sqlite_status.counts_by_id(layout, 100), ["mine"]),
    ]
    statements += [(dead, ["gone"]) for dead in [sqlite_status.dead(layout, indexed=True, most=100)] if dead]
    before = [instructions(place.own, statement.text, values) for statement, values in statements]
    place.run(fill)
    place.run(fill)
    assert [instructions(place.own, statement.text, values) for statement, values in statements] == pytest.approx(
        before, rel=0.1, abs=50
    )


def instructions(connection: sqlite3.Connection, text: str, values: list[str]) -> int:
    """Count the instructions that SQLite's machine runs for a statement, in tens."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, 10)
    try:
        connection.execute(text, values).fetchall()
    finally:
        connection.set_progress_handler(None, 10)
    return steps


def test_sessions_of_replicas_are_known_by_name(open_place: Any, postgres: Any) -> None:
    """K1, F3: shardrun's own on the whole server and in this database, beside all that are in use, also of other roles."""
    place = open_place("postgres")
    with postgres.admin() as admin, postgres.admin(place.dsn):
        admin.execute("set application_name = 'shardrun web1-4127'")
        found = place.database.sessions(place.connect())
    assert found.limit == 97
    assert "shardrun web1-4127" in found.ours
    assert [name for name in found.here if not name.startswith("shardrun test")] == []
    assert found.in_use >= len(found.ours) + 1


def test_files_have_no_sessions(open_place: Any) -> None:
    """K1: unknown where there is no server."""
    place = open_place("sqlite")
    assert place.database.sessions(place.own) is None
