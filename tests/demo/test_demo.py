"""The demo from end to end, as a user runs it."""

from __future__ import annotations

import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from shardrun.demo import __main__ as program
from shardrun.demo import library
from shardrun.demo.handlers import LIBRARY
from tests.mariadb import Mariadb
from tests.servers import Postgres

DEMO = [sys.executable, "-m", "shardrun.demo"]
FIGURES = re.compile(r"^\d[\d,]* rows/s = \d+\.\d x one child \(efficiency \d\.\d\d on \d+ cores?\)$")


def demo(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [*DEMO, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_on_sqlite_every_row_runs_and_every_package_keeps_its_order(tmp_path: Path) -> None:
    """Contract 3: CPU-bound, key-ordered work on all cores, with a summary; into a file the figures come last."""
    result = demo(tmp_path, "--limit", "40")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "queue   40 rows in build/demo.db:"
    assert any(line.startswith("40 acked   0 retried   0 dead   in ") for line in lines)
    assert re.search(r"^order   (\d+) of \1 packages kept their order", result.stdout, re.MULTILINE)
    assert FIGURES.match(lines[-1])
    assert "\x1b" not in result.stdout


def test_what_was_found_is_in_the_database_and_the_queue_is_empty(tmp_path: Path) -> None:
    """Contract 3: real input; a known file's findings are those of the file, and what an earlier demo left is gone."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "demo.db").write_text("not even a database")
    assert demo(tmp_path, "--limit", "21", "-p", "2").returncode == 0
    known = library.find(Path(LIBRARY))[0]
    with sqlite3.connect(tmp_path / "build" / "demo.db") as db:
        assert db.execute("select count(*), count(distinct path), min(attempt) from findings").fetchone() == (21, 21, 1)
        assert db.execute("select count(*) from shardrun_demo_files").fetchone() == (0,)
        package, lines = db.execute("select package, line_count from findings where path = ?", (known.path,)).fetchone()
    db.close()
    assert package == known.package
    assert lines == len((Path(LIBRARY) / known.path).read_bytes().splitlines())


def test_on_postgresql_it_makes_its_own_tables_anew(tmp_path: Path, postgres: Postgres) -> None:
    """Contract 3: `make demo DSN=...`; what an earlier one left is dropped."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as db:
        db.execute("create table shardrun_demo_findings (id text)")
        db.execute("create table shardrun_demo_files (id text)")
    result = demo(tmp_path, "--limit", "20", "--dsn", dsn)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("queue   20 rows in PostgreSQL ")
    assert not (tmp_path / "build").exists()
    with psycopg.connect(dsn) as db:
        assert db.execute("select count(*), min(attempt) from shardrun_demo_findings").fetchone() == (20, 1)
        assert db.execute("select count(*) from shardrun_demo_files").fetchone() == (0,)


def test_on_mariadb_it_makes_its_own_tables_anew(tmp_path: Path, mariadb: Mariadb) -> None:
    """Contract 3: `make demo DSN=mysql://...`, twice, with the same handler."""
    name = mariadb.new_database()
    for limit in ("20", "12"):
        result = demo(tmp_path, "--limit", limit, "--dsn", mariadb.url("mysql", name))
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith(f"queue   {limit} rows in MariaDB 1")
        with mariadb.connect(name) as db, db.cursor() as cursor:
            cursor.execute("select count(*), min(attempt) from shardrun_demo_findings")
            assert cursor.fetchone() == (int(limit), 1)
            cursor.execute("select count(*) from shardrun_demo_files")
            assert cursor.fetchone() == (0,)
    mariadb.drop_databases()


def test_on_a_terminal_a_bar_shows_progress(tmp_path: Path) -> None:
    """Contract 3: with progress: a bar with rate and time left; then the figures, and what to do next."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([*DEMO, "--limit", "40"], cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = read_to_the_end(ours)
    assert process.wait() == 0, text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"  working ━+.* %   \d+ of 40", plain)
    assert re.search(r"\d+ rows/s   0:00:\d\d left", plain)
    assert plain.splitlines()[-1].startswith("next    shardrun start handlers.py")


def read_to_the_end(terminal: int) -> str:
    chunks = []
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how a Linux terminal says that its other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(terminal)
    return b"".join(chunks).decode()


def test_a_database_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    """Contract 2: exit 3 and no traceback."""
    result = demo(tmp_path, "--dsn", "postgresql://app@127.0.0.1:1/app")
    assert result.returncode == 3
    assert result.stderr.startswith("shardrun: PostgreSQL at 127.0.0.1:1 ")
    assert "Traceback" not in result.stderr


def test_without_the_driver_the_way_out_is_named(tmp_path: Path) -> None:
    """Contract 2: exit 2, and what to install."""
    (tmp_path / "psycopg").mkdir()
    (tmp_path / "psycopg" / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='psycopg')\n")
    result = demo(tmp_path, "--dsn", "postgresql://app@127.0.0.1:1/app", PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == "shardrun: postgresql:// needs psycopg. Install it: pip install 'shardrun[postgres]'\n"


def test_another_sqlite_file_must_exist_and_keeps_its_other_tables(tmp_path: Path) -> None:
    """Contract 3: only build/demo.db is removed; a user's file keeps what it has."""
    missing = demo(tmp_path, "--dsn", "sqlite:///own.db", "--limit", "20")
    assert missing.returncode == 3
    with sqlite3.connect(tmp_path / "own.db") as db:
        db.execute("create table findings (kept)")
    db.close()
    assert demo(tmp_path, "--dsn", "sqlite:///own.db", "--limit", "20").returncode == 0
    with sqlite3.connect(tmp_path / "own.db") as db:
        assert db.execute("select count(*) from findings").fetchone() == (0,)
        assert db.execute("select count(*) from shardrun_demo_findings").fetchone() == (20,)
    db.close()


def test_a_number_of_children_is_one_or_more(tmp_path: Path) -> None:
    """Contract 2: exit 2 for flags that make no sense."""
    result = demo(tmp_path, "-p", "0")
    assert result.returncode == 2
    assert "expected a whole number, 1 or more, got 0" in result.stderr


def test_a_database_that_is_not_spoken_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: exit 2, and what is spoken."""
    with pytest.raises(SystemExit) as ended:
        program.main(["--dsn", "oracle://db"])
    assert ended.value.code == 2
    assert "oracle://db (from --dsn) is not a database that shardrun speaks" in capsys.readouterr().err
