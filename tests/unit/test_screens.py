"""What people read of a subscription; the periodic line: from the coordinator's own counters, and only where rows moved."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardrun import screens
from shardrun.coordinator import clock
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Counts
from shardrun.db import forms
from shardrun.queue import Queue
from shardrun.summary import Summary


@pytest.mark.parametrize(
    ("roles", "settings", "text"),
    [
        ({}, {}, "row lock"),
        ({}, {"timeout": 90}, "row lock, timeout 90 s"),
        ({"locked_until": "l"}, {"lease": 7.5}, "lease 7.5 s"),
        (
            {"locked_until": "l"},
            {"transactional": True, "batch": 16, "timeout": 60},
            "lease 30 s, transactional, up to 16 rows at once, timeout 60 s",
        ),
        ({"advisory_lock": "accounts-{account}"}, {"batch": 1}, "lock on accounts-{account}, up to 1 row at once"),
        ({"group": "account", "fifo": True}, {}, "row lock, one row at a time by account"),
        (
            {"locked_until": "l", "partition_key": "k"},
            {"key_scope": "cluster", "workers_by_key": 2},
            "lease 30 s, in order over replicas",
        ),
    ],
)
def test_a_subscription_says_how_its_rows_are_held(roles: Any, settings: Any, text: str) -> None:
    """Text 2.4: the form, and what else a delivery is."""
    queue: Queue[Any] = Queue("q", id="id", **roles)
    queue.handler(**settings)(lambda row: None)
    assert forms.described(queue.subscriptions[0]) == text


class Watched:
    """A replica as far as the line looks at one, and a clock that the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, one_writer: bool = False) -> None:
        self.now = 100.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.services = [
            SimpleNamespace(label=name, name=name, counts=Counts(), book=range(held))
            for name, held in (("a", 9), ("b", 0))
        ]
        self.replica = SimpleNamespace(
            life=Life.SERVING,
            services=self.services,
            database=SimpleNamespace(one_writer=one_writer),
            threads=SimpleNamespace(connections=3),
            children=[SimpleNamespace(sessions=[1, 2]), SimpleNamespace(sessions=[])],
        )
        self.ticker = screens.Ticker()
        self.after(0)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.ticker.tick(cast(Replica, cast(Any, self.replica)))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Collect what is logged."""
    monkeypatch.setattr(logging.getLogger("shardrun"), "propagate", True)
    caplog.set_level(logging.INFO, "shardrun")
    return caplog


def test_the_line_comes_every_ten_seconds_where_rows_moved(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text 2.4: rows a second since the last one, those in work, totals that are not zero, open connections."""
    watched = Watched(monkeypatch)
    watched.services[0].counts = Counts(acked=12_000, dropped=39, retried=2, dead=1)
    watched.after(9)
    assert said.messages == []
    watched.after(1)
    watched.after(10)
    assert said.messages == ["a 1,204/s  in work 9  retried 2  dead 1 | connections 5"]
    watched.services[1].counts = Counts(acked=4)
    watched.services[0].counts.retried = 3
    watched.after(20)
    assert said.messages[1:] == ["a 0/s  in work 9  retried 3  dead 1 | b 0.2/s  in work 0 | connections 5"]
    assert vars(said.records[0])["fields"]["queues"][0]["rate"] == 1204.0


def test_a_file_has_no_connections_to_count(said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text 2.4: nor does a replica that stops say more than its last line."""
    watched = Watched(monkeypatch, one_writer=True)
    watched.services[1].counts = Counts(acked=500)
    watched.after(10)
    watched.replica.life = Life.DRAINING
    watched.services[1].counts = Counts(acked=900)
    watched.after(10)
    screens.say_stopped(Summary(900, 0, 0, 1, 0, 0, 20.0))
    screens.say_stopped(Summary(1, 0, 0, 0, 0, 0, 2.0, interrupted=True))
    assert said.messages == [
        "b 50/s  in work 0",
        "stopped: 900 acked, 0 retried, 0 dropped, 1 dead, 0 lost in 20.0 s (45 rows/s)",
        "stopped: 1 acked, 0 retried, 0 dropped, 0 dead, 0 lost in 2.0 s (0 rows/s); handlers were ended, and their rows went "
        "back",
    ]
