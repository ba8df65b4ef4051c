"""Read a queue's own SELECT: where `:ids` stands in it, outside of strings, comments and quoted names."""

from __future__ import annotations

import re

_PIECES = re.compile(
    r"""(?P<ids>:ids\b)
      | (?P<space>\s+ | --[^\n]* | /\*.*?\*/)
      | [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*`
      | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | :: | \w+ | .""",
    re.DOTALL | re.VERBOSE,
)
"""What a statement is made of, as far as finding `:ids` needs it."""


def problem(fetch: object) -> str | None:
    """Say what keeps this from being a SELECT, as the rest of a sentence; None where only a database can tell."""
    if not isinstance(fetch, str):
        return f"fetch={fetch!r} is not SQL text."
    words = [piece[0].lower() for piece in _PIECES.finditer(fetch) if not piece["space"]]
    if not words or words[0] not in ("select", "with"):
        return "fetch= must be one SELECT, which returns the id column and whatever else the handler wants of a row."
    if ";" in words[:-1]:
        return "fetch= must be one SELECT; it holds several statements."
    return None


def expand(fetch: str, ids: str) -> str:
    """Put a list of ids where `:ids` stands, and leave out a semicolon at the end."""
    pieces = list(_PIECES.finditer(fetch))
    while pieces and (pieces[-1]["space"] or pieces[-1][0] == ";"):
        pieces.pop()
    return "".join(ids if piece["ids"] else piece[0] for piece in pieces)


def names_ids(fetch: str) -> bool:
    """Tell whether it says itself where the ids go."""
    return any(piece["ids"] for piece in _PIECES.finditer(fetch))
