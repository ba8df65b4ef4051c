"""Write the statements of the forms in which a connection holds rows: the row lock, and the lock on a row's key.

What a locking statement reads is locked (R10), here for as long as a handler runs. So candidates are read without locks, and
locked by id: in the order of ids, where the server stops at the last row that is wanted. Nothing in the row says who
holds it; settlements go by id, and write the count of attempts as a number, since a row lock's claim has written none.

A lock on a key is the server's own by name, one namespace for all its databases: `lock_name` says which name a key has.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from shardrun.db.mysql.parts import (
    after_delay,
    by_id,
    claim_order,
    clock_of,
    column,
    free_rows,
    group_parameter,
    handed_fields,
    identity_of,
    lane_key,
    no_strand,
    one_more,
    quote,
    set_reason,
    table_name,
)
from shardrun.db.mysql.sql import in_claim_order
from shardrun.db.statement import Statement, conjunction, listing
from shardrun.db.table import Column, Layout, Table

LONGEST_NAME = 64
"""Characters of a lock's name that MySQL takes."""

UNLOCK = Statement("do release_all_locks()")
"""Let go of all keys: a connection of the coordinator's holds no other named lock."""

UNLOCK_ONE = Statement("do release_lock(%(name)s)", ("name",))
"""Let go of one key of a batch, which the session has locked once."""


def lock_name(key: str) -> str:
    """Give the name of a key's lock: the key as it is, or a hash where the servers take no such name.

    A key that is empty, has more than 64 characters, a NUL, or a character that takes four bytes of UTF-8 goes by the SHA-256
    of its UTF-8 text in lower-case hexadecimal digits: sha2(key, 256). MySQL takes names for equal that differ in case only,
    so that such keys exclude each other there; MariaDB does not.
    """
    if 0 < len(key) <= LONGEST_NAME and all("\0" < char <= "\uffff" for char in key):
        return key
    return hashlib.sha256(key.encode()).hexdigest()


def candidates(layout: Layout, leaving_out: bool, is_free: bool = False) -> Statement:
    """Read due rows in claim order, without a lock; the ids, and the place of each in the order of ids."""
    order = [role for role in layout.order if role != "id"]
    chosen = [f"{identity_of(layout, 'c')} as id", *(f"{column(layout, role, 'c')} as {role}" for role in order)]
    text = f"""\
select seen.id, row_number() over (order by seen.id)
  from (select {listing(chosen, 15)}
          from {in_claim_order(replace(layout, strand=None), "c", is_free)}
         where {conjunction(_free(layout, leaving_out), 9)}
         order by {claim_order(layout, "c")}
         limit %(limit)s) as seen
 order by {", ".join(f"seen.{role}" for role in (*order, "id"))}"""
    return Statement(text, (*group_parameter(layout), *_left_out(leaving_out), "limit"))


def keyed_candidates(layout: Layout, leaving_out: bool, is_free: bool = False) -> Statement:
    """Read due rows in claim order, without a lock, and their keys; rows of the busy ones are left out."""
    busy = f"(cast({key_text(layout, 'c')} as binary) in %(busy)s) is not true"
    text = f"""\
select {identity_of(layout, "c")}, {key_text(layout, "c")}
  from {in_claim_order(layout, "c", is_free)}
 where {conjunction([*_free(layout, leaving_out), busy], 1)}
 order by {claim_order(layout, "c")}
 limit %(limit)s"""
    return Statement(text, (*group_parameter(layout), *_left_out(leaving_out), "busy", "limit"))


def hold(layout: Layout) -> Statement:
    """Lock the first of some rows, by their ids, that are still due and that nobody else has locked; read them."""
    text = f"""\
select {listing([identity_of(layout, "t"), *handed_fields(layout, "t", counted=False)], 7)}
  from {by_id(layout, "t")}
 where {conjunction([f"{column(layout, 'id', 't')} in %(ids)s", *free_rows(layout, "t")], 1)}
 order by {column(layout, "id", "t")}
 limit %(limit)s
   for update skip locked"""
    return Statement(text, ("ids", *group_parameter(layout), "limit"))


def lock_first(count: int) -> Statement:
    """Lock the first of some names that nobody holds, and no other; returns its place in the list, counted from 0.

    Nor one that this session holds: it would get it again, and two rows of one key must not be in one batch.
    """
    cases = [
        f"when ifnull(is_used_lock(%(name{place})s), 0) <> connection_id() and get_lock(%(name{place})s, 0) = 1 then {place}"
        for place in range(count)
    ]
    together = "\n            ".join(cases)
    return Statement(f"select case {together} end", tuple(f"name{place}" for place in range(count)))


def take(layout: Layout) -> Statement:
    """Lock a row whose key was just locked, in a new statement: whether it is still due; read its key again."""
    text = f"""\
select {key_text(layout, "t")}
  from {by_id(layout, "t")}
 where {conjunction([_one(layout, "t"), *free_rows(layout, "t")], 1)}
   for update skip locked"""
    return Statement(text, ("id", *group_parameter(layout)))


def count(layout: Layout) -> Statement | None:
    """Count a row's attempt; None where there is no column for that."""
    attempt = layout.column("attempt")
    return None if attempt is None else _update(layout, [f"t.{quote(attempt.name)} = {one_more(attempt, 't')}"])


def taken(layout: Layout) -> Statement:
    """Read a row that was taken, its attempt counted."""
    text = f"""\
select {listing([identity_of(layout, "t"), *handed_fields(layout, "t")], 7)}
  from {by_id(layout, "t")}
 where {_one(layout, "t")}"""
    return Statement(text, ("id",))


