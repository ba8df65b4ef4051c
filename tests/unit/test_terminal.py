"""Colour and width: what a terminal gets, and what a file gets."""

from __future__ import annotations

import io

import pytest

from shardrun.terminal import RED, fold, is_colourful, paint, width


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: NO_COLOR counts where it is not empty; a dumb terminal, a file and a closed stream have none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert is_colourful(Screen())
    closed = io.StringIO()
    closed.close()
    assert [is_colourful(each) for each in (None, io.StringIO(), closed)] == [False, False, False]
    assert width(io.StringIO()) is None
    for name, value, colourful in (("NO_COLOR", "", True), ("NO_COLOR", "1", False)):
        monkeypatch.setenv(name, value)
        assert is_colourful(Screen()) is colourful
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_colourful(Screen())
    assert (paint("x", RED, True), paint("x", RED, False)) == ("\x1b[31mx\x1b[0m", "x")


@pytest.mark.parametrize(
    ("line", "columns", "folded"),
    [
        ("  a   b   c", None, ["  a   b   c"]),
        ("  a   b   c", 11, ["  a   b   c"]),
        ("  aa   bb   cc", 10, ["  aa   bb", "      cc"]),
        ("  word by word", 9, ["  word by", "      word"]),
        ("  first   two words here", 14, ["  first   two", "      words", "      here"]),
        ("unbreakable", 5, ["unbreakable"]),
        ("", 5, [""]),
    ],
)
def test_lines_are_folded_between_cells_else_between_words(line: str, columns: int | None, folded: list[str]) -> None:
    """Text 2.4: nothing is cut; what follows is indented."""
    assert fold(line, columns) == folded
