"""Turn results into figures: ratios round by round, their median and spread, and what they say about a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.contest import ORDERS, Results
from bench.measure import Result

TIMES = {"coordinator": 4.0 / 2.3, "children": 2.0 / 0.6}
"""P4 for machines of any speed: its microseconds, over those of the prototype on the machine that they were set on."""


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Take the median and the ends."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Figure:
    """A figure of the requirements (`id`), as measured, with its target."""

    id: str
    name: str
    target: float
    is_most: bool  # the target is the most that is allowed, not the least
    spread: Spread
    same: bool = False  # neither was ahead in every round

    @property
    def verdict(self) -> str:
        """Say whether the target was reached, and nothing more than the spread allows."""
        spread = self.spread
        reached = spread.median <= self.target if self.is_most else spread.median >= self.target
        said = "reached" if reached else "missed"
        if spread.least < self.target < spread.greatest:
            said += ", within the spread"
        return said + ("; no difference beyond the spread" if self.same else "")


def rates(results: list[Result]) -> Spread:
    """Give rows per second."""
    return Spread.of([result.rate for result in results])


def per_row(results: list[Result], what: str) -> Spread | None:
    """Give microseconds of CPU per row, of the "coordinator", the "children" (of all of them) or the "server"."""
    values = [getattr(result, what) for result in results]
    if not values or None in values:
        return None
    return Spread.of([value / result.rows * 1e6 for value, result in zip(values, results, strict=True)])


def figures(results: Results) -> list[Figure]:
    """List the figures that these results have."""
    found: list[Figure] = []

    def ratio(id: str, name: str, target: float, contest: str, ours: str, theirs: str) -> None:
        if contest in results:
            spread = _ratio(results[contest][ours], results[contest][theirs])
            found.append(Figure(id, name, target, False, spread, spread.least <= 1.0 <= spread.greatest))

    def cpu(name: str, target: float, what: str) -> None:
        spread = per_row(results["noop"]["shardrun"], what) if "noop" in results else None
        if spread:
            found.append(Figure("P4", name, target, True, spread))

    ratio("P1", "no-op: shardrun / prototype", 0.9, "noop", "shardrun", "prototype")
    ratio("P1", "no-op by key, 1,000 keys: shardrun / prototype", 0.8, "noop", "shardrun by key", "prototype")
    ratio("P2", "3 ms: shardrun / bare (efficiency)", 0.95, "spin", "shardrun", "bare")
    ratio("P2", "3 ms: shardrun / prototype", 0.98, "spin", "shardrun", "prototype")
    ratio("P2", "3 ms by key, 1,000 keys: shardrun / bare (efficiency)", 0.93, "spin", "shardrun by key", "bare")
    if "spin" in results:
        share = _handlers_share(results["spin"]["shardrun"], results["spin"]["bare"])
        found += (
            [Figure("P2", "3 ms: bare CPU / all CPU (whatever else runs here)", 0.95, False, share)] if share else []
        )
    cpu("no-op: coordinator, us per row", 4.0, "coordinator")
    cpu("no-op: a child, us per row that it runs", 2.0, "children")
    if "noop" in results:
        for what, name in (("coordinator", "coordinator"), ("children", "a child")):
            spread = _cpu_ratio(results["noop"]["shardrun"], results["noop"]["prototype"], what)
            if spread:
                found.append(Figure("P4", f"no-op, CPU: {name} / the prototype's", TIMES[what], True, spread))
    ratio("P6", "MariaDB, no-op: shardrun / loop", 0.8, "mariadb", "shardrun", "loop")
    ratio("P6", "SQLite, no-op: shardrun / loop", 0.7, "sqlite", "shardrun", "loop")
    for name, _, database in ORDERS:
        ours, theirs = "order over replicas", "order in a replica"
        ratio("D4", f"{database}, no-op by key: {ours} / {theirs}", 0.5, name, ours, theirs)
    return found


def _ratio(ours: list[Result], theirs: list[Result]) -> Spread:
    """Divide round by round: what disturbs the machine in a round disturbs both."""
    return Spread.of([one.rate / other.rate for one, other in zip(ours, theirs, strict=True)])


def _cpu_ratio(ours: list[Result], theirs: list[Result], what: str) -> Spread | None:
    pairs = [(getattr(one, what), getattr(other, what)) for one, other in zip(ours, theirs, strict=True)]
    if any(one is None or not other for one, other in pairs):
        return None
    return Spread.of([one / other for one, other in pairs])


def _handlers_share(ours: list[Result], bare: list[Result]) -> Spread | None:
    """Divide the CPU that the bare handlers take by all that is taken: the efficiency that other load cannot disturb."""
    shares = []
    for one, ideal in zip(ours, bare, strict=True):
        if one.coordinator is None or one.children is None or one.server is None or ideal.children is None:
            return None
        shares.append(ideal.children / (one.coordinator + one.children + one.server))
    return Spread.of(shares)
