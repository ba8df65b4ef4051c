"""A MariaDB server that belongs to the tests: started as an ordinary user over a throwaway folder, and never left behind.

`SHARDRUN_TEST_MYSQL` (a DSN of a server whose user may create databases) comes first, then server programs on this machine.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from tests.programs import find_mariadb
from tests.servers import ADMIN_NAME, PASSWORD, ZONE, Keeper, NoServer, free_port, throwaway_folder, unprivileged_user

OPTIONS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "on",
    "innodb-flush-log-at-trx-commit": "2",  # the machine does not crash in tests; the server does
    "innodb-buffer-pool-size": "32M",
    "character-set-server": "utf8mb4",
    "performance-schema": "on",  # sessions have names
    "default-time-zone": "+05:30" if ZONE != "UTC" else "+00:00",  # far from UTC, as PostgreSQL's
}


class Mariadb:
    """A server, and the databases that tests create on it."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._account: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
        }
        self._numbers = itertools.count(1)
        self._prefix = f"shardrun_test_{secrets.token_hex(3)}"
        self.databases: list[str] = []

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        """Open a connection with PyMySQL's own defaults."""
        return pymysql.connect(**self._account, database=database, **settings)

    def new_database(self) -> str:
        """Create an empty database and return its name; it is dropped after the test that created it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {name}")
        self.databases.append(name)
        return name

    def drop_databases(self) -> None:
        """Drop what the tests created."""
        with self.connect() as connection, connection.cursor() as cursor:
            while self.databases:
                cursor.execute(f"drop database if exists {self.databases.pop()}")

    def sessions(self, database: str) -> list[str]:
        """List the names of the sessions in a database, without those of the tests' own administration."""
        query = """
            select ifnull(a.attr_value, '') from information_schema.processlist as p
            left join performance_schema.session_connect_attrs as a
                   on a.processlist_id = p.id and a.attr_name = 'program_name'
            where p.db = %s and ifnull(a.attr_value, '') <> %s
        """
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query, (database, ADMIN_NAME))
            return [name for (name,) in cursor.fetchall()]

    def url(self, scheme: str, database: str) -> str:
        """Write a DSN, for PyMySQL unless SHARDRUN_TEST_MYSQL_DRIVER says mysqldb."""
        account = self._account
        if "+" not in scheme:
            scheme = f"{scheme}+{os.environ.get('SHARDRUN_TEST_MYSQL_DRIVER', 'pymysql')}"
        return f"{scheme}://{account['user']}:{account['password']}@{account['host']}:{account['port']}/{database}"

    def start(self) -> None:
        """Start the server again where it does not run, and wait until it takes connections."""
        raise self._not_ours()

    def stop(self) -> None:
        """Stop the server in order and wait until it is gone."""
        raise self._not_ours()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash of the machine would, and wait until it is gone."""
        raise self._not_ours()

    def _not_ours(self) -> NoServer:
        return NoServer(
            "This test kills the server. Unset SHARDRUN_TEST_MYSQL, so that the tests start one of their own."
        )

    def close(self) -> None:
        """End what the tests started."""
        self.drop_databases()


class OwnMariadb(Mariadb):
    """A server of the tests' own, on a free port of 127.0.0.1."""

    options: Mapping[str, str] = OPTIONS

    def __init__(self, programs: Path) -> None:
        port = free_port()
        user = unprivileged_user()
        self.folder = throwaway_folder("shardrun-test-mariadb-", user)
        data = self.folder / "data"
        where = ["--no-defaults", f"--datadir={data}", f"--tmpdir={self.folder}"]  # other servers clean up in /tmp
        options = [f"--{name}={value}" for name, value in {**self.options, "port": port}.items()]
        first = self.folder / "first.sql"
        first.write_text(
            "flush privileges;\n"
            f"create user app@'127.0.0.1' identified by '{PASSWORD}';\n"
            "grant all on *.* to app@'127.0.0.1' with grant option;\n"
        )
        first.chmod(0o644)
        self.keeper = Keeper(
            {
                "folder": str(self.folder),
                "log": str(self.folder / "server.log"),
                "parent": os.getpid(),
                "user": user and [user.uid, user.gid],
                "environment": {"PATH": os.defpath + ":/usr/sbin", "LC_ALL": "C", "HOME": str(self.folder)},
                "prepare": [
                    "mariadb-install-db",
                    *where,
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    f"--extra-file={first}",
                ],
                "serve": [str(programs / "mariadbd"), *where, f"--socket={self.folder}/socket", *options],
                "ready": "ready for connections",
                "stop_signal": signal.SIGTERM,
                "end_signal": signal.SIGKILL,
            }
        )
        try:
            self.start()
        except NoServer:
            self.keeper.close()
            raise
        super().__init__(f"mysql://app:{PASSWORD}@127.0.0.1:{port}/")

    def start(self) -> None:
        if self.keeper.ask("start") != "ready":
            log = (self.folder / "server.log").read_text(errors="replace")
            raise NoServer(f"MariaDB did not start:\n{log[-2000:]}")

    def stop(self) -> None:
        self.keeper.ask("stop")

    def kill(self) -> None:
        self.keeper.ask("kill")

    def close(self) -> None:
        self.keeper.close()


def mariadb() -> Mariadb:
    """Have a MariaDB server, or raise `NoServer`."""
    dsn = os.environ.get("SHARDRUN_TEST_MYSQL")
    if dsn:
        return Mariadb(dsn)
    programs = find_mariadb()
    if programs is None:
        raise NoServer(
            "No MariaDB server for the tests. `make test` installs one; or install your system's MariaDB server (Debian: "
            "mariadb-server), or set SHARDRUN_TEST_MYSQL to a DSN whose user may create databases."
        )
    return OwnMariadb(programs)
