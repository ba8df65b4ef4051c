"""The demo's own check can fail, and its figures are fair."""

from __future__ import annotations

import pytest

from shardrun.demo import speed
from shardrun.demo.order import Run, out_of_order


def run(id: int, began: float, ended: float, package: str = "json", attempt: int = 1, cpu: float = 1.0) -> Run:
    return Run(package, f"{package}/{id}.py", id, attempt, began, ended, cpu)


def test_rows_one_after_another_are_in_order() -> None:
    """D1: in claim order, one at a time; other packages may run beside."""
    assert out_of_order([run(1, 0, 1), run(5, 1, 2), run(2, 0.5, 1.5, "email"), run(9, 3, 4)]) == []


def test_a_row_that_ran_before_an_earlier_one_is_found() -> None:
    """D1: the check names the package."""
    assert out_of_order([run(1, 2, 3), run(5, 0, 1), run(2, 0, 1, "email")]) == ["json"]


def test_rows_that_ran_side_by_side_are_found() -> None:
    """D1: one at a time, also where they began in order."""
    assert out_of_order([run(1, 0, 2), run(2, 1, 3)]) == ["json"]


def test_a_retried_row_has_given_up_its_place_but_runs_alone() -> None:
    """D1: a row that is put off gives up its place."""
    assert out_of_order([run(1, 2, 3, attempt=2), run(2, 0, 1)]) == []
    assert out_of_order([run(1, 0.5, 3, attempt=2), run(2, 0, 1)]) == ["json"]


def test_a_sample_of_light_files_does_not_make_one_child_look_fast() -> None:
    """P2: the speed-up compares the same work."""
    sample = [run(1, 0, 1, cpu=1.0)]
    everything = [run(1, 10, 11, cpu=1.0), run(2, 10, 13, "email", cpu=3.0)]
    assert speed.weight(sample, everything) == pytest.approx(0.5)
    assert speed.rate(sample) == pytest.approx(1.0)
    assert speed.seconds(everything) == pytest.approx(3.0)
    assert speed.speed_up(sample, everything) == pytest.approx(4 / 3)
    assert speed.share(everything) == pytest.approx(1.0)
