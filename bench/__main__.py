"""Measure shardrun beside hand-written loops on this machine and print the figures of the requirements.

make bench                        three rounds of everything
make bench ARGS='--rounds 7'      more of them
make bench ARGS='noop --save'     one contest; the JSON goes to bench/results too, to be kept
make bench ARGS=wake              from a commit in another process to the start of its handler
make bench ARGS=groups            what claims of FIFO groups cost where there are many
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench import groups, places, report, wake
from bench.contest import ORDERS, Contest, Place, contests, rounds
from tests.servers import NoServer

BUILD = Path("build/bench")
KEPT = Path("bench/results")
NAMES = ("noop", "sqlite", "mariadb", "spin", *(name for name, _, _ in ORDERS))


def main(arguments: list[str] | None = None) -> None:
    """Run the bench."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["wake"], ["groups"]):
        {"wake": wake, "groups": groups}[arguments[0]].main(arguments[1:])
        return
    given = _parser().parse_args(arguments)
    every = contests(given.rows, given.spin_rows, given.pool_size)
    chosen = [contest for contest in every if not given.contests or contest.name in given.contests]
    try:
        file = _measure(given, chosen)
    except NoServer as problem:
        raise SystemExit(str(problem)) from None
    if given.save:
        KEPT.mkdir(parents=True, exist_ok=True)
        print(f"kept as {shutil.copy(file, KEPT)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Measure shardrun beside hand-written loops.")
    parser.add_argument("contests", nargs="*", choices=[[], *NAMES], help=f"{' '.join(NAMES)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every contest (3)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a drain with no-op handlers (100,000)")
    parser.add_argument("--spin-rows", type=int, default=1500, help="rows of a drain with 3 ms handlers (1,500)")
    parser.add_argument("--pool-size", type=int, default=2, help="connections of shardrun's coordinator (2)")
    parser.add_argument("--seconds", type=float, default=340, help="start no round that would end later (340)")
    parser.add_argument("--save", action="store_true", help=f"copy the JSON to {KEPT}")
    return parser


def _measure(given: argparse.Namespace, chosen: list[Contest]) -> Path:
    console = Console(width=None if sys.stdout.isatty() else 150)
    progress = Console(stderr=True)
    needed = {contest.place for contest in chosen}
    with ExitStack() as stack:
        found: dict[str, Place] = {}
        described = dict.fromkeys(("postgres", "mariadb"), "not measured")
        if "postgres" in needed:
            found["postgres"] = server = stack.enter_context(places.postgres())
            described["postgres"] = server.describe()
        if "mariadb" in needed:
            found["mariadb"] = other = stack.enter_context(places.mariadb())
            described["mariadb"] = other.describe()
        if "sqlite" in needed:
            found["sqlite"] = stack.enter_context(places.sqlite())
        where = report.machine(described)
        with progress.status("starting") as status:
            results = rounds(found, chosen, given.rounds, given.seconds, status.update)
    report.show(console, where, chosen, results)
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / f"{where['date'].replace(':', '').split('+')[0]}.json"
    file.write_text(report.as_json(where, chosen, results))
    console.print(f"{file}", style="dim")
    return file


if __name__ == "__main__":
    main()
