"""Where a ring's bytes lie."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardrun.ring import layout

SIZES = st.integers(1, 300)


@given(position=st.integers(0, 2**70), size=SIZES, data=st.data())
def test_the_spans_are_the_next_bytes_around_the_end(position: int, size: int, data: st.DataObject) -> None:
    """H1: what is written at a position lies where its reader looks, for every size and wrap-around."""
    count = data.draw(st.integers(0, size))
    place, first, rest = layout.spans(position, count, size)
    cells = [*range(place, place + first), *range(rest)]
    assert cells == [(position + step) % size for step in range(count)]


@given(size=SIZES, words=st.integers(1, 100))
def test_words_and_data_do_not_overlap(size: int, words: int) -> None:
    """H1: no frame overwrites a shared word, and the data begins on its own cache line."""
    assert layout.data_start(words) >= words * layout.WORD
    assert layout.data_start(words) % layout.CACHE_LINE == 0
    assert layout.memory_size(size, words) == layout.data_start(words) + size


@pytest.mark.parametrize(("size", "words"), [(0, 1), (-mmap.PAGESIZE, 1), (1, 0)])
def test_a_ring_without_bytes_or_words_is_refused(size: int, words: int) -> None:
    """H1: a ring always has its mark and room for a byte."""
    with pytest.raises(ValueError, match="at least one byte and one word"):
        layout.memory_size(size, words)
