"""Count the cores that this process may use: its affinity, and the CPU quota of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator


def usable_cores(groups: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup", affinity: int | None = None) -> int:
    """Return how many children can run side by side; a quota of 1.5 cores counts as 2.

    `groups` names this process's control groups as Linux writes them, `mount` is where they are mounted; `affinity` stands in
    for the cores that the scheduler allows.
    """
    quotas = [quota for quota in _quotas(groups, mount) if quota > 0]
    return max(1, min([affinity or _affinity(), *(math.ceil(quota) for quota in quotas)]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: str, mount: str) -> Iterator[float]:
    """Read the quotas of this process's groups and of the groups above them, in cores (cgroup v2 and v1)."""
    for line in _read(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            yield from (_v2(folder) for folder in _upward(mount, group))
        elif "cpu" in controllers.split(","):
            for base in (controllers, "cpu"):
                yield from (_v1(folder) for folder in _upward(os.path.join(mount, base), group))


def _upward(mount: str, group: str) -> Iterator[str]:
    """Walk from a group's folder to the mount; in a container the mount often is the group itself."""
    parts = [part for part in group.split("/") if part]
    for length in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:length])


def _v2(folder: str) -> float:
    quota, _, period = _read(os.path.join(folder, "cpu.max")).strip().partition(" ")
    return _ratio(quota, period)


def _v1(folder: str) -> float:
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us")).strip()
    return _ratio(quota, _read(os.path.join(folder, "cpu.cfs_period_us")).strip())


def _ratio(quota: str, period: str) -> float:
    """Divide, or return 0 where there is no quota ("max", -1, no file)."""
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
