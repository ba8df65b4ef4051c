"""Choose the dialect that a DSN names. A driver is imported only in its dialect's folder, and only when it is asked for."""

from __future__ import annotations

import re
from typing import cast

from shardrun.db.store import Database
from shardrun.errors import UsageProblem

DIALECTS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def database(dsn: str, source: str | None = None, create: bool = False) -> Database:
    """Read a DSN and return its database, not yet connected.

    `source` says where the DSN came from, for messages (`--dsn`, `DATABASE_URL`); `create` allows a SQLite file to be
    created. Raises `UsageProblem` for a scheme that is not spoken or a driver that is not installed.
    """
    scheme, separator, rest = dsn.partition("://")
    name = scheme.lower().partition("+")[0]
    dialect = DIALECTS.get(name) if separator else None
    if dialect is None:
        said = f" (from {source})" if source else ""
        raise UsageProblem(
            f"{without_password(dsn)}{said} is not a database that shardrun speaks. "
            f"Known: postgresql://, mysql:// (MySQL and MariaDB), sqlite:///file.db"
        )
    if dialect != "sqlite":
        _look_at_password(name, rest, source)
    if dialect == "mysql":
        from shardrun.db.mysql.server import Mysql

        try:
            return cast(Database, Mysql(dsn, source))
        except ImportError as error:
            if (error.name or "").split(".")[0] != "pymysql":
                raise
            raise UsageProblem(f"{name}:// needs PyMySQL. Install it: pip install 'shardrun[mysql]'") from None
    if dialect == "sqlite":
        from shardrun.db.sqlite.server import Sqlite

        return cast(Database, Sqlite(rest, source, create))
    try:
        from shardrun.db.postgres.server import Postgres
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("psycopg", "psycopg_binary", "psycopg_c") and "pq" not in str(
            error
        ):
            raise
        raise UsageProblem(f"{name}:// needs psycopg. Install it: pip install 'shardrun[postgres]'") from None
    return cast(Database, Postgres(f"postgresql://{rest}", source))


def _look_at_password(scheme: str, rest: str, source: str | None) -> None:
    """Refuse an @ behind the first slash: that slash belongs to a password, whose end would be shown as a database's name."""
    path = rest.partition("?")[0].partition("/")[2]
    if "@" in path:
        raise UsageProblem(
            f"the DSN {scheme}://{f' (from {source})' if source else ''} has an @ behind its first slash. In user, password and "
            f"database, / must be written as %2F and @ as %40."
        )


def without_password(dsn: str) -> str:
    """Show a DSN's scheme and host only; whatever lies before an @ may be a password, and so may a setting."""
    scheme, separator, rest = dsn.partition("://")
    if not separator:
        return re.split(r"[@?=\s]", dsn)[0] if "@" not in dsn else dsn.rpartition("@")[2].split("?")[0]
    return f"{scheme}://{re.split(r'[/?#]', rest.rpartition('@')[2])[0]}"
