"""Batches in one transaction of a child, on real databases: what was written, and how each row ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shardrun import DeadLetter, Delivery, Drop, Retry
from shardrun.child.call import boot_time
from shardrun.db.taking import Fate
from shardrun.policy.verbs import Verb
from shardrun.ring import words
from shardrun.ring.wire import Report
from tests.child.test_transactions import LEASES, ON_SERVERS, Child, Serve, a_place, note, serve  # noqa: F401 - a fixture
from tests.proxy import Proxy
from tests.servers import Postgres
from tests.store.place import Place, usual


@pytest.fixture(params=[*LEASES, *ON_SERVERS, "sqlite advisory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give a database of each kind, as the tests of single rows have it."""
    yield from a_place(request, tmp_path)


def ran(child: Child, keys: str = "") -> list[Report]:
    """Hand over the three rows as a batch, and return the report of each."""
    until = boot_time() + 20
    rows = [
        (id, 0, id, row.attempt, until, key, None, None, row.body, row.token, False)
        for (id, row), key in zip(sorted(child.claimed.items()), keys or [None] * 3, strict=True)
    ]
    no, code, _, *rest = child.call.run((1, 0, rows, 0, until), boot_time())
    assert (no, code) == (1, words.EACH)
    return sorted(Report(*each) for each in rest[0])


def codes(reports: list[Report]) -> list[int]:
    """List how each row ended."""
    return [report.code for report in reports]


def test_a_batch_commits_with_the_settlements_of_all_its_rows(serve: Serve, place: Place) -> None:  # noqa: F811
    """B5, B6: writes through any delivery are one transaction's, kept where any row is acked; each row ends in its own way."""

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> Any:
        assert len({id(note(each, f"row {each.id}")) for each in deliveries}) == 1
        assert place.run("select count(*) from effects") == [(0,)]
        return [None, Retry(60), Drop()]

    child = serve(handle, batch=3)
    reports = ran(child)
    assert codes(reports) == [words.ACK, words.RETRY, words.DROP]
    assert [report.verb for report in reports] == [None, Verb.RETRY.value, Verb.DROP.value]
    assert child.notes() == ["row 1", "row 2", "row 3"]
    assert [child.fate(id) for id in (1, 2, 3)] == [Fate.DONE, Fate.FREE, Fate.DONE]
    assert child.told


@pytest.mark.parametrize("how", ["raises", "retries", "malformed"])
def test_what_a_batch_wrote_is_undone_where_no_row_is_done(serve: Serve, how: str) -> None:  # noqa: F811
    """B5, C104: an exception, a list that is too short, or nothing but retries; each row is settled all the same."""

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> Any:
        note(deliveries[1])
        if how == "raises":
            raise ZeroDivisionError
        return Retry() if how == "retries" else [None]

    child = serve(handle, batch=3)
    reports = ran(child)
    assert codes(reports) == [words.RETRY if how == "retries" else words.FAILED] * 3
    assert {report.verb for report in reports} == {Verb.RETRY.value}
    assert (child.notes(), child.told) == ([], [])
    assert [child.fate(id) for id in (1, 2, 3)] == [Fate.FREE] * 3


@pytest.mark.parametrize("other", [1, 2])
def test_a_row_that_is_not_ours_any_more_is_left_out(serve: Serve, place: Place, other: int) -> None:  # noqa: F811
    """R3: it counts nothing, wherever in the batch it stands; those that do not decode are settled beside the others."""
    place.run("update q set payload = '7' where id = 3")
    seen: list[Any] = []

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> None:
        seen.extend(each.id for each in deliveries)

    child = serve(handle, batch=3, dead_letter="q_dead")
    place.run(
        f"update q set locked_until = {place.seconds(99)} where id = ?", other
    )  # which changes an offered row, too
    expected = [words.ACK, words.ACK, words.UNDECODABLE]
    expected[other - 1] = words.MISSED
    reports = ran(child)
    assert codes(reports) == expected
    assert seen == [3 - other]
    assert (reports[2].verb, child.fate(3)) == (Verb.BURY.value, Fate.DEAD)


