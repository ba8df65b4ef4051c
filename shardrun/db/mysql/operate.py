"""Count a queue's rows on MySQL and MariaDB, and act on its dead letters: rows in and out of `status` and `dead`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from shardrun.db.buried import Letters
from shardrun.db.mysql import ddl, dead, driver, status
from shardrun.db.mysql.driver import Connection
from shardrun.db.operate import (
    LEVELS,
    LOOKED,
    MOST,
    Blocked,
    Counts,
    Failures,
    Looked,
    Moved,
    Sessions,
    blocked_of,
    counts_of,
    failures_of,
)
from shardrun.db.settling import in_order, storable
from shardrun.db.statement import Statement
from shardrun.db.table import Column, Layout

LIMITS = """\
select @@global.max_connections, @@session.max_user_connections,
       (select count(*) from information_schema.processlist where user = substring_index(user(), '@', 1))"""

IN_USE = "show global status like 'Threads_connected'"

NAMED = """\
select a.attr_value, ifnull(p.db = database(), 0)
  from performance_schema.session_account_connect_attrs a
  join information_schema.processlist p on p.id = a.processlist_id
 where a.attr_name = 'program_name' and a.attr_value like 'shardrun %' and p.id <> connection_id()"""

DUPLICATE, DENIED = 1062, 1142


def counts(connection: Connection, layout: Layout) -> Counts:
    """Count what a queue holds for one subscription, within bounds."""
    indexed = ddl.claim_index(layout) is not None
    values = {"group": layout.group, "dead_group": layout.dead_group}
    if indexed and layout.strand is None:
        looked, oldest = _looked_at(connection, layout, values)
    else:
        window = status.counts_in_order if indexed else status.counts_by_id
        looked, oldest = _in_window(connection, window(layout), values)
    buried = status.dead(layout, indexed)
    found = None if buried is None else driver.run(connection, buried, values).fetchall()[0]
    return counts_of(layout, looked, found, oldest, indexed)


def blocked(connection: Connection, layout: Layout) -> Blocked:
    """Find the groups or keys that wait for a row that has failed."""
    return blocked_of(driver.run(connection, status.blocked(layout), {"group": layout.group}).fetchall())


def _in_window(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> tuple[Looked, float | None]:
    row = driver.run(connection, statement, values).fetchall()[0]
    seen, held, later, looked = (int(value) for value in row[:4])
    return (seen, held, later, looked == LOOKED, looked == LOOKED), _seconds(row[4])


def _looked_at(connection: Connection, layout: Layout, values: Mapping[str, Any]) -> tuple[Looked, float | None]:
    """Walk the claim's index, a priority at a time, until each count has reached its bound."""
    if "retry_after" not in layout.roles:
        row = driver.run(connection, status.counts_without_due_times(layout), values).fetchall()[0]
        return (int(row[0]), int(row[1]), 0, int(row[0]) == LOOKED, False), None
    counting, following = status.counts(layout), status.next_level(layout)
    left = {"undated": LOOKED, "past": LOOKED, "later": MOST + 1}
    held, oldest, levels = 0, None, 0
    level = _first(connection, layout, values)
    while levels < LEVELS and any(left.values()):
        steps = [(counting, {**values, **left, "level": level})]
        if following is not None:
            after = following if level is not None else status.first_level(layout)
            steps.append((after, {**values, "level": level}))
        answers = driver.run_all(connection, steps)
        undated, undated_held, past, past_held, later, age = answers[0].fetchall()[0]
        left = {"undated": left["undated"] - undated, "past": left["past"] - past, "later": left["later"] - later}
        held, levels = held + int(undated_held) + int(past_held), levels + 1
        oldest = max((each for each in (oldest, _seconds(age)) if each is not None), default=None)
        rows = answers[1].fetchall() if following is not None else []
        if not rows:
            break
        level = rows[0][0]
    seen = 2 * LOOKED - left["undated"] - left["past"]
    all_levels = levels == LEVELS
    ended = all_levels or not left["undated"] or not left["past"]
    return (seen, held, MOST + 1 - left["later"], ended, all_levels), oldest


def _first(connection: Connection, layout: Layout, values: Mapping[str, Any]) -> Any:
    """Give the priority to begin with: NULL where there may be such rows, which come first."""
    priority = layout.column("priority")
    if priority is None or priority.nullable:
        return None
    rows = driver.run(connection, status.first_level(layout), values).fetchall()
    return rows[0][0] if rows else None


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)


def sessions(connection: Connection) -> Sessions:
    """Read the limit of connections, the server's or the user's own where that is nearer, and who uses them.

    Names are known where the server keeps a performance schema (MariaDB does not unless it is told to).
    """
    with driver.naming_errors(connection):
        limit, of_user, mine = (int(value) for value in connection.execute(LIMITS).fetchall()[0])
        in_use = int(connection.execute(IN_USE).fetchall()[0][1])
        named = _named(connection)
    if of_user and of_user - mine < limit - in_use:
        limit, in_use = of_user, mine
    ours = None if named is None else [name for name, _ in named]
    here = None if named is None else [name for name, is_here in named if is_here]
    return Sessions(limit, in_use - 1, ours, here)


