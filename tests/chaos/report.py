"""Say what a run of the matrix has shown: a table for people, JSON for what comes after."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.chaos.check import INVARIANTS

HOW = """\
Each round starts replicas of two children each over a table that is kept filled with rows of 2 to 20 ms, hits them, lets the \
table run empty, stops them, and judges what the handlers wrote down outside the database by eight invariants."""


@dataclass
class Verdict:
    """What all rounds of a cell under a fault have shown."""

    cell: str
    fault: str
    recovery: str
    bound: float
    rounds: int = 0
    rows: int = 0
    extra: int = 0
    recoveries: list[float] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """Say it in a word."""
        return "holds" if not self.breaches else "fails"

    @property
    def times(self) -> list[str]:
        """Give the median, the 99th percentile and the longest recovery."""
        found = sorted(self.recoveries)
        if not found:
            return ["-", "-", "-"]
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        return [f"{each:.2f}" for each in (statistics.median(found), p99, found[-1])]


COLUMNS = ("cell", "fault", "rounds", "rows", "extra runs", "p50 s", "p99 s", "max s", "bound s", "verdict")


def line(each: Verdict) -> list[str]:
    """Give a verdict's columns."""
    counts = [f"{each.rounds}", f"{each.rows:,}", f"{each.extra}"]
    return [each.cell, each.fault, *counts, *each.times, f"{each.bound:g}", each.word]


def table(verdicts: list[Verdict]) -> Table:
    """Make a table for the terminal."""
    made = Table(title="Kill matrix", title_justify="left")
    for column in COLUMNS:
        made.add_column(column, justify="left" if column in ("cell", "fault", "verdict") else "right")
    for each in verdicts:
        made.add_row(*line(each), style="" if each.word == "holds" else "red")
    return made


def write(folder: Path, where: dict[str, Any], verdicts: list[Verdict]) -> None:
    """Write chaos.md and chaos.json."""
    folder.mkdir(parents=True, exist_ok=True)
    faults = dict.fromkeys((each.fault, each.recovery, each.bound) for each in verdicts)
    text = ["# Kill matrix", "", HOW, "", "; ".join(f"{name} {value}" for name, value in where.items()), ""]
    text += [f"{number}. {name}" for number, name in INVARIANTS.items()]
    text += ["", "| fault | recovery time is | bound |", "|---|---|---|"]
    text += [f"| {fault} | {recovery} | {bound:g} s |" for fault, recovery, bound in faults]
    text += ["", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    text += [f"| {' | '.join(line(each))} |" for each in verdicts]
    broken = [f"- {each.cell}, {each.fault}: {breach}" for each in verdicts for breach in each.breaches]
    text += ["", "What did not hold:", "", *broken] if broken else []
    (folder / "chaos.md").write_text("\n".join(text) + "\n")
    entries = [
        {
            "cell": each.cell,
            "fault": each.fault,
            "rounds": each.rounds,
            "rows": each.rows,
            "extra_runs": each.extra,
            "recovery": each.recovery,
            "bound": each.bound,
            "recovery_seconds": [round(seconds, 3) for seconds in sorted(each.recoveries)],
            "verdict": each.word,
            "breaches": each.breaches,
        }
        for each in verdicts
    ]
    document = {"machine": where, "how": HOW, "invariants": INVARIANTS, "verdicts": entries}
    (folder / "chaos.json").write_text(json.dumps(document, indent=1) + "\n")
