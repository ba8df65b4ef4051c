"""The bench itself, on few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.figures import Figure, Spread
from tests.mariadb import Mariadb
from tests.servers import Postgres

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_a_small_bench_drains_everything_and_writes_every_figure(
    postgres: Postgres, mariadb: Mariadb, tmp_path: Path
) -> None:
    """P1, P2, P4, P6, D4: the bench measures each of them, ends by itself and leaves no table behind."""
    dsn = postgres.new_database()
    argv = [sys.executable, "-m", "bench", "--rounds", "1", "--rows", "600", "--spin-rows", "24"]
    argv += ["noop", "sqlite", "mariadb", "spin", "order"]
    other = mariadb.new_database()
    environment = {"PYTHONPATH": str(ROOT), "SHARDRUN_BENCH_POSTGRES": dsn, "PATH": "/usr/bin:/bin"}
    environment["SHARDRUN_BENCH_MYSQL"] = mariadb.url("mysql", other)
    bench = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    (file,) = tmp_path.glob("build/bench/*.json")
    written = json.loads(file.read_text())
    assert {figure["id"] for figure in written["figures"]} == {"P1", "P2", "P4", "P6", "D4"}
    assert all(figure["spread"]["median"] > 0 for figure in written["figures"])
    assert postgres.sessions(dsn) == []
    with postgres.admin(dsn) as connection:
        assert connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone() == (0,)
    assert mariadb.sessions(other) == []
    with mariadb.connect(other) as connection, connection.cursor() as cursor:
        assert cursor.execute("show tables") == 0
    mariadb.drop_databases()


def test_a_figure_says_no_more_than_its_spread_allows() -> None:
    """P1: a difference below the spread is said to be one."""
    missed = Figure("P1", "", 0.9, False, Spread(0.80, 0.75, 0.85))
    unsure = Figure("P1", "", 0.9, False, Spread(0.95, 0.85, 1.05), same=True)
    most = Figure("P4", "", 4.0, True, Spread(3.0, 2.9, 3.1))
    assert [missed.verdict, most.verdict] == ["missed", "reached"]
    assert unsure.verdict == "reached, within the spread; no difference beyond the spread"


def test_the_time_from_a_commit_to_its_handler_is_measured(postgres: Postgres, tmp_path: Path) -> None:
    """P3: each of a few rows begins long before the poll, and both figures are printed."""
    argv = [sys.executable, "-m", "bench", "wake", "--rows", "3"]
    environment = {"PYTHONPATH": str(ROOT), "SHARDRUN_BENCH_POSTGRES": postgres.new_database(), "PATH": "/usr/bin:/bin"}
    bench = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    assert bench.stdout.count(" ms   of 3 rows\n") == 2
