"""Measure the standard library on all cores, in order per package, and say what that brought over one child."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from shardrun import boot, registry
from shardrun.cli_frame import fail
from shardrun.config import Settings
from shardrun.cores import usable_cores
from shardrun.demo import handlers, library, speed
from shardrun.demo.library import File
from shardrun.demo.order import Run, out_of_order
from shardrun.demo.progress import watching
from shardrun.demo.tables import OWN_DSN, Tables
from shardrun.errors import ShardrunError, UsageProblem
from shardrun.registry import Declared
from shardrun.summary import Summary, duration

DOTTED = 61
"""Columns of a line that ends in its result."""

POLL = 0.05
"""Seconds between looks at the empty table. The default of a second would only make the end of the demo wait."""

UNDISTURBED = 0.85
"""Part of a core that handlers have on an idle machine, the coordinator's own work taken off. Larger: a needless warning."""


class Asked(NamedTuple):
    """What the command line asks for."""

    dsn: str
    source: str
    processes: int
    limit: int | None


class Measured(NamedTuple):
    """One run of the replica: its summary, and when each row ran."""

    summary: Summary
    runs: list[Run]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns 0 where every row ran once and every package kept its order."""
    asked = _read(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        return _show(asked, console)
    except ShardrunError as error:
        fail(error)
    except KeyboardInterrupt:
        return 130


def _read(arguments: list[str] | None) -> Asked:
    parser = argparse.ArgumentParser("python -m shardrun.demo", description=__doc__)
    parser.add_argument("--dsn", help=f"the database; default: {OWN_DSN}, made anew")
    parser.add_argument("-p", "--processes", type=_count, metavar="N", help="children; default: the usable cores")
    parser.add_argument("--limit", type=_count, metavar="N", help="measure N files only")
    given = parser.parse_args(arguments)
    source = "--dsn" if given.dsn else "the demo"
    return Asked(given.dsn or OWN_DSN, source, given.processes or usable_cores(), given.limit)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text}")
    return int(text)


def _show(asked: Asked, console: Console) -> int:
    files = library.find(Path(handlers.LIBRARY))[: asked.limit]
    if not files:
        raise UsageProblem(
            f"{handlers.LIBRARY} has no .py files: this Python's standard library came without its source."
        )
    declared = registry.load([handlers.__file__])
    tables = Tables(_settings(asked, asked.processes), declared)
    _introduce(console, files, tables.make())

    some = library.sample(files)
    alone = _run(asked, declared, tables, some, 1, console, "sampling")
    if len(alone.runs) < len(some):
        return _stopped(alone, len(some))
    head = f"one child, {len(some):,} rows as a sample "
    console.print(f"{head:.<{DOTTED}} {speed.rate(alone.runs):,.0f} rows/s")

    console.print(f"all cores, {asked.processes} {'child' if asked.processes == 1 else 'children'}")
    together = _run(asked, declared, tables, files, asked.processes, console, "working")
    if len(together.runs) < len(files):
        return _stopped(together, len(files))
    return _conclude(asked, console, tables, alone.runs, together)


def _settings(asked: Asked, processes: int) -> Settings:
    return Settings(
        dsn=asked.dsn,
        dsn_source=asked.source,
        processes=processes,
        until_empty=True,
        poll_interval=POLL,
        log_level="WARNING",
    )


def _introduce(console: Console, files: list[File], place: str) -> None:
    version = ".".join(platform.python_version_tuple()[:2])
    packages = len({file.package for file in files})
    console.print(f"queue   {len(files):,} rows in {place}:")
    console.print(f"        one per file of Python {version}'s standard library (tests left out)")
    console.print(f"keys    {packages:,} packages; the rows of one package run in order, one at a time")
    console.print("work    parse and measure a file (CPU-bound), write down what was found")
    console.print()


def _run(
    asked: Asked, declared: Declared, tables: Tables, files: list[File], processes: int, console: Console, name: str
) -> Measured:
    tables.fill(files)
    opened = boot.open_all(_settings(asked, processes), declared)
    with watching(console, name, len(files)) as watch:
        summary = boot.start(opened, watch.tick)
    return Measured(summary, tables.runs())


def _stopped(measured: Measured, total: int) -> int:
    print(f"shardrun: stopped after {len(measured.runs):,} of {total:,} rows: {measured.summary}", file=sys.stderr)
    return 1


def _conclude(asked: Asked, console: Console, tables: Tables, alone: list[Run], together: Measured) -> int:
    """Print what came out; without a terminal the line with the figures comes last, where tools look for it."""
    summary, runs = together
    packages = len({run.package for run in runs})
    wrong = out_of_order(runs)
    gain = speed.speed_up(alone, runs)
    cores = min(asked.processes, usable_cores())
    counts = f"{summary.acked:,} acked   {summary.retried:,} retried   {summary.dead:,} dead"
    on = f"{cores} {'core' if cores == 1 else 'cores'}"
    figures = f"{speed.rate(runs):,.0f} rows/s = {gain:.1f} x one child (efficiency {gain / cores:.2f} on {on})"
    path, lines = tables.largest()
    told = [
        f"order   {packages - len(wrong):,} of {packages:,} packages kept their order (as the handlers recorded it)",
        *(f"        not in order: {package}" for package in wrong[:10]),
        f"sample  took {speed.weight(alone, runs):.2f} x the average file's CPU; the speed-up allows for that",
        *_interference(runs),
        f"largest {path}, {lines:,} lines",
        f"all     {tables.way_to_read()}",
        'next    shardrun start handlers.py          README.md, "Your own table"',
    ]
    console.print()
    console.print(f"{counts}   in {duration(speed.seconds(runs))}")
    for line in [figures, *told] if console.is_terminal else [*told, figures]:
        console.print(line, markup=False)
    return 1 if wrong or summary.lost else 0


def _interference(runs: list[Run]) -> list[str]:
    share = speed.share(runs)
    if share > UNDISTURBED:
        return []
    return [f"shared  the handlers had {100 * share:.0f} % of their cores; other programs took the rest"]


if __name__ == "__main__":
    sys.exit(main())
