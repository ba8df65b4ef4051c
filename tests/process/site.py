"""A place for one process test: a folder, a database with the queue's tables, a witness, and the replicas it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from shardrun.db.connect import database
from shardrun.queue import Queue
from tests.mariadb import Mariadb
from tests.servers import ADMIN_NAME, Postgres
from tests.waiting import eventually
from tests.witness import Witness

ROOT = Path(__file__).parents[2]
ACTS = Path(__file__).with_name("acts.py")
SHARED_MEMORY = Path("/dev/shm")

NOW = {"postgres": "now()", "mariadb": "utc_timestamp(6)", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')"}

STARTED = 20.0
"""Seconds within which a replica must be ready, on a machine that is busy with other things."""

GONE = 5.0
"""Seconds, generous: children are ended by the kernel, their sessions by the server when it looks next."""


class Site:
    """One test's folder and database. `run` executes on a connection of the test's own that commits at once."""

    def __init__(self, dialect: str, folder: Path, server: Postgres | Mariadb | None) -> None:
        self.dialect = dialect
        self.folder = folder
        self.server = server
        self.dsn = f"sqlite:///{folder}/test.db"
        if server is not None:
            name = server.new_database()
            self.dsn = server.url("mariadb", name) if isinstance(server, Mariadb) else name
        self.witness = Witness(folder / "witness")
        self.replicas: list[Replica] = []
        self.next_id = 1
        self.children: set[psutil.Process] = set()
        self.shared_before = shared_memory()
        self._database = database(self.dsn, create=True)
        self.connect()

    def connect(self) -> None:
        """Open the test's own connection (again, when the server was away)."""
        self._connection = self._database.connect(ADMIN_NAME)

    def disconnect(self) -> None:
        """Close the test's own connection, before the server goes away."""
        self._database.close(self._connection)

    def another_connection(self) -> Any:
        """Open a connection as users have them, which commits when it is told to; the test closes it."""
        return self._database.connect_child(ADMIN_NAME)

    def create(self, *tables: str) -> None:
        """Create the tables of standard queues, dead letters included."""
        for table in tables:
            queue: Queue[Any] = Queue.standard(table)
            queue.handler()(lambda body: None)
            for statement in self._database.ddl(queue, queue.subscriptions):
                self._connection.execute(statement)

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with ? for values; returns its rows."""
        if self.dialect != "sqlite":
            text = text.replace("%", "%%").replace("?", "%s")
        cursor = self._connection.execute(text, values)
        return list(cursor.fetchall()) if cursor.description else []

    def one(self, text: str, *values: Any) -> Any:
        """Run a statement that gives one value."""
        return self.run(text, *values)[0][0]

    def add(self, *bodies: dict[str, Any], table: str = "q", **roles: Any) -> None:
        """Insert rows, each with a payload; the same roles for all. Ids go up from 1."""
        queue = Queue.standard(table)
        with self._database.transaction(connection := self._database.connect_child(ADMIN_NAME)):
            queue.insert_many(connection, [{"payload": body, **roles} for body in bodies])
        self._database.close(connection)

    def add_keyed(self, rows: Sequence[tuple[str | None, dict[str, Any]]], table: str = "q") -> None:
        """Insert rows, each with its own key."""
        queue = Queue.standard(table)
        with self._database.transaction(connection := self._database.connect_child(ADMIN_NAME)):
            queue.insert_many(connection, [{"payload": body, "partition_key": key} for key, body in rows])
        self._database.close(connection)

    def attempts(self) -> dict[int, int]:
        """Tell the attempts that the rows in the queue have spent."""
        return dict(self.run("select id, attempt from q order by id"))

    def dead(self) -> dict[int, tuple[int, str]]:
        """Tell the dead letters, with their attempts and their last error."""
        return {row: (attempt, error) for row, attempt, error in self.run("select id, attempt, last_error from q_dead")}

    def count(self, table: str = "q") -> int:
        """Count a table's rows."""
        return int(self.one(f"select count(*) from {table}"))

    def held(self) -> int:
        """Count the rows that a lease still holds."""
        return int(self.one(f"select count(*) from q where locked_until > {NOW[self.dialect]}"))

    def loaded(self) -> int:
        """Count the processes that have loaded `acts.py` so far, coordinators included."""
        return (self.folder / "loaded").read_text().count("\n")

    def open_gate(self, name: str = "gate") -> None:
        """Let the handlers that wait at a gate go on."""
        (self.folder / name).touch()

    def start(self, *flags: str, until: str | None = "ready", dsn: str | None = None, **settings: Any) -> Replica:
        """Start a replica of `acts.py` and wait until it says that it is ready; `settings` are the handler's."""
        return self.start_module(str(ACTS), *flags, until=until, dsn=dsn, ACTS=json.dumps(settings))

    def start_module(
        self, *flags: str, until: str | None = "ready", dsn: str | None = None, **environment: str
    ) -> Replica:
        """Start a replica of any handler modules: the first of `flags`."""
        replica = Replica(self, ["--dsn", dsn or self.dsn, "--poll-interval", "0.1", *flags], environment)
        self.replicas.append(replica)
        if until is not None:
            replica.says(until)
            replica.family()
        return replica

    def work_off(self, *flags: str, seconds: float = 60, **settings: Any) -> Replica:
        """Start a replica that ends when the table is empty, and wait for that; it must end well."""
        replica = self.start("--until-empty", *flags, until=None, **settings)
        assert replica.wait(seconds) == 0, replica.stderr
        return replica

    def sessions(self) -> list[str]:
        """List the database sessions that are not the test's own."""
        if self.server is None:
            return []
        if isinstance(self.server, Mariadb):
            return self.server.sessions(self.dsn.rpartition("/")[2])
        return [session.application_name for session in self.server.sessions(self.dsn)]

    def close(self) -> None:
        """End what still runs, and check that nothing is left of any replica: no process, session or shared memory."""
        for replica in self.replicas:
            replica.kill()
        try:
            eventually(lambda: not self.left_behind(), 5)
        finally:
            self.disconnect()
        assert not self.left_behind()

    def left_behind(self) -> list[object]:
        """List what replicas left: processes, sessions, shared memory."""
        alive = [child for child in self.children if is_alive(child)]
        return [*alive, *self.sessions(), *(shared_memory() - self.shared_before)]


