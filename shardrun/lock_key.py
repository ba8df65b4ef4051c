"""Read the template of an advisory lock's key: text and the columns whose values stand in it, as `accounts-{account}`."""

from __future__ import annotations

from string import Formatter
from typing import NamedTuple


class Piece(NamedTuple):
    """A stretch of a key: text as it stands, or the value of a column."""

    text: str
    is_column: bool


def pieces(template: str) -> list[Piece]:
    """Cut a template into its pieces; raises `ValueError` with the reason where it is malformed.

    `{{` and `}}` stand for braces. A column is named as it is in the table, with no format behind it.
    """
    found: list[Piece] = []
    for text, column, format, conversion in Formatter().parse(template):
        if text:
            found.append(Piece(text, False))
        if column is None:
            continue
        if format or conversion:
            raise ValueError(f"{{{column}}} must stand without a format")
        if not column.strip():
            raise ValueError("empty braces name no column")
        found.append(Piece(column, True))
    return found


def columns(template: str) -> list[str]:
    """List the columns that a template names, each once."""
    return list(dict.fromkeys(piece.text for piece in pieces(template) if piece.is_column))


def problem(template: object) -> str | None:
    """Say what keeps this from being a template, as the rest of a sentence; None where only the table can tell."""
    if not isinstance(template, str):
        return f"advisory_lock={template!r} is not text."
    try:
        named = columns(template)
    except ValueError as error:
        return (
            f'advisory_lock={template!r} is malformed ({error}). Write column names in braces: "accounts-{{account}}".'
        )
    if not named:
        return (
            f"advisory_lock={template!r} names no column, so that all rows would run one at a time. Write column names in "
            f'braces: "accounts-{{account}}".'
        )
    return None
