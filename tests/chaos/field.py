"""One round of the kill matrix: a site with replicas under load, faults that hit it, and the history it leaves."""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil

from shardrun.queue import Queue
from tests.chaos.cells import Cell
from tests.chaos.history import History, Stopped, Window
from tests.chaos.sampler import Sampler
from tests.mariadb import Mariadb
from tests.process.site import Replica, Site
from tests.servers import Postgres
from tests.waiting import eventually
from tests.witness import DIED, END, START, Event

MODULE = str(Path(__file__).with_name("load.py"))
KEYS = 7
CHILDREN, POOL = 2, 3
BACKLOG, MEAL = 60, 50
"""Fewer rows than the first in the table: so many more are inserted. Smaller: replicas idle; larger: slow ends of rounds."""

LONGEST_DRAIN = 60.0
"""Seconds until the table must be empty, when all faults are over."""


class Field:
    """A cell in use. `settings` say what the fault needs: `lease`, `timeout`, `most`, `drain`, and `dsn` of a proxy."""

    def __init__(
        self,
        cell: Cell,
        seed: int,
        folder: Path,
        server: Postgres | Mariadb | None,
        patience: float = 1,
        **settings: Any,
    ) -> None:
        self.cell = cell
        self.chance = Random(seed)
        self.patience = patience
        self.settings: dict[str, Any] = {
            "lease": 2.5 if cell.has_timeout else 1,
            "timeout": None,
            "most": 50,
            **settings,
        }
        self.site = Site(cell.dialect, folder, server)
        self.site.create("q")
        self.site.run("create table effects (no integer)")
        self.limit = POOL + CHILDREN if cell.is_on_server else None
        self.past = History(
            cell, set(), [], most=self.settings["most"], timeout=self.settings["timeout"], limit=self.limit
        )
        self.past.lease = self.settings["lease"]
        if cell.has_timeout:
            self.past.timeout = self.past.timeout or 0.4 * self.settings["lease"]
        self.live: list[Replica] = []
        self.feeding = True
        self._looked = 0.0
        self._read = 0
        self._events: list[Event] = []
        self.sampler = Sampler(self.site)

    def start(self) -> Replica:
        """Start one more replica, and wait until it is ready."""
        flags = ["-p", f"{CHILDREN}", "--drain-timeout", "10"]
        if self.limit is not None:
            flags += ["--pool-size", f"{POOL}", "--connection-limit", f"{self.limit}"]
        chaos = {"form": self.cell.form, "transactional": self.cell.transactional, "fifo": self.cell.fifo}
        chaos |= {name: self.settings[name] for name in ("lease", "timeout", "most")}
        dsn = self.settings.get("dsn")
        replica = self.site.start_module(MODULE, *flags, dsn=dsn, CHAOS=json.dumps(chaos))
        self.live.append(replica)
        return replica

    # The load.

    def feed(self, *bodies: dict[str, Any]) -> list[int]:
        """Insert rows, plain ones of a few milliseconds unless bodies are given; lists their ids."""
        chosen = list(bodies) or [{}] * MEAL
        first = len(self.past.rows) + 1
        ids = list(range(first, first + len(chosen)))
        rows = []
        for row, body in zip(ids, chosen, strict=True):
            key = f"k{self.chance.randrange(KEYS)}"
            payload = {"for": round(self.chance.uniform(0.002, 0.02), 4), **body}
            rows.append({"id": row, "payload": payload, ("group" if self.cell.fifo else "partition_key"): key})
        connection = self.site.another_connection()
        Queue.standard("q").insert_many(connection, rows)
        connection.commit()
        connection.close()
        self.past.rows |= set(ids)
        return ids

    def until(self, look: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for something, and keep rows in the table meanwhile."""

        def fed() -> Any:
            now = time.monotonic()
            if self.feeding and now - self._looked > 0.1:
                self._looked = now
                if self.site.count() < BACKLOG:
                    self.feed()
            return look()

        return eventually(fed, seconds)

    def pause(self, seconds: float) -> None:
        """Let so much time pass under load."""
        until = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= until, seconds + 30)

    def flows(self, rows: int = 10) -> None:
        """Wait until every replica has run some more rows."""
        begin = time.monotonic()
        for replica in self.live:
            self.until(lambda: self.ended(since=begin, of=replica) >= rows // len(self.live))  # noqa: B023 - called here

    # What is seen of it.

    def events(self) -> list[Event]:
        """Read what the handlers did: only what is new since the last time, for it is asked for a hundred times a second."""
        if self.site.witness.path.exists():
            with self.site.witness.path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            self._events += [Event(*json.loads(line)) for line in whole.splitlines()]
        return self._events

    def ended(self, since: float, until: float = float("inf"), of: Replica | None = None) -> int:
        """Count the runs that ended in some time, of one replica or of all."""
        pids = None if of is None else self.children_of(of)
        return sum(
            event.what == END and since <= event.time < until and (pids is None or event.pid in pids)
            for event in self.events()
        )

    def opened(self, pid: int) -> Event | None:
        """Tell which row's run is open in a child, or was when it died."""
        last = None
        for event in self.events():
            if event.pid == pid and event.what in (START, END):
                last = event if event.what == START else None
        return last

    def started_again(self, row: int, after: float) -> float | None:
        """Tell when a row started next after a time."""
        times = (
            event.time for event in self.events() if event.what == START and event.row == row and event.time > after
        )
        return next(times, None)

    def death(self, pid: int) -> float:
        """Tell when a child died."""
        deaths = {event.pid: event.time for event in self.events() if event.what == DIED}
        return deaths[pid]

    def mark(self, what: str, begin: float, replica: Replica | None = None, pids: set[int] | None = None) -> None:
        """Write down when a fault was in force, and whom it hit."""
        if replica is not None:
            pids = self.children_of(replica)
        self.past.windows.append(Window(what, begin, time.monotonic(), None if pids is None else frozenset(pids)))

    def children_of(self, replica: Replica) -> set[int]:
        """List all children that a replica ever had."""
        return {child for child, parent in self.parents().items() if parent == replica.pid}

    def parents(self) -> dict[int, int]:
        """Tell each child's coordinator."""
        lines = (self.site.folder / "parents").read_text().split("\n")[:-1]
        return {int(pid): int(parent) for pid, parent in (line.split() for line in lines)}

    # What is done to it.

    def victim(self) -> tuple[Replica, psutil.Process]:
        """Choose a child that has run rows."""

        def look() -> list[tuple[Replica, psutil.Process]]:
            seen = {event.pid for event in self.events()[-400:]}
            return [(each, child) for each in self.live for child in each.family() if child.pid in seen]

        found: list[tuple[Replica, psutil.Process]] = self.until(look)
        return self.chance.choice(found)

    def crash(self, replica: Replica) -> float:
        """Kill a coordinator, and write down each child's death at once; returns how long the last of them lived on."""
        family = {os.pidfd_open(pid): pid for pid in replica.pids()}
        begin: float = time.monotonic()
        replica.process.kill()
        alive = dict(family)
        while alive:
            readable = select.select(list(alive), [], [], 20)[0]
            assert readable, f"children outlive their coordinator: {list(alive.values())}"
            for ended in readable:
                self.site.witness.died(alive.pop(ended))
        lived: float = time.monotonic() - begin
        for each in family:
            os.close(each)
        replica.process.wait()
        self.live.remove(replica)
        self.mark("crash", begin, replica)
        return lived

    def stop(self, replica: Replica) -> float:
        """Send SIGTERM and wait for the end; returns how long it took."""
        replica.family()
        begin = time.monotonic()
        replica.process.terminate()
        code = replica.wait(40)
        lasted: float = time.monotonic() - begin
        self.live.remove(replica)
        self.past.stopped.append(Stopped(replica.pid, code, counted(replica.stderr)))
        return lasted

    # The end.

    def drain(self) -> None:
        """Wait until the table is empty, with a replica that is well."""
        try:
            eventually(lambda: self.site.count() == 0, LONGEST_DRAIN * self.patience)
        except AssertionError:
            self.past.left = self.site.count()

    def close(self) -> History:
        """Stop what still runs, and write the history."""
        for replica in list(self.live):
            self.stop(replica)
        self.past.left_behind = left_behind(self.site)
        self.past.events = self.events()
        self.past.parents = self.parents()
        self.past.dead = {row: attempt for row, (attempt, _) in self.site.dead().items()}
        self.past.effects = dict(self.site.run("select no, count(*) from effects group by no"))
        self.past.connections = self.sampler.close()
        self.site.close()
        return self.past

    def abandon(self) -> None:
        """End everything, whatever has happened."""
        self.sampler.close()
        for replica in self.site.replicas:
            replica.kill()
        self.site.disconnect()


def counted(stderr: str) -> dict[str, int]:
    """Read what a replica says that it has counted."""
    said = stderr.rpartition("stopped: ")[2].replace(",", "")
    return {name: int(count) for count, name in re.findall(r"(\d+) (acked|retried|dropped|dead|lost)", said)}


def left_behind(site: Site) -> list[str]:
    """List what is still there a while after the last replica has stopped."""
    try:
        eventually(lambda: not site.left_behind(), 5)
    except AssertionError:
        return [f"{each}" for each in site.left_behind()]
    locks = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database "
    if site.dialect == "postgres" and site.one(locks + "where datname = current_database())"):
        return ["an advisory lock"]
    return []
