"""Take and settle rows in a child's transactions on SQLite; see `db/taking.py`.

A transaction holds the file's only write lock from the take on, so that nothing about the row can change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Protocol

from shardrun.db.sqlite import driver, sql
from shardrun.db.sqlite.store import SqliteStore
from shardrun.db.statement import Statement
from shardrun.db.store import Settlement, Token
from shardrun.db.table import Layout
from shardrun.db.taking import SAVEPOINT, Fate, Guarded, ended


class Lent(Guarded, sqlite3.Connection):
    """A child's connection."""

    def executescript(self, script: str) -> sqlite3.Cursor:
        """Run a script, where its own COMMIT may come first."""
        self._check(".executescript(), which commits first")
        return super().executescript(script)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """End a block by committing it, or by rolling back."""
        self._check("`with delivery.tx`")
        return super().__exit__(kind, error, trace)


class Settling(Protocol):
    """Writes settlements."""

    def write(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        """Write one in the transaction that is open; tells whether it changed the row."""


class SqliteTaking:
    """Rows of one subscription in transactions of a child."""

    def __init__(self, layout: Layout) -> None:
        self._store: Settling
        self._fate: tuple[Statement, Statement | None]
        self._prepare(layout)
        self._dead_group = layout.dead_group

    def _prepare(self, layout: Layout) -> None:
        self._store = SqliteStore(layout, layout.table.name)
        self._take, self._fate = take(layout), fate(layout)

    def _carries(self, connection: Lent, id: Any, token: Token) -> bool:
        return connection.execute(self._take.text, {"id": id, "token": token}).fetchone() is not None

    def take(self, connection: Lent, id: Any, token: Token, patience: float) -> bool:  # noqa: ARG002
        """Take the write lock, which waits as long as any statement; then look whether the row carries the token."""
        connection.row_factory = None
        with driver.naming_errors(connection):
            connection.execute("begin immediate")
            if self._carries(connection, id, token):
                connection.execute(f"savepoint {SAVEPOINT}")
                return True
        self.abandon(connection)
        return False

    def take_also(self, connection: Lent, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Look which of more rows carry their tokens; nobody else can write meanwhile."""
        with driver.naming_errors(connection):
            return {id for id, token in rows if self._carries(connection, id, token)}

    def settle(self, connection: Lent, settlement: Settlement, keep: bool) -> bool:
        """Keep what was written since the take, or undo it, and write the settlement beside it."""
        with driver.naming_errors(connection):
            try:
                connection.row_factory, connection.text_factory = None, str
                connection.execute(f"{'release' if keep else 'rollback to'} {SAVEPOINT}")
            except sqlite3.OperationalError as error:
                if "no such savepoint" in str(error):
                    raise ended("a COMMIT or ROLLBACK of its own") from error
                raise
            return self._store.write(connection, settlement)

    def settle_also(self, connection: Lent, settlement: Settlement) -> bool:
        """Write the settlement of another row."""
        with driver.naming_errors(connection):
            return self._store.write(connection, settlement)

    def commit(self, connection: Lent) -> None:
        """Commit; there is no doubt where nobody is between this process and the file."""
        with driver.naming_errors(connection):
            connection.execute("commit")

    def abandon(self, connection: Lent) -> None:
        """Roll back whatever is open; a connection that cannot do that is closed."""
        try:
            sqlite3.Connection.rollback(connection)
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                sqlite3.Connection.close(connection)

    def fate(self, connection: sqlite3.Connection, id: Any, token: Token) -> Fate:
        """Tell what became of a row, under the write lock: whoever is still committing is waited for."""
        with driver.writing(connection):
            values = {"id": id, "token": token, "dead_group": self._dead_group}
            found = self._look(connection, values)
            if found is None and self._fate[1] is not None:
                return Fate.DEAD if connection.execute(self._fate[1].text, values).fetchone() else Fate.DONE
        return Fate.DONE if found is None else Fate[found[0]]

    def _look(self, connection: sqlite3.Connection, values: dict[str, Any]) -> Any:
        return connection.execute(self._fate[0].text, values).fetchone()

    def lend(self, connection: Lent, what: str | None) -> None:
        """Refuse to commit, roll back or close the connection from now on, or no more."""
        connection.transaction_of = what


def take(layout: Layout) -> Statement:
    """Look whether one row still carries its token."""
    key, held = sql.quote(layout.roles["id"].name), sql.quote(layout.roles["locked_until"].name)
    text = f"select 1\n  from {sql.table_name(layout.table)}\n where {key} = :id\n   and {held} = :token"
    return Statement(text, ("id", "token"))


def fate(layout: Layout) -> tuple[Statement, Statement | None]:
    """Tell what one row carries; the second looks for it among the dead letters' table."""
    key, held = sql.quote(layout.roles["id"].name), sql.quote(layout.roles["locked_until"].name)
    processed, group = layout.column("processed_at"), layout.column("group")
    cases = [f"when {sql.quote(processed.name)} is not null then 'DONE'"] if processed else []
    cases.append(f"when {held} = :token then 'HELD'")
    if layout.dead_group is not None and group is not None:
        cases.append(f"when {sql.quote(group.name)} = :dead_group then 'DEAD'")
    cases.append(f"when strftime({sql.FORMAT}, {held}, '+{sql.AGED}') = :token then 'FREE'")
    told = "\n            ".join(cases)
    text = f"""\
select case {told}
            else 'LOST' end
  from {sql.table_name(layout.table)}
 where {key} = :id"""
    looked = Statement(text, ("id", "token", "dead_group"))
    if layout.dead is None:
        return looked, None
    return looked, Statement(f"select 1\n  from {sql.table_name(layout.dead)}\n where {key} = :id", ("id",))
