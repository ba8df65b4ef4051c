"""PgBouncer before the session's PostgreSQL: started as an ordinary user on a free port, and never left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import psycopg.rows

from tests.programs import find_pgbouncer
from tests.servers import Keeper, NoServer, Postgres, free_port, throwaway_folder, unprivileged_user, with_database

CONFIGURATION = """\
[databases]
* = host={host} port={port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
admin_users = {user}
pool_mode = transaction
default_pool_size = 8
reserve_pool_size = 0
"""


class Pgbouncer:
    """A pooler in transaction mode before a server; every client is let in as the server's role."""

    def __init__(self, server: Postgres) -> None:
        program = find_pgbouncer()
        if program is None:
            raise NoServer(
                "No PgBouncer for the tests. `make test` installs it; or install your system's package (Debian: pgbouncer), "
                "or set SHARDRUN_TEST_PGBOUNCER to the program's path."
            )
        parts = urlsplit(server.dsn)
        self.server = server
        self.port = free_port()
        user = unprivileged_user()
        self.folder = throwaway_folder("shardrun-test-pgbouncer-", user)
        file = self.folder / "pgbouncer.ini"
        file.write_text(
            CONFIGURATION.format(
                host=parts.hostname,
                port=parts.port or 5432,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                own_port=self.port,
            )
        )
        file.chmod(0o644)
        self.keeper = Keeper(_plan(self.folder, [str(program), str(file)], user and [user.uid, user.gid]))
        if self.keeper.ask("start") != "ready":
            log = (self.folder / "server.log").read_text(errors="replace")
            self.keeper.close()
            raise NoServer(f"{program} did not start:\n{log[-2000:]}")

    def dsn(self, dsn: str) -> str:
        """Name a database of the server, reached through the pooler."""
        parts = urlsplit(dsn)
        account = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{account}@127.0.0.1:{self.port}").geturl()

    def server_dsn(self, dsn: str) -> str:
        """Name a database that is reached through the pooler on the server itself."""
        return with_database(self.server.dsn, urlsplit(dsn).path[1:])

    def show(self, what: str) -> list[dict[str, Any]]:
        """Ask the pooler's own console: `clients`, `servers`, `pools`."""
        with self._console() as cursor:
            return cursor.execute(f"show {what}").fetchall()

    def set(self, **settings: str) -> None:
        """Change settings, for clients that come from now on."""
        with self._console() as cursor:
            for name, value in settings.items():
                cursor.execute(f"set {name} = '{value}'")

    def forget(self, dsn: str) -> None:
        """Close every connection to a database."""
        name = urlsplit(dsn).path[1:]
        with self._console() as cursor:
            if any(one["database"] == name for one in cursor.execute("show pools").fetchall()):
                cursor.execute(f"kill {name}")
                cursor.execute(f"resume {name}")

    @contextmanager
    def _console(self) -> Iterator[psycopg.ClientCursor[dict[str, Any]]]:
        console = self.dsn(with_database(self.server.dsn, "pgbouncer"))
        with psycopg.connect(console, autocommit=True) as connection:
            yield psycopg.ClientCursor(connection, row_factory=psycopg.rows.dict_row)

    def close(self) -> None:
        """End the pooler and remove its folder."""
        self.keeper.close()


def _plan(folder: Path, serve: list[str], user: list[int] | None) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "log": str(folder / "server.log"),
        "parent": os.getpid(),
        "user": user,
        "environment": {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(folder)},
        "prepare": ["true"],
        "serve": serve,
        "ready": "process up",
        "stop_signal": signal.SIGTERM,
        "end_signal": signal.SIGTERM,
    }
