"""Count the connections that one replica may open, and say what to change where they pass the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardrun.errors import UsageProblem

SMALLEST_POOL = 2
"""Connections of the coordinator on a server: one claims and settles, one is free to extend leases meanwhile."""


DEFAULT_POOL = 3
"""Connections of the coordinator where leases hold the rows. Larger: more claims and settlements side by side."""

LARGEST_DEFAULT_POOL = 10
"""Connections of the coordinator where each row in work keeps one, unless more are asked for. Larger: more rows at once."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most connections that each part of a replica may hold: the children `each` so many."""

    coordinator: int
    children: int
    each: int
    listener: int

    @property
    def total(self) -> int:
        """Add up what one replica may hold at once, also while children are replaced."""
        return self.coordinator + self.children * self.each + self.listener

    def __str__(self) -> str:
        listener = f" + listener {self.listener}" if self.listener else ""
        noun = "child" if self.children == 1 else "children"
        return f"coordinator {self.coordinator} + {self.children} {noun} x {self.each}{listener}"

    def check(self, limit: int | None) -> UsageProblem | None:
        """Return the problem with a limit that the sum could pass, with each single change that would mend it."""
        if limit is None or self.total <= limit:
            return None
        return UsageProblem(
            f"these settings could open {self.total} connections: {self}; the limit is {limit} (--connection-limit). "
            f"{self._ways_out(limit)}"
        )

    def _ways_out(self, limit: int) -> str:
        over = self.total - limit
        ways = []
        if self.each and (processes := self.children - -(-over // self.each)) >= 1:
            ways.append(f"--processes {processes}")
        if (pool := self.coordinator - over) >= SMALLEST_POOL:
            ways.append(f"--pool-size {pool}")
        if self.children and (each := self.each - -(-over // self.children)) >= 1:
            ways.append(f"--child-pool-size {each}")
        if ways:
            return f"Use {', or '.join(ways)}, or raise the limit."
        least = SMALLEST_POOL + 1 + self.listener
        if limit < least:
            return f"Raise the limit to {least} or more: that is one child and the smallest pools."
        return (
            f"Use all of --processes 1 --pool-size {SMALLEST_POOL} --child-pool-size 1 ({least} connections), "
            "or raise the limit."
        )


def budget(processes: int, pool: int, child_pool: int, listener: bool) -> Budget:
    """Divide the connections of one replica: the coordinator's pool, the children's pools, the listener."""
    return Budget(coordinator=pool, children=processes, each=child_pool, listener=int(listener))


@dataclass(frozen=True, slots=True)
class Needs:
    """What the coordinator's pool serves: the lanes of each subscription whose rows keep connections, and any leases."""

    held: Sequence[int] = ()
    leases: bool = True

    def pool(self, given: int | None) -> int:
        """Size the pool: as given, else one for each row in work, within a bound, and one more."""
        if given is not None:
            return given
        return max(self._least, min(sum(self.held) + 1, LARGEST_DEFAULT_POOL)) if self.held else DEFAULT_POOL

    def problem(self, pool: int) -> UsageProblem | None:
        """Refuse a pool in which a subscription could wait for a connection for as long as another's rows are in work (C2)."""
        least = self._least
        if pool >= least:
            return None
        if not self.held:
            return UsageProblem(
                f"--pool-size {pool} is too small: beside the connection that claims and settles, one must be free to extend "
                f"leases. Use --pool-size {least} or more."
            )
        noun = (
            "the handler whose rows hold one"
            if len(self.held) == 1
            else f"each of {len(self.held)} handlers that hold rows"
        )
        leases = ", for leases" if self.leases else ""
        return UsageProblem(
            f"--pool-size {pool} is too small: it must have a connection for {noun}{leases}, and one to spare. "
            f"Use --pool-size {least} or more."
        )

    @property
    def _least(self) -> int:
        return max(SMALLEST_POOL, len(self.held) + bool(self.held and self.leases) + 1)


def replicas_problem(one: Budget, replicas: int, limit: int, others: int) -> UsageProblem | None:
    """Return the problem with replicas that the server has no room for, beside what others use now."""
    room = limit - others
    asked = replicas * one.total
    if asked <= room:
        return None
    fitting = max(room, 0) // one.total
    way_out = "No replica fits: give each fewer connections (--processes, --pool-size), or raise the server's limit."
    if fitting:
        way_out = (
            f"Use --replicas {fitting}, fewer connections for each (--processes, --pool-size), or raise its limit."
        )
    noun = "replica" if replicas == 1 else "replicas"
    return UsageProblem(
        f"{replicas} {noun} could open {asked} connections; the server takes {limit} and others use {others} now, so that "
        f"{max(room, 0)} are left. {way_out}"
    )