@pytest.mark.parametrize("form", ["lease", "row lock", "advisory"])
@pytest.mark.parametrize(("locked", "by_key", "runs"), [(1, True, []), (2, True, [1]), (2, False, [1, 3])])
def test_no_row_passes_one_with_a_key_that_is_locked_for_now(
    postgres: Postgres, form: str, locked: int, by_key: bool, runs: list[int]
) -> None:
    """D1, B6, R3: a row that its owner is changing waits, and with it what follows it in the batch and may have its key,
    where that is promised."""
    made = Place("postgres", postgres.new_database())
    made.form = form
    made.create_usual()
    made.fill(3, payload="{}")
    seen: list[Any] = []

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> None:
        seen.extend(each.id for each in deliveries)

    child = Child(made, handle, batch=3, workers=None if by_key else 1)
    with psycopg.connect(made.dsn) as changing:
        changing.execute("update q set payload = payload where id = %s", (locked,))
        reports = ran(child, "aba")
    assert codes(reports) == [words.ACK if id in runs else words.MISSED for id in (1, 2, 3)]
    assert seen == runs
    child.pool.close()
    made.close()


def test_a_commit_of_the_handlers_own_acks_no_row(serve: Serve, place: Place) -> None:  # noqa: F811
    """B5: the savepoint is gone; every row that was acked has failed, and is left to the coordinator."""

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> Any:
        deliveries[0].tx.cursor().execute("commit")
        return [None, None, DeadLetter("bad")]

    child = serve(handle, batch=3, dead_letter="q_dead")
    reports = ran(child)
    assert codes(reports) == [words.FAILED] * 3
    assert {report.verb for report in reports} == {None}
    assert all("was ended inside the handler" in (report.reason or "") for report in reports)
    assert [child.fate(id) for id in (1, 2, 3)] == [Fate.HELD] * 3


def test_rows_stay_locked_when_what_was_written_is_undone(postgres: Postgres) -> None:
    """B5: the savepoint stands behind the locks of all rows, so that going back to it frees none."""
    made = Place("postgres", postgres.new_database())
    made.create_usual()
    made.fill(3, payload="{}")
    child = Child(made, lambda rows: None, batch=3)
    tokens = {id: row.token for id, row in child.claimed.items()}
    connection = made.database.connect_child("part")
    assert child.taking.take(connection, 1, tokens[1], 1)
    assert child.taking.take_also(connection, [(2, tokens[2]), (3, "1999-01-01")]) == {2}
    connection.execute("rollback to savepoint shardrun_delivery")
    assert made.run("select id from q order by id for update skip locked") == [(3,)]
    child.taking.abandon(connection)
    made.database.close(connection)
    made.close()


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_in_doubt_is_looked_up_for_all_by_one_that_tells(postgres: Postgres, committed: bool) -> None:
    """R1, B6: the rows were committed together, or none was; one that was put off by its lease looks like another's."""
    dsn = postgres.new_database()
    made = Place("postgres", dsn)
    made.create_usual()
    made.create("effects", id="key", note="text")
    made.fill(3, payload="{}")

    def handle(rows: list[dict[str, Any]], deliveries: list[Delivery]) -> Any:
        note(deliveries[0])
        (proxy.cut_after_request if committed else proxy.cut_at_request)(b"commit\0")
        return [Retry(60), None, None]

    with Proxy.of(dsn) as proxy:
        child = Child(made, handle, dsn=proxy.dsn(dsn), batch=3, queue=usual(without=["retry_after"]))
        reports = ran(child)
        child.pool.close()
    assert child.notes() == (["written"] if committed else [])
    assert codes(reports) == ([words.RETRY, words.ACK, words.ACK] if committed else [words.FAILED] * 3)
    fates = [Fate.LOST, Fate.DONE, Fate.DONE] if committed else [Fate.HELD] * 3
    assert [child.fate(id) for id in (1, 2, 3)] == fates
    made.close()
