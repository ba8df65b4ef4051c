"""Write the statements of the advisory lock form: the keys in work are known to the one process that serves the file.

Settlements go by id and write the count of attempts as a number, one row a statement, many in one transaction.
"""

from __future__ import annotations

from shardrun.db.sqlite import times
from shardrun.db.sqlite.sql import (
    FORMAT,
    NOW,
    group_parameter,
    lane_key,
    many,
    places,
    quote,
    table_name,
    unfinished_rows,
)
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table


def candidates(layout: Layout, busy: int, full_keys: int) -> Statement:
    """Read due rows in claim order with the text of their keys, except those of some keys, and of lanes that are full."""
    due, key = layout.column("retry_after"), key_text(layout)
    conditions = unfinished_rows(layout)
    if due is not None:
        conditions += [times.passed(quote(due.name), NOW), times.sorts(quote(due.name), "retry_after")]
    if layout.roles["id"].nullable:
        conditions.append(f"{quote(layout.roles['id'].name)} is not null")
    if busy:
        conditions.append(f"({key} in ({places(busy)})) is not 1")
    if full_keys:
        conditions.append(f"({lane_key(layout.roles['partition_key'])} in ({places(full_keys)})) is not 1")
    where = f"\n where {conjunction(conditions)}" if conditions else ""
    text = f"""\
select {listing([*_handed_out(layout), key, *(map(quote, layout.table.columns) if layout.row_mode else ())], 7)}
  from {table_name(layout.table)}{where}
 order by {", ".join(quote(layout.roles[role].name) for role in layout.order)}
 limit ?"""
    return Statement(text, (*group_parameter(layout), *many("busy", busy), *many("full_key", full_keys), "limit"))


def count(layout: Layout) -> Statement | None:
    """Count an attempt of a row that was just read, before anyone else can write."""
    attempt = layout.column("attempt")
    if attempt is None:
        return None
    name, key = quote(attempt.name), quote(layout.roles["id"].name)
    text = f"""\
update {table_name(layout.table)}
   set {name} = coalesce({name}, 0) + 1
 where {key} = ?
returning cast({name} as integer)"""
    return Statement(text, ("id",))


def ack(layout: Layout) -> Statement:
    """Finish a row: delete it, or write when it was finished."""
    processed = layout.column("processed_at")
    if processed is None:
        return Statement(f"delete from {table_name(layout.table)}\n where {_one(layout)}", ("id",))
    return _update(layout, [f"{quote(processed.name)} = {NOW}", *_counted(layout)])


def drop(layout: Layout) -> Statement:
    """Finish a row, with the reason where the row stays and has a column for it."""
    processed, error = layout.column("processed_at"), layout.column("last_error")
    if processed is None or error is None:
        return ack(layout)
    return _update(layout, [f"{quote(processed.name)} = {NOW}", *_counted(layout), _reason(error)])


def retry(layout: Layout) -> Statement:
    """Give a row back, due again after a delay where there is a column for that, with an attempt spent."""
    error = layout.column("last_error")
    return _update(layout, [*_delayed(layout), *_counted(layout), *([_reason(error)] if error else [])])


def snooze(layout: Layout) -> Statement:
    """Give a row back, due again after a delay, with the count of attempts that it had."""
    return _update(layout, [*_delayed(layout), *_counted(layout)])


def release(layout: Layout) -> Statement:
    """Give back a row that did not start, with the count of attempts that it had."""
    return _update(layout, _counted(layout))


def recount(layout: Layout) -> Statement:
    """Write a row's count of attempts, and the reason."""
    error = layout.column("last_error")
    return _update(layout, [*_counted(layout), *([_reason(error)] if error else [])])


def bury(layout: Layout) -> Statement | None:
    """Move a row to another group, or copy it to another table, with the reason; None where there are no dead letters."""
    if layout.dead is not None:
        return _copy(layout, layout.dead)
    group, error = layout.column("group"), layout.column("last_error")
    if layout.dead_group is None or group is None:
        return None
    changes = [f"{quote(group.name)} = :dead_group", *_counted(layout), *([_reason(error)] if error else [])]
    return _update(layout, changes)


def remove(layout: Layout) -> Statement:
    """Delete a row that was copied to the dead letters."""
    return Statement(f"delete from {table_name(layout.table)}\n where {_one(layout)}", ("id",))


def key_text(layout: Layout) -> str:
    """Write the text of a row's lock key: each value as the database writes it, bytes in hex digits, nothing for NULL.

    As bytes, since what is no UTF-8 would come as bytes and equal no text when it goes back.
    """
    parts = [
        _written(quote(piece.text)) if piece.is_column else "'" + piece.text.replace("'", "''") + "'"
        for piece in layout.lock_key
    ]
    return f"cast(({' || '.join(parts)}) as blob)"


def _written(column: str) -> str:
    return f"case typeof({column}) when 'blob' then lower(hex({column})) else coalesce(cast({column} as text), '') end"


def _handed_out(layout: Layout) -> list[str]:
    """List what the claim gives: id, key, lane key, group, headers, body."""
    roles, key, payload = layout.roles, layout.column("partition_key"), layout.column("payload")
    return [
        quote(roles["id"].name),
        quote(key.name) if key else "null",
        lane_key(key) if key and layout.by_key else "null",
        f"cast({quote(roles['group'].name)} as text)" if "group" in roles else "null",
        quote(roles["headers"].name) if "headers" in roles else "null",
        "null" if payload is None else _body(payload),
    ]


def _body(payload: Column) -> str:
    name = quote(payload.name)
    return name if payload.kind in ("text", "binary", "other") else f"cast({name} as text)"


def _one(layout: Layout) -> str:
    return f"{quote(layout.roles['id'].name)} = :id"


def _counted(layout: Layout) -> list[str]:
    attempt = layout.column("attempt")
    return [f"{quote(attempt.name)} = :attempt"] if attempt else []


def _delayed(layout: Layout) -> list[str]:
    due = layout.column("retry_after")
    if due is None:
        return []
    later = f"strftime({FORMAT}, 'now', printf('+%.3f seconds', :delay))"
    return [f"{quote(due.name)} = iif(:delay is null, {quote(due.name)}, {later})"]


def _reason(error: Column) -> str:
    return f"{quote(error.name)} = coalesce(:reason, {quote(error.name)})"


def _update(layout: Layout, changes: list[str]) -> Statement:
    """Write changes to one row; where there is nothing to write, write its id, to see whether it is there."""
    key = quote(layout.roles["id"].name)
    text = (
        f"update {table_name(layout.table)}\n   set {listing(changes or [f'{key} = {key}'], 7)}\n where {_one(layout)}"
    )
    names = ("delay", "attempt", "reason", "dead_group")
    return Statement(text, ("id", *(name for name in names if f":{name}" in text)))


def _copy(layout: Layout, dead: Table) -> Statement:
    special: dict[str, str] = {}
    if attempt := layout.column("attempt"):
        special[attempt.name] = ":attempt"
    if error := layout.column("last_error"):
        special[error.name] = f"coalesce(:reason, {quote(error.name)})"
    text = f"""\
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
select {", ".join(special.get(name, quote(name)) for name in layout.copied)}
  from {table_name(layout.table)}
 where {_one(layout)}"""
    return Statement(text, ("id", *(name for name in ("attempt", "reason") if f":{name}" in text)))
