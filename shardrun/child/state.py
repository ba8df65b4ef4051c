"""Remember whether this process is a child, so that what only a coordinator may do can refuse there."""

from __future__ import annotations

_pids: set[int] = set()


def become_child(pid: int) -> None:
    """Note that this process is a child."""
    _pids.add(pid)


def is_child() -> bool:
    """Tell whether this process, or the one that it was forked from, is a child."""
    return bool(_pids)
