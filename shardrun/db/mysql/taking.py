"""Take and settle rows in a child's transactions on MySQL and MariaDB; see `db/taking.py`.

A child's session has the user's own settings. Only its time zone is another for a moment, where a column's times are given in
the session's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from shardrun.db.mysql import driver
from shardrun.db.mysql.driver import Connection
from shardrun.db.mysql.parts import by_id, column, held_rows, not_aged, quote, table_name
from shardrun.db.mysql.store import LOOK_SECONDS, MysqlStore
from shardrun.db.statement import Statement, conjunction
from shardrun.db.store import Settlement, Token
from shardrun.db.table import Column, Layout
from shardrun.db.taking import SAVEPOINT, Fate, Guarded, ended, patiently
from shardrun.errors import ConnectionLost

Fates = tuple[Statement, Statement | None]

NO_SUCH_SAVEPOINT = 1305

LOCK_WAIT = "innodb_lock_wait_timeout"


class Lent(Guarded):
    """What a child's connection has beside the driver's."""

    locked_names: tuple[str, ...] = ()  # of the locks on the rows' keys
    taken: tuple[Any, Token]  # the id and the token of the row whose key was locked last for a first row

    def begin(self) -> Any:
        """Begin, which commits what is open, where it may."""
        self._check(".begin()")
        return super().begin()  # type: ignore[misc]


class MysqlTaking:
    """Rows of one subscription in transactions of a child."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._take, self._take_free, self._fate = self._statements(layout)
        self._there = self._look(layout)
        self._isolation = layout.isolation or driver.USUAL_ISOLATION
        self._zoned = any(each.type.lower().startswith("timestamp") for each in self._told(layout))
        self._prepare(layout)

    def _statements(self, layout: Layout) -> tuple[Statement, Statement, Fates]:
        return take(layout), take(layout, "skip locked"), fate(layout)

    def _look(self, layout: Layout) -> Statement:
        return there(layout)

    def _told(self, layout: Layout) -> Collection[Column]:
        """List the columns whose values statements tell."""
        return layout.roles.values()

    def _prepare(self, layout: Layout) -> None:
        self._store = MysqlStore(layout, layout.table.name)

    def _steps(self, settlement: Settlement) -> Iterable[tuple[Statement, Any]]:
        return self._store.steps(settlement)

    def _values(self, id: Any, token: Token) -> dict[str, Any]:
        return {"ids": [id], "token": token, "group": self._layout.group, "dead_group": self._layout.dead_group}

    def take(self, connection: Connection, id: Any, token: Token, patience: float) -> bool:
        """Begin, lock the row while it carries the token, set the savepoint; waits `patience` seconds for the lock."""
        return patiently(lambda: self._take_now(connection, id, token), patience)

    def _take_now(self, connection: Connection, id: Any, token: Token) -> bool:
        with driver.naming_errors(connection):
            for statement, _ in driver.beginning(self._isolation):
                run(connection, statement.text)
            with self._in_utc(connection):
                found = run(connection, self._take.text, self._values(id, token)).fetchall()
            if found:
                run(connection, f"savepoint {SAVEPOINT}")
                return True
        self.abandon(connection)
        return False

    def take_also(self, connection: Connection, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Lock more rows, those that nobody has locked, and set the savepoint behind them."""
        with driver.naming_errors(connection):
            with self._in_utc(connection):
                taken = {
                    id
                    for id, token in rows
                    if run(connection, self._take_free.text, self._values(id, token)).fetchall()
                }
            run(connection, f"savepoint {SAVEPOINT}")
        return taken

    def settle(self, connection: Connection, settlement: Settlement, keep: bool) -> bool:
        """Keep what was written since the take, or undo it, and write the settlement beside it."""
        if not driver.is_open(connection):
            raise ConnectionLost("the connection was closed inside the delivery's transaction")
        try:
            run(connection, f"{'release' if keep else 'rollback to'} savepoint {SAVEPOINT}")
            return self._write(connection, settlement)
        except connection.Error as error:
            if driver.code_of(error) == NO_SUCH_SAVEPOINT:
                raise ended("a COMMIT or ROLLBACK of its own, or a statement that commits") from error
            raise driver.name_error(error, connection) from error

    def settle_also(self, connection: Connection, settlement: Settlement) -> bool:
        """Write the settlement of another row."""
        with driver.naming_errors(connection):
            return self._write(connection, settlement)

    def _write(self, connection: Connection, settlement: Settlement) -> bool:
        with self._in_utc(connection):
            counts = [
                run(connection, statement.text, dict(values)).rowcount for statement, values in self._steps(settlement)
            ]
            return bool(counts[0] > 0) or self._has_it_already(connection, settlement)

    def _has_it_already(self, connection: Connection, settlement: Settlement) -> bool:
        """Tell whether the row is there, and a settlement that changed none found written what it writes.

        A child's session counts the rows that an update changes, not those that it finds.
        """
        return bool(run(connection, self._there.text, self._values(settlement.id, settlement.token)).fetchall())

    def commit(self, connection: Connection) -> None:
        """Commit; `ConnectionLost` leaves that in doubt."""
        with driver.naming_errors(connection):
            run(connection, driver.COMMIT.text)

    def abandon(self, connection: Connection) -> None:
        """Roll back whatever is open; a connection that cannot do that is closed."""
        try:
            connection.rollback()
        except connection.Error:
            with suppress(connection.Error):
                connection.close()

    def fate(self, connection: Connection, id: Any, token: Token) -> Fate:
        """Tell what became of a row, by a locking look in a transaction of its own."""
        values = self._values(id, token)
        with self._waiting_briefly(connection), driver.writing(connection, self._isolation), self._in_utc(connection):
            found = run(connection, self._fate[0].text, values).fetchone()
            if found is None and self._fate[1] is not None:
                return Fate.DEAD if run(connection, self._fate[1].text, values).fetchone() else Fate.DONE
        return Fate.DONE if found is None else Fate[found[0]]

    @contextmanager
    def _waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Wait for a row's lock as long as a doubt is worth, not as long as the user's own statements do."""
        with driver.naming_errors(connection):
            least = f"least(@@session.{LOCK_WAIT}, {LOOK_SECONDS})"
            run(connection, f"set @shardrun_wait = @@session.{LOCK_WAIT}, session {LOCK_WAIT} = {least}")
        try:
            yield
        finally:
            if driver.is_open(connection):
                with suppress(connection.Error):
                    run(connection, f"set session {LOCK_WAIT} = @shardrun_wait")

    def lend(self, connection: Connection, what: str | None) -> None:
        """Refuse to commit, roll back or close the connection from now on, or no more."""
        connection.transaction_of = what

    @contextmanager
    def _in_utc(self, connection: Connection) -> Iterator[None]:
        """Read and write times in UTC, where a column gives them in the session's zone."""
        if self._zoned:
            run(connection, "set @shardrun_zone = @@session.time_zone, session time_zone = '+00:00'")
        try:
            yield
        finally:
            if self._zoned and driver.is_open(connection):
                with suppress(connection.Error):
                    run(connection, "set session time_zone = @shardrun_zone")


def run(connection: Connection, text: str, values: Any = None) -> Any:
    """Run a statement on a cursor of the driver's usual kind, whatever kind the handler has asked for."""
    cursor = connection.cursor(type(connection).default_cursor)
    cursor.execute(text, values)
    return cursor


def take(layout: Layout, where_locked: str = "nowait") -> Statement:
    """Lock one row while it carries its token, against all who would claim, extend or settle it."""
    text = f"""\
select 1
  from {by_id(layout, "t")}
 where {conjunction(held_rows(layout, "t"), 1)}
   for update {where_locked}"""
    return Statement(text, ("ids", "token"))


def there(layout: Layout) -> Statement:
    """Look whether a row carries its token."""
    text = f"select 1\n  from {by_id(layout, 't')}\n where {conjunction(held_rows(layout, 't'), 1)}"
    return Statement(text, ("ids", "token"))


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Lock one row and tell what it carries; the second looks for it among the dead letters' table."""
    lock, held = layout.roles["locked_until"], column(layout, "locked_until", "t")
    processed, group = layout.column("processed_at"), layout.column("group")
    cases = [f"when t.{quote(processed.name)} is not null then 'DONE'"] if processed else []
    cases.append(f"when {held} = %(token)s then 'HELD'")
    if layout.dead_group is not None and group is not None:
        cases.append(f"when t.{quote(group.name)} = %(dead_group)s then 'DEAD'")
    cases.append(f"when cast({not_aged(lock, 't')} as datetime({lock.digits})) = %(token)s then 'FREE'")
    told = "\n            ".join(cases)
    text = f"""\
select case {told}
            else 'LOST' end
  from {by_id(layout, "t")}
 where {column(layout, "id", "t")} in %(ids)s
   for update"""
    looked = Statement(text, ("ids", "token", "dead_group"))
    if layout.dead is None:
        return looked, None
    among_dead = f"select 1\n  from {table_name(layout.dead)} as t\n where {column(layout, 'id', 't')} in %(ids)s"
    return looked, Statement(among_dead, ("ids",))
