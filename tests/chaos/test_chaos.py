"""A few rounds of the kill matrix, one hit each: `make chaos` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cells import ADVISORY, LEASE, ROW_LOCK, Cell
from tests.chaos.faults import ChildKilled, CoordinatorKilled, Fault, HandlerKillsItself
from tests.chaos.faults_servers import CutsBeforeReplies, SessionsEnded
from tests.chaos.round import run

PATIENCE = 20
"""Times the bounds: these rounds are about what is lost, not about how soon."""

PAIRS: list[tuple[type[Fault], Cell]] = [
    (ChildKilled, Cell("postgres", LEASE, transactional=True)),
    (HandlerKillsItself, Cell("mariadb", ROW_LOCK)),
    (CoordinatorKilled, Cell("sqlite", LEASE)),
    (CutsBeforeReplies, Cell("postgres", ROW_LOCK, transactional=True)),
    (SessionsEnded, Cell("mariadb", ADVISORY)),
]


@pytest.mark.parametrize(("fault", "cell"), PAIRS, ids=lambda each: each.name)
def test_a_hit_breaks_none_of_the_eight_invariants(
    fault: type[Fault], cell: Cell, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """H1, H2, H3, B1, B2, B4, B5, D4, F2, F4, R4: nothing lost or doubled, each key in order, no connection or process over."""
    server = request.getfixturevalue(cell.dialect) if cell.is_on_server else None
    history, breaches = run(fault(), cell, 11, tmp_path, server, PATIENCE, hits=1)
    assert breaches == []
    assert len(history.rows) >= 50
