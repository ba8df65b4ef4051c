"""Recognise a pooler between shardrun and PostgreSQL, and end what a dead child's statements still do behind it.

A pooler gives each client a made-up process number, so every connection tells at once whether it goes through one
(`driver.make_ours`). In transaction mode a client's transactions run in whatever session of the server is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from shardrun.db.postgres.driver import Connection
from shardrun.errors import Unsupported

ROUNDS = 10
"""Looks for a session that two clients share. Larger: surer where many clients keep the pooler's sessions changing hands.
Smaller: a faster start."""

NOTICED = 1.0
"""Seconds after which a pooler has noticed that a client is dead, and lends the session that runs its statement to nobody
any more. Larger: the rows of a dead child wait longer. Smaller: a pooler that is very busy may have lent it again."""

NAMED = "application_name "
"""Begins the name of a client's session behind a pooler."""


def number(connection: Connection) -> int:
    """Ask for the process that serves this statement."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def check_transactions(connection: Connection, where: str) -> None:
    """Refuse a pooler that ends every transaction after one statement."""
    try:
        with connection.transaction():
            pass
    except psycopg.Error as error:
        if "statement pooling" not in str(error):
            raise
        raise Unsupported(
            f"{where} is PgBouncer with pool_mode=statement, where no transaction has two statements. Set "
            f"pool_mode=transaction or pool_mode=session for this database, or name the PostgreSQL server itself in the DSN."
        ) from None


def shares_sessions(first: Connection, open_other: Callable[[], Connection]) -> bool:
    """Tell whether a pooler runs two clients' statements in one session: in transaction mode, and not in session mode.

    Nothing is set and no transaction is held, so that neither a session that another client gets next nor a pool of one
    connection is any the worse for it. Both connections commit each statement at once.
    """
    its = number(first)
    if number(first) != its:
        return True
    other = open_other()
    try:
        return any(number(first) != its or number(other) == its for _ in range(ROUNDS))
    finally:
        other.close()


def refusal(who: str, what: str) -> Unsupported:
    """Say that something needs a session of the server for itself."""
    return Unsupported(
        f"{who}: {what} needs a session of its own, and the DSN leads to PgBouncer (or a pooler like it) in transaction mode. "
        f"Name the PostgreSQL server itself in the DSN, or set pool_mode=session for this database."
    )


def session(connection: Connection) -> str | None:
    """Name what a client runs behind a pooler, if that tells the server the client's application_name, as PgBouncer does."""
    given = connection.info.get_parameters().get("application_name", "")
    row = connection.execute("select current_setting('application_name')").fetchone()
    found = str(row[0]) if row else ""
    return NAMED + found if given and found.startswith(given) else None  # PgBouncer may add the client's address


AT_WORK = """\
select concat_ws(':', pid, extract(epoch from backend_start), extract(epoch from xact_start))
  from pg_stat_activity
 where application_name = any (%s::text[])
   and state <> 'idle' and backend_type = 'client backend' and pid <> pg_backend_pid()"""

END = """\
select pg_terminate_backend(pid)
  from pg_stat_activity
 where concat_ws(':', pid, extract(epoch from backend_start), extract(epoch from xact_start)) = any (%s::text[])
   and application_name = any (%s::text[])
   and state <> 'idle'"""


class AtWork:
    """What the clients of a dead process left running behind a pooler.

    The session is the pooler's: ended by its number, as a child's own is, it may be another client's by then. PgBouncer
    closes its side of a session whose client died in a transaction, and the server notices that only when the statement
    ends; PgBouncer gives a session that goes on its client's application_name first. So: a transaction under the dead
    child's name that has been open for `NOTICED` seconds is lent to nobody any more, and may be ended. A handler that
    names its session otherwise is not found, nor is a statement that waited for a session of the pooler when its child
    died, until it begins.
    """

    def __init__(self, sessions: Sequence[str]) -> None:
        self._names = [one.removeprefix(NAMED) for one in sessions if one.startswith(NAMED)]
        self._since: dict[Any, float] = {}

    def remains(self, connection: Connection, now: float) -> bool:
        """Look for it, and end what has been seen for long enough."""
        if not self._names:
            return False
        seen = [row[0] for row in connection.execute(AT_WORK, (self._names,)).fetchall()]
        self._since = {one: self._since.get(one, now) for one in seen}
        if late := [one for one, since in self._since.items() if now - since >= NOTICED]:
            connection.execute(END, (late, self._names))
        return bool(seen)
