"""Where claims by strands look next, over strands in memory: each has its turn, and those that wait cost little."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from shardrun.db import strands as module
from shardrun.db.store import Claimed, Connection
from shardrun.db.strands import FEWEST, GUARDED, MOST_AT_ONCE, MOST_VISITED, REST, Seen, Stranded, Strands
from shardrun.errors import Conflict
from tests.sql.test_golden import LAYOUTS


@dataclass
class InMemory:
    """Strands by their numbers, and a replica that claims them: one row of each at a time, unless it is said otherwise."""

    rows: dict[int, int]  # that each strand still has; none where it is blocked
    seconds: dict[int, float] = field(default_factory=dict)  # until a blocked one falls due
    guarded: set[int] = field(default_factory=set)  # by another replica, which no look shows
    most: int = 1  # rows that a strand gives at once
    held: dict[int, int] = field(default_factory=dict)  # the strand of each row in work
    looks: Counter[int] = field(default_factory=Counter)
    calls: int = 0
    given: int = 0
    strands: Strands = field(init=False)

    def __post_init__(self) -> None:
        self.strands = Strands(self)
        self.order = sorted(self.rows)

    def look(
        self,
        connection: object,
        these: Sequence[Any],
        after: Any | None,
        visits: int,
        full_keys: Sequence[Any],
        held: Collection[Any],
    ) -> tuple[list[Seen], list[Seen]]:
        """Look at strands, and count that."""
        walked = [each for each in self.order if after is None or each > after][:visits]
        self.looks.update([*these, *walked])
        self.calls += 1

        def seen(strand: int) -> Seen:
            is_free = self.rows[strand] > 0 and strand not in full_keys and strand not in self.held.values()
            return Seen(strand, is_free, self.seconds.get(strand))

        return [seen(each) for each in these], [seen(each) for each in walked]

    def take(
        self,
        connection: object,
        strands: Sequence[Any],
        limit: int,
        held: Collection[Any],
    ) -> list[Claimed]:
        """Claim rows of strands in turn."""
        assert len(set(strands)) == len(strands)
        taken: list[Claimed] = []
        for strand in strands:
            count = 0 if strand in self.guarded else min(self.most, self.rows[strand], limit - len(taken))
            self.rows[strand] -= count
            for _ in range(count):
                self.given += 1
                self.held[self.given] = strand
                taken.append(Claimed(self.given, "", 1, False, None, None, str(strand), None, None))
        return taken

    def strand_of(self, row: Claimed) -> int:
        """Give the strand of a row."""
        return int(str(row.group))

    def claim(self, limit: int = 1) -> list[int]:
        """Claim rows; gives their strands."""
        rows = self.strands.claim(None, limit, [], set(self.held))
        return [self.strand_of(row) for row in rows]

    def end(self, *strands: int) -> None:
        """End the rows of these strands, or all."""
        self.held = {id: each for id, each in self.held.items() if strands and each not in strands}


class Clock:
    """The time, which stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock that waits are measured by."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("most", [1, 5])
def test_every_strand_has_its_turn(limit: int, most: int) -> None:
    """D3: however many rows a claim takes and a strand gives, none goes more than two turns ahead of another."""
    memory = InMemory(dict.fromkeys(range(50), 10_000), most=most)
    turns: Counter[int] = Counter()
    while turns.total() < 1000:
        turns.update(set(memory.claim(limit)))
        memory.end()
    assert len(turns) == 50
    assert max(turns.values()) - min(turns.values()) <= 2


def test_strands_that_a_row_is_in_work_of_do_not_keep_others_back() -> None:
    """D3: claims that take one row each fill all lanes from different strands, and find the one that is free at last."""
    memory = InMemory(dict.fromkeys(range(300), 2))
    taken = [strand for _ in range(300) for strand in memory.claim()]
    assert sorted(taken) == list(range(300))
    assert memory.claim() == []
    memory.end(123)
    assert memory.claim() == [123]


def test_blocked_strands_are_walked_past_and_not_looked_at_before_their_turn() -> None:
    """D3, H3: the free one behind a thousand is found in one claim; then a claim looks at that one, and at a few others."""
    memory = InMemory({**dict.fromkeys(range(1000), 0), 1000: 5000})
    assert memory.claim() == [1000]
    assert max(memory.looks.values()) == 1
    assert memory.calls < 10  # each look visits more
    for _ in range(20):
        memory.looks.clear()
        memory.end()
        assert memory.claim() == [1000]
        assert memory.looks[1000] >= 1
    memory.looks.clear()
    for _ in range(200):
        memory.end()
        memory.claim()
    blocked = [memory.looks[strand] for strand in range(1000)]
    assert max(blocked) - min(blocked) <= 1
    assert sum(blocked) <= 201 * 4 * FEWEST


def test_strands_that_were_left_and_not_needed_are_looked_at_by_the_next_claim() -> None:
    """D3: where the first of them gave all that was asked for."""
    memory = InMemory({**dict.fromkeys(range(1000), 0), **dict.fromkeys((1000, 1001, 1002), 50)})
    assert memory.claim(3) == [1000, 1001, 1002]
    memory.end()
    memory.most = 3
    memory.looks.clear()
    assert memory.claim(3) == [1000] * 3
    assert memory.claim(3) == [1001] * 3
    assert memory.looks.total() <= 6 * FEWEST


