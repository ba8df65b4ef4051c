"""How a table's name is read."""

from __future__ import annotations

import pytest

from shardrun.queue import split_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("q", ("q",)),
        ("billing.q", ("billing", "q")),
        ('"a.b".c', ("a.b", "c")),
        ('"My Schema"."or""der"', ("My Schema", 'or"der')),
        ('"""x"', ('"x',)),
        ("naïve %s", ("naïve %s",)),
    ],
)
def test_names_are_split_at_dots_outside_quotes(name: str, parts: tuple[str, ...]) -> None:
    """A1: schema-qualified tables, reserved words, capitals, spaces, unicode."""
    assert split_name(name) == parts
