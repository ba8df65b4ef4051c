"""Say what was measured: tables for people, JSON for what comes after."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contest import Contest, Results
from bench.figures import Figure, Spread, figures, per_row, rates

HOW = """\
A drain is measured from its first claim to its last ack; the children run by then and have imported their handler. CPU is \
the difference over that time: getrusage of the coordinator; of children and of the server's sessions what the scheduler \
accounts to them (/proc), else psutil's cpu_times, read before they end. Ratios are taken round by round. Contenders take \
turns; each drain has a new table and a process of its own. Trust ratios, not rates, where others use the machine."""


def machine(servers: dict[str, str]) -> dict[str, Any]:
    """Describe where and when this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # of the minute before
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **servers,
        "sqlite": sqlite3.sqlite_version,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def show(console: Console, where: dict[str, Any], contests: list[Contest], results: Results) -> None:
    """Print the tables."""
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim", highlight=False)
    for contest in contests:
        console.print(_rates(contest, results))
    console.print(_figures(figures(results)))
    console.print(HOW, style="dim", highlight=False)


def _rates(contest: Contest, results: Results) -> Table:
    rounds = len(results[contest.name][contest.contenders[0].name])
    table = Table(title=f"{contest.title}: {contest.rows:,} rows, {rounds} rounds", title_justify="left")
    table.add_column("")
    for column in ("rows/s", "min..max", "coordinator us/row", "children us/row", "server us/row"):
        table.add_column(column, justify="right")
    for contender in contest.contenders:
        found = results[contest.name][contender.name]
        rate = rates(found)
        cpus = [per_row(found, what) for what in ("coordinator", "children", "server")]
        ends = f"{rate.least:,.0f}..{rate.greatest:,.0f}"
        table.add_row(
            contender.name, f"{rate.median:,.0f}", ends, *("-" if cpu is None else _short(cpu) for cpu in cpus)
        )
    return table


def _short(spread: Spread) -> str:
    return f"{spread.median:.1f}"


def _figures(found: list[Figure]) -> Table:
    table = Table(title="Figures", title_justify="left")
    for column in ("", "figure", "target", "median", "min..max", ""):
        table.add_column(column, justify="right" if column in ("target", "median", "min..max") else "left")
    for each in found:
        sign = "<=" if each.is_most else ">="
        ends = f"{each.spread.least:.2f}..{each.spread.greatest:.2f}"
        table.add_row(each.id, each.name, f"{sign} {each.target:.3g}", f"{each.spread.median:.2f}", ends, each.verdict)
    return table


def as_json(where: dict[str, Any], contests: list[Contest], results: Results) -> str:
    """Write everything that was measured."""
    document = {
        "machine": where,
        "how": HOW,
        "figures": [{**asdict(each), "verdict": each.verdict} for each in figures(results)],
        "contests": [
            {
                "name": contest.name,
                "title": contest.title,
                "rows": contest.rows,
                "contenders": [
                    {
                        "name": contender.name,
                        "settings": contender.settings,
                        "rounds": [asdict(result) for result in results[contest.name][contender.name]],
                    }
                    for contender in contest.contenders
                ],
            }
            for contest in contests
        ],
    }
    return json.dumps(document, indent=1) + "\n"
