"""Hundreds of kills at random moments: nothing is lost, nothing runs twice without a death, keys stay in order."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from random import Random

import psutil
import pytest

from tests.process.site import Replica, Site
from tests.waiting import eventually
from tests.witness import DIED, START, Event

KILLS = 200
EACH_COORDINATOR = 50
"""Every so many kills it is the coordinator that is hit."""

LONGEST = 150.0
"""Seconds that the killing may take: a busy machine starts children slowly."""

KEYS = 7


@pytest.mark.timeout(300)
def test_two_hundred_kills_lose_nothing_and_keep_every_keys_order(site: Site) -> None:
    """D5, H2, H3, C13, C15: children at random moments, and now and then the coordinator (seeded)."""
    chance = Random(200)
    lives = [0]
    replica = feed_and_start(site)
    kills = 0
    began = time.monotonic()
    while kills < KILLS and time.monotonic() - began < LONGEST:
        moment = time.monotonic() + chance.uniform(0, 0.1)
        eventually(lambda: time.monotonic() >= moment)  # noqa: B023 - called here
        found = eventually(partial(victims, site, replica, whoever=chance.random() < 0.05))
        for child in chance.sample(found, chance.randint(1, len(found))):
            replica.kill_child(child)
            kills += 1
        if site.count() < 200:
            feed(site)
        if kills >= EACH_COORDINATOR * len(lives):
            replica.crash()
            lives.append(len(site.witness.events()))
            eventually(lambda: not site.held())
            replica = feed_and_start(site)
    eventually(lambda: site.count() == 0, 40)
    replica.stop()
    events = site.witness.events()
    check_rows(events, rows=site.next_id - 1)
    for first, last in zip(lives, [*lives[1:], len(events)], strict=True):
        check_order(events[first:last])
    assert kills >= KILLS
    deaths = sum(event.what == DIED for event in events)
    print(f"\n{site.dialect}: {deaths} deaths of children, {site.next_id - 1} rows")


def victims(site: Site, replica: Replica, whoever: bool) -> list[psutil.Process]:
    """List whom to kill: mostly children that have run rows, since respawns back off while others die, too."""
    if whoever:
        return replica.family()
    lately = site.witness.path.read_bytes()[-20_000:].decode() if site.witness.path.exists() else ""
    return [child for child in replica.family() if f", {child.pid}, " in lately]


def feed(site: Site) -> None:
    """Insert some hundred rows that take a moment, over a few keys."""
    site.next_id += 400
    site.add_keyed([(f"k{number % KEYS}", {"do": "sleep", "for": 0.004}) for number in range(400)])


def feed_and_start(site: Site) -> Replica:
    """Start a replica that has something to do at once."""
    feed(site)
    return site.start("-p", "4", lease=1)


def check_rows(events: list[Event], rows: int) -> None:
    """Every row ended, and ran again only because the process that ran it had died."""
    died = {event.pid for event in events if event.what == DIED}
    runs: defaultdict[int, list[int]] = defaultdict(list)
    ended = set()
    for event in events:
        if event.what == START:
            runs[event.row].append(event.pid)
        elif event.what != DIED:
            ended.add(event.row)
    assert ended == set(range(1, rows + 1))
    for row, pids in runs.items():
        assert set(pids[:-1]) <= died, f"row {row} ran again although nobody had died: {pids}"


def check_order(events: list[Event]) -> None:
    """Within one replica's life the rows of a key start in claim order; one whose child died comes again at once."""
    order: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.what == START:
            order[event.key].append(event.row)
    for key, rows in order.items():
        wrong = [pair for pair in pairwise(rows) if pair[0] > pair[1]]
        assert not wrong, f"key {key}: {wrong}"
