"""What the demo measures, on what, and how it shows and stores it."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from shardrun import testing
from shardrun.demo import handlers, library, progress, tables
from shardrun.demo.library import File
from shardrun.demo.measure import Measures, measure

SOURCE = """
class Shop:
    def price(self, item):  # in cents
        if item and item.price or None:
            for offer in item.offers:
                return offer
        return [x for x in item if x]

async def open(): ...
"""


def test_a_file_is_measured_as_it_reads() -> None:
    """Contract 3: what the handler finds is right."""
    assert measure(SOURCE) == Measures(
        line_count=9,
        tokens=46,
        comments=1,
        classes=1,
        functions=2,
        longest_function=5,
        deepest_nesting=2,
        highest_complexity=6,
    )


def test_an_expression_too_deep_for_recursion_is_measured() -> None:
    """H3: no file kills a child."""
    assert measure("1" + " + 1" * 900).tokens == 1801


def test_tests_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    """Contract 3: the standard library without its test package."""
    for path in (
        "json/decoder.py",
        "json/tests/t.py",
        "test/regrtest.py",
        "idlelib/idle_test/t.py",
        "site-packages/rich/a.py",
        "config-3.11/config.py",
        "abc.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    assert sorted(library.find(tmp_path)) == [File("abc.py", "abc", 6), File("json/decoder.py", "json", 6)]


def test_a_sample_is_a_tenth_with_the_mean_size_of_all() -> None:
    """Contract 3: the speed-up over one core is measured on a fair sample."""
    files = [File(f"{number}.py", f"p{number}", number * number) for number in range(400)]
    some = library.sample(files)
    assert len(some) == 40
    assert library.mean_size(some) == pytest.approx(library.mean_size(files), rel=0.02)
    assert len(library.sample(files[:5])) == 5


def test_a_handler_says_it_where_the_library_has_no_such_file() -> None:
    """E2: an exception of the handler is a failed attempt."""
    with pytest.raises(FileNotFoundError):
        handlers.look_into(handlers.SourceFile("no/such/file.py"), testing.delivery())


def test_the_columns_are_those_of_the_table() -> None:
    """Contract 3: findings can be read with SQL."""
    assert all(f" {column} " in tables.CREATE.replace(",", " ") for column in handlers.COLUMNS)


def test_a_warning_of_the_log_goes_through_the_view() -> None:
    """Contract 3: no line of the log tears the bar; afterwards the log is as it was."""
    out = io.StringIO()
    before = logging.getLogger("shardrun").handlers
    with progress.watching(Console(file=out, force_terminal=True, width=80), "working", 10):
        logging.getLogger("shardrun").warning("child 1 died [red]")
    assert "WARNING child 1 died [red]\n" in out.getvalue()
    assert logging.getLogger("shardrun").handlers is before
