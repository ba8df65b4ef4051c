"""Run statements over lists of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardrun.db.sqlite import sql
from shardrun.db.statement import Statement
from shardrun.db.table import Layout

Builder = Callable[[Layout, int], Statement]


class Sized:
    """A statement over a list, built once for each length of LENGTHS; lists are filled up with NULL, or cut in pieces."""

    def __init__(self, layout: Layout, build: Builder) -> None:
        self.shortest = build(layout, sql.LENGTHS[0])
        self.texts = {length: build(layout, length).text for length in sql.LENGTHS}

    def pieces(self, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Give each piece of a list with the text that takes it."""
        longest = sql.LENGTHS[-1]
        for start in range(0, len(values), longest):
            piece = list(values[start : start + longest])
            length = next(length for length in sql.LENGTHS if length >= len(piece))
            yield self.texts[length], piece + [None] * (length - len(piece))
