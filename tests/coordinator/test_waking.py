"""Which subscriptions a commit of this replica's handlers wakes, over a real SQLite file and a child's real frames."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardrun.coordinator.wake import wake
from shardrun.ring import words
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.faults import Held
from tests.store.place import usual

NAMED = {"group": "topic"}


def test_a_row_that_a_handler_committed_is_claimed_before_the_poll(make_desk: MakeDesk) -> None:
    """G1: the claim goes out when the child says so, not when the poll interval is over."""
    desk = make_desk()
    desk.claim()
    desk.claims = True
    desk.place.fill(1, payload="{}")
    desk.hand.say((words.WAKE, [("q", [None])]))
    desk.until(lambda: desk.hand.ids() == [1])
    assert len(desk.store.asked("claim")) <= 3


def test_a_claim_that_had_looked_before_the_commit_is_followed_by_another(make_desk: MakeDesk) -> None:
    """G1: the answer of the early one, nothing, starts no wait for the poll."""
    desk = make_desk()
    desk.store.fail("claim", held := Held(after=True))
    desk.claims = True
    desk.step()
    desk.until(held.begun.is_set)
    desk.place.fill(1, payload="{}")
    desk.hand.say((words.WAKE, [("q", [None])]))
    desk.until(lambda: desk.service.pacing.early)
    held.go()
    desk.until(lambda: desk.hand.ids() == [1])


@pytest.mark.parametrize(
    ("table", "groups", "wakes"),
    [
        ("q", ["mine"], True),
        ("Q", ["other", "mine"], True),
        ('main."q"', ["mine"], True),
        ("q", [], True),
        ("q", ["mine "], True),
        ("q", ["MINE"], False),
        ("q", ["other"], False),
        ("q", [None], False),
        ("r", ["mine"], False),
        ("main.r", [], False),
    ],
)
def test_table_and_group_must_be_the_subscriptions(
    make_desk: MakeDesk, table: str, groups: Sequence[str | None], wakes: bool
) -> None:
    """G1: however the inserting queue spells the table; no groups stand for all."""
    desk = make_desk(queue=usual(**NAMED), columns={"topic": "text"}, group="mine")
    desk.claim()
    wake([desk.service], [("elsewhere", []), (table, groups)])
    assert (desk.service.pacing.not_before == 0.0) is wakes


def test_a_group_in_other_case_is_the_same_where_the_column_says_so(make_desk: MakeDesk) -> None:
    """G1: the column's own collation counts."""
    desk = make_desk(queue=usual(**NAMED), columns={"topic": "text collate nocase"}, group="mine")
    desk.claim()
    wake([desk.service], [("q", ["MINE"])])
    assert desk.service.pacing.not_before == 0.0


def test_a_subscription_without_a_group_is_woken_by_every_group(make_desk: MakeDesk) -> None:
    """G1: it reads them all."""
    desk = make_desk(queue=usual(**NAMED), columns={"topic": "text"})
    desk.claim()
    wake([desk.service], [("q", ["any"])])
    assert desk.service.pacing.not_before == 0.0


def test_a_row_without_a_group_may_have_one_by_default(make_desk: MakeDesk) -> None:
    """G1: where the group's column has a default, a row that names none wakes every group."""
    desk = make_desk(queue=usual(**NAMED), columns={"topic": "text default 'mine'"}, group="mine")
    desk.claim()
    wake([desk.service], [("q", [None])])
    assert desk.service.pacing.not_before == 0.0