def ack(layout: Layout) -> Statement:
    """Finish a row: delete it, or write when it was finished."""
    processed = layout.column("processed_at")
    if processed is None:
        return remove(layout)
    return _update(layout, [f"t.{quote(processed.name)} = {clock_of(processed)}", *_counted(layout)])


def drop(layout: Layout) -> Statement:
    """Finish a row, with the reason where the row stays and has a column for it."""
    processed = layout.column("processed_at")
    if processed is None or "last_error" not in layout.roles:
        return ack(layout)
    return _update(layout, [f"t.{quote(processed.name)} = {clock_of(processed)}", *_counted(layout, reason=True)])


def retry(layout: Layout) -> Statement:
    """Give a row back, due again after a delay where there is a column for that, with an attempt spent."""
    return _update(layout, [*_delayed(layout), *_counted(layout, reason=True)])


def snooze(layout: Layout) -> Statement:
    """Give a row back, due again after a delay, with the count of attempts that it had."""
    return _update(layout, [*_delayed(layout), *_counted(layout)])


def release(layout: Layout) -> Statement | None:
    """Give back a row that did not start, with the count of attempts that it had; None where there is no column for it."""
    attempt = layout.column("attempt")
    if attempt is None:
        return None
    name = f"t.{quote(attempt.name)}"  # nothing is written that stands there
    return _update(layout, [f"{name} = %(attempt)s"], f"ifnull({name}, 0) <> %(attempt)s")


def look(layout: Layout) -> Statement:
    """Look whether a row is there."""
    return Statement(f"select 1\n  from {by_id(layout, 't')}\n where {_one(layout, 't')}", ("id",))


def recount(layout: Layout) -> Statement:
    """Write a row's count of attempts, and the reason."""
    return _update(layout, _counted(layout, reason=True))


def bury(layout: Layout) -> Statement | None:
    """Move a row to another group, or copy it to another table, with the reason; None where there are no dead letters."""
    group = layout.column("group")
    if layout.dead is not None:
        return _copy(layout, layout.dead)
    if layout.dead_group is None or group is None:
        return None
    return _update(layout, [f"t.{quote(group.name)} = %(dead_group)s", *_counted(layout, reason=True)])


def remove(layout: Layout) -> Statement:
    """Delete a row, which may have been copied to the dead letters."""
    return Statement(f"delete t\n  from {by_id(layout, 't')}\n where {_one(layout, 't')}", ("id",))


def key_text(layout: Layout, alias: str) -> str:
    """Write the text of a row's lock key: each value as the server writes it, bytes in hexadecimal, nothing for NULL."""
    columns = layout.table.columns
    parts = [_text(columns[one.text], alias) if one.is_column else literal(one.text) for one in layout.lock_key]
    return f"concat({', '.join(parts)})"


def literal(text: str) -> str:
    """Write a text inside a statement whose percent signs the driver reads."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"


def _text(column: Column, alias: str) -> str:
    name = f"{alias}.{quote(column.name)}"
    shown = f"lower(hex({name}))" if column.kind == "binary" else f"cast({name} as char character set utf8mb4)"
    return f"ifnull({shown}, '')"


def _free(layout: Layout, leaving_out: bool) -> list[str]:
    conditions = [
        *free_rows(layout, "c"),
        *no_strand(layout, "c"),
        f"({column(layout, 'id', 'c')} in %(avoided)s) is not true",
    ]
    if leaving_out:
        conditions.append(f"({lane_key(layout.roles['partition_key'], 'c')} in %(full_keys)s) is not true")
    return conditions


def _left_out(leaving_out: bool) -> tuple[str, ...]:
    return ("avoided", "full_keys") if leaving_out else ("avoided",)


def _one(layout: Layout, alias: str) -> str:
    return f"{column(layout, 'id', alias)} = %(id)s"


def _counted(layout: Layout, reason: bool = False) -> list[str]:
    attempt = layout.column("attempt")
    changes = [f"t.{quote(attempt.name)} = %(attempt)s"] if attempt else []
    return [*changes, set_reason(layout, "t")] if reason and "last_error" in layout.roles else changes


def _delayed(layout: Layout) -> list[str]:
    due = layout.column("retry_after")
    return [f"t.{quote(due.name)} = ifnull({after_delay(due)}, t.{quote(due.name)})"] if due else []


def _update(layout: Layout, changes: list[str], condition: str = "") -> Statement:
    """Write changes to one row; where there is nothing to write, look whether the row is there."""
    if not changes:
        return look(layout)
    where = conjunction([_one(layout, "t"), *([condition] if condition else [])], 1)
    text = f"update {by_id(layout, 't')}\n   set {listing(changes, 7)}\n where {where}"
    names = ("delay", "attempt", "reason", "dead_group")
    return Statement(text, ("id", *(name for name in names if f"%({name})s" in text)))


def _copy(layout: Layout, dead: Table) -> Statement:
    attempt, error = layout.column("attempt"), layout.column("last_error")
    special = {attempt.name: "%(attempt)s"} if attempt else {}
    if error:
        special[error.name] = f"ifnull(%(reason)s, t.{quote(error.name)})"
    text = f"""\
insert into {table_name(dead)} ({", ".join(quote(name) for name in layout.copied)})
select {", ".join(special.get(name, f"t.{quote(name)}") for name in layout.copied)}
  from {by_id(layout, "t")}
 where {_one(layout, "t")}"""
    return Statement(text, ("id", *(name for name in ("attempt", "reason") if f"%({name})s" in text)))
