"""Say where a ring's bytes lie: shared words first, then the data, whose end joins its beginning. Pure arithmetic.

Positions are totals since the ring was made and only grow; the place in memory is the position modulo the size.
"""

from __future__ import annotations

WORD = 8
"""Bytes of a shared word: what every supported CPU stores in one piece when it is aligned."""

CACHE_LINE = 64
"""Bytes. The data begins on a line of its own, so that copying frames does not disturb who reads the words."""


def data_start(words: int) -> int:
    """Return the offset of the first data byte behind `words` shared words."""
    return -(-words * WORD // CACHE_LINE) * CACHE_LINE


def memory_size(size: int, words: int) -> int:
    """Return how many bytes of memory a ring of `size` data bytes and `words` shared words takes."""
    if size < 1 or words < 1:
        raise ValueError(f"a ring needs at least one byte and one word, not {size} and {words}")
    return data_start(words) + size


def spans(position: int, count: int, size: int) -> tuple[int, int, int]:
    """Cut `count` bytes at `position` where the memory ends: (place, bytes from there, bytes from the beginning)."""
    place = position % size
    first = size - place
    return (place, count, 0) if count <= first else (place, first, count - first)
