"""The command as a user runs it: a folder, a shell's environment, both streams apart."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
CONSOLE = [str(Path(sys.executable).with_name("shardrun"))]
MODULE = [sys.executable, "-m", "shardrun"]

NAMED = ("SHARDRUN_", "DATABASE_URL", "COLUMNS", "LINES")
"""Variables that the tests' own environment must not bring in."""

PATIENCE = 60.0

HANDLERS = """
from shardrun import Queue, Retry

invoices = Queue.standard("invoices")


@invoices.handler(max_attempts=2)
def render(invoice: dict) -> None:
    print("rendering", invoice["number"])
    if invoice["number"] == 13:
        raise ValueError("unlucky")
"""


class Said(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str


class Terminal:
    """A folder with `handlers.py` in it, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {"PYTHONPATH": str(ROOT), "COLUMNS": "140"}
        self.write("handlers.py", HANDLERS)
        self.started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(text)

    def run(self, *arguments: str, stdin: str = "", program: list[str] = CONSOLE, **variables: str) -> Said:
        """Run a command to its end."""
        return self.under(variables, *arguments, stdin=stdin, program=program)

    def under(
        self, variables: Mapping[str, str], *arguments: str, stdin: str = "", program: list[str] = CONSOLE
    ) -> Said:
        """Run a command to its end, with these variables."""
        done = subprocess.run(
            [*program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self.surroundings(variables),
            timeout=PATIENCE,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a replica and wait until it is ready."""
        with (self.folder / "stderr").open("w") as stderr, (self.folder / "stdout").open("w") as stdout:
            process = subprocess.Popen(
                [*CONSOLE, "start", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
                cwd=self.folder,
                env=self.surroundings({}),
            )
        self.started.append(process)
        eventually(lambda: "ready" in self.read("stderr") or process.poll() is not None, 20)
        assert process.poll() is None, self.read("stderr")
        return process

    def read(self, name: str) -> str:
        """Read a file."""
        return (self.folder / name).read_text()

    def rows(self, query: str, file: str = "shardrun.db") -> list[Any]:
        """Read the SQLite file as anyone would."""
        connection = sqlite3.connect(self.folder / file)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def close(self) -> None:
        """End what still runs."""
        for process in self.started:
            process.kill()
            process.wait()

    def surroundings(self, variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Give the variables that commands see."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NAMED)}
        return {**kept, **self.environment, **variables}
