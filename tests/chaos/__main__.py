"""Kill everything that can be killed, on every database and in every form, and judge what is left.

make chaos                                     one round of each fault in each cell, twenty minutes at most
make chaos ARGS='--minutes 60 --rounds 5'      more of them
make chaos ARGS='--cell mariadb --fault child' where both texts are part of the names
make chaos ARGS='--seed 7 ...'                 the same again, as far as time allows: a failure prints what to give

A fault, or a cell, is named by any part of its name; several may be given. `--list` lists them all.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Any

from rich.console import Console

from bench.report import machine
from tests import mariadb, servers
from tests.chaos import report
from tests.chaos.cells import CELLS, Cell
from tests.chaos.faults import PROCESS_FAULTS, Fault
from tests.chaos.faults_servers import SERVER_FAULTS
from tests.chaos.report import Verdict
from tests.chaos.round import run

FAULTS: list[type[Fault]] = [*PROCESS_FAULTS, *SERVER_FAULTS]
KEPT = Path("bench/results")
FAILED = Path("build/chaos")


def main(arguments: list[str] | None = None) -> None:
    """Run the matrix."""
    given = _parser().parse_args(arguments)
    pairs = [(fault, cell) for fault in FAULTS for cell in CELLS if _chosen(given, fault, cell)]
    if given.list:
        for fault, cell in pairs:
            print(f"{cell.name:40} {fault.name}")
        return
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(
        f"seed {given.seed}: {len(pairs)} pairs, {given.rounds} rounds each, {given.minutes:g} minutes at most"
    )
    with ExitStack() as stack:
        found = _servers(stack, {cell.dialect for _, cell in pairs})
        where = machine({name: described(server) for name, server in found.items()})
        verdicts = Matrix(console, found, given).run(pairs)
    console.print(report.table(verdicts))
    if len(verdicts) < len(pairs):
        console.print(f"time was up: {len(pairs) - len(verdicts)} pairs were not reached; --minutes gives more")
    report.write(Path(given.into), where, verdicts)
    raise SystemExit(any(each.breaches for each in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Kill everything, and judge what is left."
    )
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6), help="of the first round")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each fault in each cell (1)")
    parser.add_argument("--minutes", type=float, default=20, help="start no round later (20)")
    parser.add_argument("--cell", action="append", default=[], help="part of a cell's name (all)")
    parser.add_argument("--fault", action="append", default=[], help="part of a fault's name (all)")
    parser.add_argument("--patience", type=float, default=1, help="stretch the bounds on a busy machine (1)")
    parser.add_argument("--into", default=str(KEPT), help=f"folder of chaos.md and chaos.json ({KEPT})")
    parser.add_argument("--list", action="store_true", help="list the pairs, and run none")
    return parser


def _chosen(given: argparse.Namespace, fault: type[Fault], cell: Cell) -> bool:
    named = _named(fault.name, given.fault, [each.name for each in FAULTS])
    return fault().fits(cell) and named and _named(cell.name, given.cell, [each.name for each in CELLS])


def _named(name: str, parts: list[str], names: list[str]) -> bool:
    """Tell whether a name is asked for: as it is, or by a part of it that is no other's whole name."""
    return not parts or name in parts or any(part in name for part in parts if part not in names)


def _servers(stack: ExitStack, dialects: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for dialect, start in (("postgres", servers.postgres), ("mariadb", mariadb.mariadb)):
            if dialect in dialects:
                found[dialect] = server = start()
                stack.callback(server.close)
    except servers.NoServer as problem:
        raise SystemExit(str(problem)) from None
    return found


def described(server: Any) -> str:
    """Name a server's version."""
    if isinstance(server, servers.Postgres):
        return f"{server.version() // 10000}.{server.version() % 10000}"
    with server.connect() as connection:
        return str(connection.get_server_info())


class Matrix:
    """Rounds of pairs, one after another, each told as it ends."""

    def __init__(self, console: Console, found: dict[str, Any], given: argparse.Namespace) -> None:
        self.console = console
        self.servers = found
        self.given = given
        self.until = time.monotonic() + 60 * given.minutes

    def run(self, pairs: list[tuple[type[Fault], Cell]]) -> list[Verdict]:
        """Run all rounds, all pairs once before any twice; no round begins when the time is up."""
        verdicts: dict[tuple[str, str], Verdict] = {}
        for number in range(self.given.rounds):
            for fault, cell in pairs:
                if time.monotonic() > self.until:
                    return list(verdicts.values())
                fresh = Verdict(cell.name, fault.name, fault.recovery, fault.bound)
                verdict = verdicts.setdefault((fault.name, cell.name), fresh)
                self._round(verdict, fault(), cell, self.given.seed + number)
        return list(verdicts.values())

    def _round(self, verdict: Verdict, fault: Fault, cell: Cell, seed: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="shardrun-chaos-"))
        began = time.monotonic()
        verdict.rounds += 1
        try:
            with Console(stderr=True).status(f"{cell.name}, {fault.name}"):
                history, breaches = run(fault, cell, seed, folder, self.servers.get(cell.dialect), self.given.patience)
            verdict.rows += len(history.rows)
            verdict.extra += sum(event.what == "start" for event in history.events) - len(history.rows)
            verdict.recoveries += history.recoveries
            found = [str(each) for each in breaches]
        except Exception as error:  # one round that broke off is a verdict, too; the others go on
            found = [f"the round broke off: {type(error).__name__}\n{traceback.format_exc(limit=-4)}"]
        self._tell(verdict, found, seed, folder, time.monotonic() - began)
        for server in self.servers.values():
            server.start()
            server.drop_databases()

    def _tell(self, verdict: Verdict, found: list[str], seed: int, folder: Path, seconds: float) -> None:
        times = f"recovery {' '.join(verdict.times)} s of {verdict.bound:g}"
        self.console.print(
            f"{verdict.cell}, {verdict.fault}: {'fails' if found else 'holds'}   {times}   {seconds:.0f} s"
        )
        if found:
            again = f"--seed {seed} --cell '{verdict.cell}' --fault '{verdict.fault}'"
            kept = FAILED / folder.name
            shutil.copytree(folder, kept)
            self.console.print("\n".join(f"  {each}" for each in found[:12]), style="red", markup=False)
            self.console.print(f"  again: python -m tests.chaos {again}; what it left: {kept}")
            verdict.breaches += [f"seed {seed}: {each.splitlines()[0]}" for each in found]
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
