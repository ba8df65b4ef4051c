"""Read a claim's rows; one by one where the driver cannot make Python's values of all, since they are held by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import Format

from shardrun.db.store import Claimed

LEADING = len(Claimed._fields) - 1
"""Columns of a claim's result before the body."""


def read(cursor: psycopg.Cursor[Any], names: Sequence[str] | None) -> list[Claimed]:
    """Read the rows of a claim, whose result `handed_out` lists; `names` are the columns of the table in row mode."""
    try:
        rows = cursor.fetchall()
    except Exception:  # whatever a loader raises: the rows are held, and none of them may be forgotten
        return claimed(cursor, names)
    if names is not None:
        return [Claimed._make((*row[:LEADING], dict(zip(names, row[LEADING + 1 :], strict=True)))) for row in rows]
    return list(map(Claimed._make, rows))


def claimed(cursor: psycopg.Cursor[Any], names: Sequence[str] | None) -> list[Claimed]:
    """Read rows; `names` are the columns of the table in row mode. An unreadable body says why, or fits no handler."""
    result = cursor.pgresult
    return [_row(cursor, number, names) for number in range(result.ntuples if result else 0)]


def _row(cursor: psycopg.Cursor[Any], number: int, names: Sequence[str] | None) -> Claimed:
    values: list[Any] = []
    faults: dict[int, str] = {}
    for place in range(cursor.pgresult.nfields if cursor.pgresult else 0):
        try:
            values.append(_value(cursor, number, place))
        except Exception as error:  # whatever a loader raises
            faults[place] = " ".join(str(error).split()) or type(error).__name__
            values.append(_bytes(cursor, number, place))
    head = [
        value.decode(errors="replace") if place in faults else value for place, value in enumerate(values[:LEADING])
    ]
    if names is None:
        return Claimed._make((*head, values[LEADING]))
    bad = next((place for place in faults if place > LEADING), None)
    if bad is not None:
        return Claimed._make((*head, f"the row's column {names[bad - LEADING - 1]} cannot be read: {faults[bad]}"))
    return Claimed._make((*head, dict(zip(names, values[LEADING + 1 :], strict=True))))


def _value(cursor: psycopg.Cursor[Any], number: int, place: int) -> Any:
    data = _bytes(cursor, number, place)
    if data is None:
        return None
    kind = cursor.pgresult.ftype(place) if cursor.pgresult else 0
    return Transformer(cursor).get_loader(kind, Format.TEXT).load(data)


def _bytes(cursor: psycopg.Cursor[Any], number: int, place: int) -> bytes | None:
    return cursor.pgresult.get_value(number, place) if cursor.pgresult else None
