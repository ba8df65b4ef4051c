"""Compare runs of different rows fairly, from what the handlers recorded."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from shardrun.demo.order import Run


def seconds(runs: Sequence[Run]) -> float:
    """Measure from the first row's start to the last row's end; the time that children take to start is not in it."""
    return max(run.ended for run in runs) - min(run.began for run in runs)


def rate(runs: Sequence[Run]) -> float:
    """Return rows per second."""
    return len(runs) / seconds(runs)


def weight(sample: Sequence[Run], runs: Sequence[Run]) -> float:
    """Say how much CPU a sampled file takes, against an average one; both as measured in the run of all files."""
    sampled = {run.path for run in sample}
    return fmean(run.cpu for run in runs if run.path in sampled) / fmean(run.cpu for run in runs)


def speed_up(sample: Sequence[Run], runs: Sequence[Run]) -> float:
    """Return how many times faster all files ran than one child would have run them.

    A few files make up much of the work, so a sample is some per cent heavier or lighter than the whole. One child's rate
    is corrected by that: it would be a free gain, or a loss that is none.
    """
    return rate(runs) / (rate(sample) * weight(sample, runs))


def share(runs: Sequence[Run]) -> float:
    """Say what part of a core the handlers had while they ran; less than about 0.9 where other programs run as well."""
    return sum(run.cpu for run in runs) / sum(run.ended - run.began for run in runs)
