"""Give claimed rows the bodies that a queue's own SELECT (`fetch=`) found for them, or the reason why there is none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardrun.errors import DeclarationProblem, StatementFailed

Rows = Iterable[Sequence[Any]]
"""What the SELECT returned: the id, then a value for each of its columns."""


def check(where: str, id: str, names: Sequence[str]) -> None:
    """Raise `DeclarationProblem` where the SELECT's columns cannot serve: no id, or several columns of one name."""
    if id not in names:
        raise DeclarationProblem(
            f"{where}: fetch= returns no column {id} (role id), so that no row could be told from another. It returns: "
            f"{', '.join(names)}"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DeclarationProblem(
            f"{where}: fetch= returns more than one column named {', '.join(twice)}. Name each once, with AS."
        )


def other_type(where: str, id: str, has: str, wants: str) -> DeclarationProblem:
    """Say that the ids of the SELECT would never be equal to those of the table."""
    return DeclarationProblem(
        f"{where}: fetch= returns {id} as {has}, and the table's is {wants}: no row would be found again. Return the "
        f"table's own column."
    )


def refused(where: str, error: StatementFailed) -> DeclarationProblem:
    """Say that the database refuses the SELECT."""
    return DeclarationProblem(f"{where}: fetch= cannot be used: {error}")


def bodies(ids: Sequence[Any], names: Sequence[str], run: Callable[[Sequence[Any]], Rows]) -> dict[Any, Any]:
    """Fetch the body of each id: a dict, or a str that says why there is none.

    Where the SELECT fails it is run for halves, so that a row over which it fails harms no other; `run` raises
    `StatementFailed`, and leaves the transaction as it was.
    """
    try:
        return _matched(ids, names, run(ids))
    except StatementFailed as error:
        if len(ids) == 1:
            return {ids[0]: f"the queue's fetch= failed for this row: {error}"}
    half = len(ids) // 2
    return bodies(ids[:half], names, run) | bodies(ids[half:], names, run)


def parsed(value: Any) -> Any:
    """Parse a JSON column's text, or leave what Python cannot parse as it is."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _matched(ids: Sequence[Any], names: Sequence[str], rows: Rows) -> dict[Any, Any]:
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(dict(zip(names, row[1:], strict=True)))
    return {id: _only(found.get(id, ())) for id in ids}


def _only(rows: Sequence[Mapping[str, Any]]) -> Any:
    if len(rows) == 1:
        return rows[0]
    return f"the queue's fetch= returned {len(rows) or 'no'} row{'s' * (len(rows) > 1)} for this id; it must return one"
