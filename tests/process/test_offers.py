"""Transactional mode under locks, with real replicas: rows are offered, taken by children, and counted where those die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.site import Site
from tests.process.test_transactions import MODULE, starts
from tests.waiting import eventually
from tests.witness import START

SERVED = ["postgres row lock", "postgres advisory", "mariadb row lock", "mariadb advisory"]


@pytest.fixture(params=[*SERVED, "sqlite advisory"])
def offered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Give a database with each form of lock that it has, and a table that handlers write to."""
    dialect, _, form = request.param.partition(" ")
    server: Any = None if dialect == "sqlite" else request.getfixturevalue(dialect)
    site = Site(dialect, tmp_path, server)
    site.create("q", "beside")
    site.run("create table effects (no integer, attempt integer)")
    yield site, form
    site.close()
    if dialect == "mariadb":
        server.drop_databases()


def test_rows_that_end_badly_spend_attempts_and_reach_the_dead_letters(offered: tuple[Site, str]) -> None:
    """R8, H4, E4, B5, D5: one kills every child, one is always late, one commits itself; each is counted in the table.

    The row that killed its child is offered again first.
    """
    site, form = offered
    site.add({"at": "always"})
    site.add({"last": 30})
    site.add({"at": "behind our back"})
    site.add({}, {"at": "retry"})
    replica = site.start_module(MODULE, "-p", "1", FORM=form, MOST="2", TIMEOUT="1.5")
    eventually(lambda: site.count() == 0, 60)
    replica.stop()
    dead = site.dead()
    assert {row: attempt for row, (attempt, _) in dead.items()} == {1: 2, 2: 2}
    assert "signal 9" in dead[1][1] or "SIGKILL" in dead[1][1]
    assert dead[2][1] == "ran longer than its timeout of 1.5 s"
    began = [(event.row, event.attempt) for event in site.witness.events() if event.what == START]
    assert began[:2] == [(1, 1), (1, 2)]
    assert [starts(site, row) for row in (2, 3, 4, 5)] == [[1, 2], [1, 2], [1], [1, 2]]
    assert site.run("select no, count(*) from effects group by no order by no") == [(3, 2), (4, 1), (5, 1)]
    assert "3 acked, 3 retried, 0 dropped, 2 dead, 0 lost" in replica.stderr


def test_two_replicas_share_rows_exactly_once(offered: tuple[Site, str]) -> None:
    """B5, R3, C1: what one has taken is a miss for the other, which counts nothing; on SQLite there is one. Lanes have no row
    in common."""
    site, form = offered
    site.add(*[{"last": 0.01}] * 60)
    replicas = [
        site.start_module(MODULE, "-p", "2", "--child-pool-size", "2", FORM=form, WORKERS="4")
        for _ in range(1 if site.dialect == "sqlite" else 2)
    ]
    eventually(lambda: site.count() == 0, 60)
    for replica in replicas:
        replica.stop()
        assert "0 retried, 0 dropped, 0 dead, 0 lost" in replica.stderr
    assert site.run("select count(*), count(distinct no) from effects") == [(60, 60)]
    assert [starts(site, row) for row in range(1, 61)] == [[1]] * 60


@pytest.mark.parametrize("dialect", ["postgres", "mariadb", "sqlite"])
def test_rows_of_one_lock_run_one_at_a_time_in_batches_of_all_replicas(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str
) -> None:
    """B4, B5, B6, R11: whichever batch they are in, and each once; keys that one has keep no other row of a batch back."""
    site = Site(dialect, tmp_path, None if dialect == "sqlite" else request.getfixturevalue(dialect))
    site.create("q")
    (site.folder / "form").write_text(json.dumps({"advisory_lock": "key-{partition_key}", "transactional": True}))
    names = [f"key {row % 7}" for row in range(42)]
    site.add_keyed([(name, {}) for name in names])
    flags = (str(Path(__file__).with_name("batching.py")), "-p", "2", "--child-pool-size", "2")
    acts = json.dumps({"batch": 4, "workers": 3})
    count = 1 if dialect == "sqlite" else 2
    replicas = [site.start_module(*flags, until=None, KIND="acts", ACTS=acts) for _ in range(count)]
    eventually(lambda: site.count() == 0, 60)
    for replica in replicas:
        replica.stop()
        assert "0 retried, 0 dropped, 0 dead, 0 lost" in replica.stderr
    assert {name: site.witness.overlap(name) for name in names} == dict.fromkeys(names, 1)
    assert [site.witness.runs(row) for row in range(1, 43)] == [1] * 42
    assert max(len(json.loads(line)) for line in (site.folder / "batches").read_text().splitlines()) > 1
    site.close()
    if dialect == "mariadb":
        request.getfixturevalue(dialect).drop_databases()