def test_a_strand_that_waits_is_looked_at_when_it_falls_due(clock: Clock) -> None:
    """E3: however many others are walked past meanwhile; the time is told until then."""
    memory = InMemory({**dict.fromkeys(range(5000), 0), 5000: 2})
    assert memory.claim() == [5000]
    memory.rows[5000], memory.seconds[5000] = 0, 60.0
    memory.end()
    assert memory.claim() == []
    assert memory.strands.next_due == 60.0
    clock.now += 59.0
    assert (memory.claim(), memory.strands.next_due) == ([], 1.0)
    clock.now += 1.5
    memory.rows[5000] = 1
    memory.seconds.clear()
    memory.looks.clear()
    assert memory.claim() == [5000]
    assert memory.looks.total() <= 4 * FEWEST
    assert memory.strands.next_due is None


def test_a_strand_that_another_guards_is_tried_again_soon_and_noted_once(clock: Clock) -> None:
    """R5: its look said that it is free; claims meanwhile add no more times for it."""
    memory = InMemory(dict.fromkeys(range(5), 10), guarded={2, 3})
    assert memory.claim(9) == [0, 1, 4]
    for _ in range(20):
        assert memory.claim(9) == []
    assert memory.strands.next_due == pytest.approx(GUARDED)
    assert len(memory.strands.due) == 2
    clock.now += 2 * GUARDED
    memory.guarded.clear()
    assert sorted(memory.claim(9)) == [2, 3]


def test_a_claim_gives_up_after_many_and_the_next_ones_go_on_from_there(clock: Clock) -> None:
    """D3, H3: so that a claim on a table where all are blocked ends; the free one at the end is found in the end."""
    memory = InMemory({**dict.fromkeys(range(50_000), 0), 50_000: 1})
    assert memory.claim() == []
    assert MOST_VISITED <= memory.looks.total() < MOST_VISITED + MOST_AT_ONCE
    memory.looks.clear()
    assert memory.claim() == []
    assert memory.looks.total() <= 4 * FEWEST  # it rests
    found: list[int] = []
    for _ in range(2):
        clock.now += 1.01 * REST
        found += memory.claim()
    assert found == [50_000]


def test_a_claim_that_finds_nothing_looks_at_each_strand_once_and_then_rests_until_woken(clock: Clock) -> None:
    """H3: new rows wake it, and so does the end of its rest."""
    memory = InMemory(dict.fromkeys(range(500), 0))
    for rest in (True, False):
        assert memory.claim() == []
        assert set(memory.looks) == set(range(500))
        assert max(memory.looks.values()) <= 2
        memory.looks.clear()
        assert memory.claim() == []
        assert memory.looks.total() <= 4 * FEWEST
        memory.looks.clear()
        if rest:
            clock.now += 1.01 * REST
        else:
            memory.strands.wake()
    memory.rows[499] = 1
    assert memory.claim() == [499]


def test_what_is_remembered_has_a_bound(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: strands beyond it are found in their turn."""
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)
    memory = InMemory(dict.fromkeys(range(100), 10), guarded=set(range(50)))
    assert sorted(memory.claim(100)) == list(range(50, 100))
    memory.end()
    assert memory.claim() != []
    assert len(memory.strands.due) <= 10
    assert len(memory.strands.left) <= 10
    memory.guarded.clear()
    turns: Counter[int] = Counter()
    for _ in range(300):
        memory.end()
        turns.update(memory.claim())
    assert len(turns) == 100


class Refused(Stranded):
    """A store whose rows without a strand cannot be claimed for now."""

    def __init__(self, strands: Strands) -> None:
        self.layout = replace(LAYOUTS["standard"], strand="group")
        self.strands = strands

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Refuse."""
        raise Conflict("a deadlock.")


def test_rows_of_strands_are_delivered_though_those_of_none_cannot_be_claimed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D3, C11: they are held by then; a claim that has none of them says what is wrong."""
    store = Refused(InMemory({1: 1}).strands)
    with caplog.at_level(logging.WARNING):
        assert len(store.claim_strands(None, 9, [], set())) == 1
    assert "a claim ended early, after 1 rows: a deadlock." in caplog.text
    with pytest.raises(Conflict):
        store.claim_strands(None, 9, [], {1})


def test_strands_that_many_rows_have_left_are_forgotten_where_none_is_free(clock: Clock) -> None:
    """C3, H5: a whole walk has seen them all; while it rests, they are looked at many at a time, and a stop waits for none."""
    place = InMemory(dict.fromkeys(range(10_000), 0))
    place.strands.left = dict.fromkeys(range(10_000))
    assert place.claim(1) == []
    assert not place.strands.left
    assert place.calls <= 20
    place.strands.left = dict.fromkeys(range(640))
    place.calls = 0
    assert place.claim(1) == []
    assert place.calls <= 10