def _named(connection: Connection) -> Sequence[tuple[str, int]] | None:
    """Read the names of shardrun's sessions, or None where they are not given, not kept or not shown."""
    if not connection.is_pymysql or not int(connection.execute("select @@performance_schema").fetchall()[0][0]):
        return None
    try:
        rows: Sequence[tuple[str, int]] = connection.execute(NAMED).fetchall()
    except connection.Error as error:
        if driver.code_of(error) != DENIED:
            raise
        return None
    return rows


class MysqlDeadLetters(Letters):
    """The dead letters of one subscription: its statements, built once; holds no state of its own."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._failures = dead.failures(layout)
        self._choose = {named: dead.choose(layout, named) for named in (False, True)}
        self._stuck = dead.stuck(layout)
        self._standing = dead.standing(layout)
        self._take = dead.take(layout)
        self._put_back = dead.put_back(layout)
        self._remove = dead.remove(layout)
        self._waiting, self._idle = dead.waiting(layout), dead.idle(layout)
        self._park, self._parked = dead.park(layout), dead.parked(layout)

    def _id_of(self, text: str, column: Column) -> Any:
        if column.kind == "int":
            return int(text)
        if column.kind == "float":
            return float(text)
        if column.kind == "numeric":
            return Decimal(text)
        if column.kind == "uuid":
            return str(uuid.UUID(text))
        return bytes.fromhex(text.removeprefix("0x")) if column.kind == "binary" else storable(text)

    def failures(self, connection: Connection, error: str | None) -> Failures:
        """Group them by error."""
        return failures_of(driver.run(connection, self._failures, self._values(error)).fetchall())

    def choose(self, connection: Connection, error: str | None, ids: Sequence[Any] | None, limit: int) -> list[Any]:
        """Read their ids."""
        if ids is not None and not ids:
            return []
        values = {**self._values(error, ids or ()), "limit": limit}
        return _ids(driver.run(connection, self._choose[ids is not None], values).fetchall())

    def stuck(self, connection: Connection, ids: Sequence[Any]) -> set[Any]:
        """Tell which of these would be left."""
        if self._stuck is None or not ids:
            return set()
        return set(_ids(driver.run(connection, self._stuck, self._values(None, ids)).fetchall()))

    def requeue(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Moved]:
        """Put these back into the queue."""
        if not ids:
            return []
        with driver.writing(connection):
            taken = [Moved(*row) for row in self._taken(connection, ids, error)]
            if self._layout.dead is None:
                self._write(connection, self._put_back, _ids(taken))
                return taken
            there = self._read(connection, self._standing, _ids(taken))
            back = set(self._copy(connection, [one.id for one in taken if one.id not in there]))
            self._write(connection, self._remove, in_order(list(back)))
        return [one for one in taken if one.id in back]

    def purge(self, connection: Connection, ids: Sequence[Any], error: str | None) -> list[Any]:
        """Delete these."""
        if not ids:
            return []
        with driver.writing(connection):
            taken = _ids(self._taken(connection, ids, error))
            self._write(connection, self._remove, taken)
        return taken

    def waiting(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are unfinished rows of the queue."""
        return _ids(driver.run(connection, self._waiting, self._values(None, ids)).fetchall()) if ids else []

    def idle(self, connection: Connection, ids: Sequence[Any]) -> list[Any]:
        """Tell which of these are held by no one."""
        return _ids(driver.run(connection, self._idle, self._values(None, ids)).fetchall()) if ids else []

    def park(self, connection: Connection, ids: Sequence[Any], reason: str) -> list[Any]:
        """Move those that no one holds to the dead letters."""
        if not ids:
            return []
        with driver.writing(connection):
            found = in_order(list(self._read(connection, self._idle, ids)))
            if found:
                values = self._values(None, found) | {"reason": storable(reason)}
                connection.execute(self._park.text, values)
                if self._parked is not None:
                    connection.execute(self._parked.text, values)
        return found

    def _copy(self, connection: Connection, ids: list[Any]) -> list[Any]:
        """Copy rows into the queue, and give the ids of those that no unique value there was in the way of."""
        if not ids:
            return []
        try:
            self._write(connection, self._put_back, ids)
        except connection.Error as error:
            if driver.code_of(error) != DUPLICATE:
                raise
            if len(ids) == 1:
                return []
            middle = len(ids) // 2  # the statement alone was undone: its halves are tried
            return self._copy(connection, ids[:middle]) + self._copy(connection, ids[middle:])
        return ids

    def _taken(self, connection: Connection, ids: Sequence[Any], error: str | None) -> Sequence[Any]:
        rows: Sequence[Any] = connection.execute(self._take.text, self._values(error, ids)).fetchall()
        return rows

    def _read(self, connection: Connection, statement: Statement, ids: Sequence[Any]) -> set[Any]:
        return set(_ids(connection.execute(statement.text, self._values(None, ids)).fetchall())) if ids else set()

    def _write(self, connection: Connection, statement: Statement, ids: Sequence[Any]) -> None:
        if ids:
            connection.execute(statement.text, self._values(None, ids))

    def _values(self, error: str | None, ids: Sequence[Any] = ()) -> dict[str, Any]:
        return self._filters(error) | {"ids": in_order(ids)}


def _ids(rows: Sequence[Any]) -> list[Any]:
    return [row[0] for row in rows]
