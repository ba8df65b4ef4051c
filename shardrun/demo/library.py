"""Find the files of this interpreter's standard library, and a fair sample of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

SAMPLED = 10
"""One file of so many is sampled. Smaller: a better estimate of one child's rate, and a longer wait for it."""

LEAST_SAMPLED = 20


class File(NamedTuple):
    """One file: its path below the library's folder, its top-level package or module, and its size in bytes."""

    path: str
    package: str
    size: int


def find(library: Path) -> list[File]:
    """List the library's files, test packages left out, mixed (the same way each time) as rows of many keys are."""
    found = []
    for file in sorted(library.rglob("*.py")):
        parts = file.relative_to(library).with_suffix("").parts
        if parts[0].isidentifier() and not LEFT_OUT.intersection(parts):
            found.append(File(file.relative_to(library).as_posix(), parts[0], file.stat().st_size))
    random.Random(1).shuffle(found)
    return found


def sample(files: Sequence[File]) -> list[File]:
    """Choose every tenth file by size, beginning where their mean size comes closest to that of all, in their own order.

    A few large files make up much of the work: a sample without them would make one child look faster than it is.
    """
    step = max(1, min(SAMPLED, len(files) // LEAST_SAMPLED))
    by_size = sorted(files, key=lambda file: file.size)
    mean = mean_size(files)
    chosen = min((by_size[start::step] for start in range(step)), key=lambda some: abs(mean_size(some) - mean))
    kept = set(chosen)
    return [file for file in files if file in kept]


def mean_size(files: Sequence[File]) -> float:
    """Return the mean size in bytes."""
    return sum(file.size for file in files) / len(files)
