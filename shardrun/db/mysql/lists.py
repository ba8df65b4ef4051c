"""Cut lists, and the statements of a transaction, into what a server takes at a time, and read what has no type here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardrun.db.fetched import parsed
from shardrun.db.mysql import driver
from shardrun.db.mysql.driver import Connection, Step

MOST = 1000
"""Values in one list. Larger: fewer statements; servers that build a table or read all rows for so long a list."""

BYTES = 200_000
"""About how long a list, or the statements of one round trip, may be. Larger: fewer of them; smaller: for servers whose
max_allowed_packet (16 MB or more, unless someone set it) is small."""


def pieces(values: Sequence[Any], most: int = MOST) -> Iterator[list[Any]]:
    """Cut a list into pieces that fit into a statement."""
    piece: list[Any] = []
    size = 0
    for value in values:
        more = _size(value)
        if piece and (len(piece) == most or size + more > BYTES):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += more
    if piece:
        yield piece


def first_piece(values: Sequence[Any]) -> list[Any]:
    """Take as much of a list as fits into a statement; never an empty one, which SQL has no spelling for."""
    return next(pieces(values), [None])


def fits(values: Sequence[Any]) -> bool:
    """Tell whether a list, though longer than others, is short enough in bytes."""
    return sum(map(_size, values)) <= BYTES


def together(connection: Connection, steps: Sequence[Step]) -> list[Any]:
    """Run statements in the open transaction, in as few round trips as fit."""
    answers: list[Any] = []
    batch: list[Step] = []
    size = 0
    for step in steps:
        more = len(step[0].text) + sum(map(_size, step[1].values()))
        if batch and size + more > BYTES:
            answers += driver.run_together(connection, batch)
            batch, size = [], 0
        batch.append(step)
        size += more
    return answers + (driver.run_together(connection, batch) if batch else [])


def columns_of(names: Mapping[str, str], values: Sequence[Any]) -> dict[str, Any]:
    """Put values under the names of their columns, given with their kinds; JSON is parsed."""
    return {
        name: parsed(value) if kind == "json" else value
        for (name, kind), value in zip(names.items(), values, strict=True)
    }


def _size(value: Any) -> int:
    """Guess at the bytes that a value takes in a statement, where each may need escaping."""
    if type(value) is int:  # as most ids are
        return 24
    if isinstance(value, str):
        return 4 * len(value) + 3
    if isinstance(value, (bytes, bytearray)):
        return 2 * len(value) + 10
    return sum(map(_size, value)) if isinstance(value, list) else 24
