"""Claims of strands beside a model of their orders: stories of replicas that claim, settle, pause and die, on real databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shardrun.db import strands
from tests.store.conftest import Opener
from tests.store.strand_breaks import BREAKS, Break
from tests.store.strand_model import ACTIONS, MOST, STRANDS, Bench, Draw, World
from tests.store.test_strands import Ordered

FORMS = ["postgres lease", "postgres row lock", "postgres cluster", "sqlite lease", "sqlite cluster"]

STORIES, STEPS = 30, 25
MORE_STORIES = 100
"""Told at most until one finds what is broken."""

DRAWS = st.builds(
    Draw,
    who=st.integers(0, MOST - 1),
    other=st.integers(0, MOST - 2),
    strand=st.sampled_from(STRANDS),
    number=st.integers(0, 5),
    way=st.booleans(),
)


class StrandMachine(RuleBasedStateMachine):
    """Draws what happens next; at the end of a story that went well all rows end."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.world = self.bench.new_world()
        self.is_well = True

    @rule(action=st.sampled_from(ACTIONS), draw=DRAWS)
    def act(self, action: Callable[[World, Draw], None], draw: Draw) -> None:
        self.is_well = False
        replicas = len(self.bench.replicas)
        action(self.world, draw._replace(who=draw.who % replicas, other=draw.other % (replicas - 1)))
        self.is_well = True

    def teardown(self) -> None:
        if self.is_well:
            self.world.at_last_everything_ends()


def tell(bench: Bench, monkeypatch: pytest.MonkeyPatch, stories: int = STORIES) -> None:
    """Tell stories, always the same ones."""
    monkeypatch.setattr(strands, "monotonic", bench.monotonic)
    machine = type("StrandMachine", (StrandMachine,), {"bench": bench})
    how = settings(
        max_examples=stories,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=how)


@pytest.fixture
def ordered(request: pytest.FixtureRequest, open_place: Opener) -> Ordered:
    """Give an empty database for a form."""
    dialect, form = request.param.split(" ", 1)
    return Ordered(open_place(dialect), form)


@pytest.mark.parametrize("ordered", FORMS, indirect=True)
def test_no_story_of_replicas_breaks_an_order_or_loses_a_row(ordered: Ordered, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3, D4, R5, R6: stale looks, late commits, pauses behind the guard, retries, snoozes, deaths; in the end all rows end."""
    tell(Bench(ordered), monkeypatch)


@pytest.mark.parametrize(("ordered", "broken"), BREAKS, indirect=["ordered"])
def test_the_stories_find_what_is_broken(ordered: Ordered, broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5, R6: with any one step of a claim broken, some story gives a row that no replica may have now."""
    spoil = broken(ordered.place, monkeypatch)
    bench = Bench(ordered, broken=True, spoil=spoil)
    with pytest.raises(AssertionError):
        tell(bench, monkeypatch, MORE_STORIES)
