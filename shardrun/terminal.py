"""Fit text to where it is read: colour on terminals only, and lines that are folded where a terminal would cut words."""

from __future__ import annotations

import os
import re
import shutil
from typing import TextIO

RED, YELLOW, GREEN, BOLD, DIM = "31", "33", "32", "1", "2"


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether people watch a stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def is_colourful(stream: TextIO | None) -> bool:
    """Tell whether colour is wanted: on a terminal that has it, without NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, style: str, colourful: bool) -> str:
    """Write a text in a style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if colourful else text


def width(stream: TextIO | None) -> int | None:
    """Tell a terminal's columns; None where there is none, so that nothing is folded."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def fold(line: str, columns: int | None, indent: int = 4) -> list[str]:
    """Break a line that is wider than the terminal: between cells, which are three blanks apart, else between words.

    A word that is wider stays whole.
    """
    if columns is None or len(line) <= columns:
        return [line]
    margin = len(line) - len(line.lstrip())
    folded = [""]
    for cell in re.split(r" {3,}", line.strip()):
        parts = [cell] if len(cell) <= columns - margin - indent else cell.split(" ")
        for number, part in enumerate(parts):
            gap = " " if number else "   "
            room = columns - margin - (indent if len(folded) > 1 else 0)
            if folded[-1] and len(folded[-1]) + len(gap) + len(part) > room:
                folded.append(part)
            else:
                folded[-1] += gap + part if folded[-1] else part
    return [" " * (margin + (indent if number else 0)) + part for number, part in enumerate(folded)]