class Replica:
    """`shardrun start` as a process of its own, in a process group of its own."""

    def __init__(self, site: Site, flags: Sequence[str], environment: dict[str, str]) -> None:
        self.site = site
        number = len(site.replicas) + 1
        self.stderr_path = site.folder / f"stderr-{number}"
        self.stdout_path = site.folder / f"stdout-{number}"
        command = [str(Path(sys.executable).with_name("shardrun")), "start"]
        if number % 2 == 0:
            command = [sys.executable, "-m", "shardrun", "start"]
        with self.stderr_path.open("wb") as stderr, self.stdout_path.open("wb") as stdout:
            self.process = subprocess.Popen(
                [*command, *flags],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=site.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "ACTS_FOLDER": str(site.folder), **environment},
            )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self.stderr_path.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        """What it has written to stdout so far."""
        return self.stdout_path.read_text(errors="replace")

    def says(self, text: str, seconds: float = STARTED, times: int = 1) -> str:
        """Wait until it has written a text to stderr, so many times; returns all that it wrote."""

        def look() -> bool:
            if self.stderr.count(text) >= times:
                return True
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.stderr}"
            return False

        try:
            eventually(look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{text!r} was not written: {error}\n{self.stderr}") from None
        return self.stderr

    def family(self) -> list[psutil.Process]:
        """List its child processes, oldest first."""
        try:
            children = [each for each in psutil.Process(self.pid).children() if is_alive(each)]
        except psutil.NoSuchProcess:
            return []
        self.site.children.update(children)
        return sorted(children, key=lambda child: (child.create_time(), child.pid))

    def pids(self) -> list[int]:
        """List its children's process ids."""
        return [child.pid for child in self.family()]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the coordinator alone."""
        self.process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to all its processes, as a terminal does."""
        os.killpg(self.pid, number)

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.stderr}") from None

    def stop(self, seconds: float = 30) -> None:
        """Send SIGTERM and wait for a good end."""
        self.family()
        self.send(signal.SIGTERM)
        assert self.wait(seconds) == 0, self.stderr

    def crash(self) -> None:
        """Kill the coordinator; when its children are gone, too, write down their deaths: nobody takes their rows before."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        eventually(lambda: not any(map(is_alive, family)), GONE)
        for child in family:
            self.site.witness.died(child.pid)

    def kill_child(self, child: psutil.Process) -> None:
        """Kill a child at an instant at which the witness shows what it had done, and no more."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(child.pid, signal.SIGSTOP)
            eventually(lambda: not is_alive(child) or child.status() == psutil.STATUS_STOPPED)
            self.site.witness.died(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the coordinator with SIGKILL, where it still runs; its children die of that."""
        self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process is there and is no zombie (nobody may be left to collect it)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory() -> set[str]:
    """List what is in /dev/shm, but for other database servers' own, and semaphores of other programs' multiprocessing."""
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.exists() else set()
    return {name for name in names if not name.startswith(("PostgreSQL.", "sem.mp-"))}
