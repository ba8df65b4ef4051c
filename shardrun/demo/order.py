"""Check the order from what the handlers recorded, not from what the coordinator believes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """One row's run: whose, when it began and ended (monotonic seconds of this machine), and the seconds of CPU it took."""

    package: str
    path: str
    id: int
    attempt: int
    began: float
    ended: float
    cpu: float


def out_of_order(runs: Iterable[Run]) -> list[str]:
    """List the packages whose rows did not run one after another in the order of their ids.

    A row that was retried has given up its place, so only that it ran alone is asked of it.
    """
    by_package: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_package[run.package].append(run)
    return sorted(package for package, its in by_package.items() if not _is_in_order(its))


def _is_in_order(runs: Sequence[Run]) -> bool:
    in_place = sorted((run for run in runs if run.attempt == 1), key=lambda run: run.id)
    in_time = sorted(runs, key=lambda run: run.began)
    pairs = [*pairwise(in_place), *pairwise(in_time)]
    return all(earlier.ended <= later.began for earlier, later in pairs)
