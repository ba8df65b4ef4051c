"""Take rows that were offered, and settle them, in a child's transactions on PostgreSQL; see `db/taking.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from shardrun.db.postgres import driver, offers_sql
from shardrun.db.postgres.locks import HoldingStore
from shardrun.db.postgres.taking import Fates, Lent, PostgresTaking, send, spelt
from shardrun.db.statement import Statement
from shardrun.db.store import Token
from shardrun.db.table import Layout
from shardrun.errors import Conflict

SNAPSHOTS = ("repeatable read", "serializable")
"""Isolations under which a transaction sees what there was at its first statement, be it the one that locks a key."""


class RowTaking(PostgresTaking):
    """Rows that the coordinator has offered, held by row locks of the child's transactions."""

    def _statements(self, layout: Layout) -> tuple[Statement, Statement, Fates]:
        return offers_sql.take(layout, "nowait"), offers_sql.take(layout, "skip locked"), offers_sql.fate(layout)

    def _store(self, layout: Layout, utf8: bool) -> HoldingStore:
        return HoldingStore(layout, layout.table.name, utf8, None, "")

    def _values(self, id: Any, token: Token) -> dict[str, Any]:
        return {"id": id, "token": token, "group": self._layout.group}


class KeyTaking(RowTaking):
    """Rows that the coordinator has offered, held by locks on their keys; a row lock is there besides, as for any settlement."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._key_number = offers_sql.key_number(layout)
        self._key_numbers = offers_sql.key_numbers(layout)
        self._sees_first = (layout.isolation or "").lower() in SNAPSHOTS

    def _begin_and_take(self, connection: Lent, id: Any, wanted: str) -> bool:
        """Lock the key, then read the row in a new statement: what it sees was committed before (R11)."""
        number = self._number(connection, id)
        if number is None:
            return False
        connection.taken = (number, wanted)
        if not self._sees_first:
            locked = send(connection, self._begin, f"select 1 where pg_try_advisory_xact_lock({number})")
            return bool(locked.ntuples and send(connection, wanted).ntuples)
        if not send(connection, f"select 1 where pg_try_advisory_lock({number})").ntuples:
            return False
        with _unlocking(connection, [number]):
            return self._begin_behind(connection, [number])

    def take_also(self, connection: Lent, rows: Sequence[tuple[Any, Token]]) -> set[Any]:
        """Lock the rows' keys, those that nobody has, then the rows, which are read in new statements (R11).

        Of rows with one key only the first is taken, here as anywhere: they are not in work at the same time.
        """
        with driver.naming_errors(connection):
            numbers = self._numbers(connection, [id for id, _ in rows]) if rows else {}
            lock = self._lock_and_begin_anew if self._sees_first else self._lock
            places = lock(connection, numbers) if numbers else []
        return super().take_also(connection, [rows[place] for place in places])

    def _lock(
        self, connection: Lent, numbers: dict[int, int], function: str = "pg_try_advisory_xact_lock"
    ) -> list[int]:
        """Lock keys, those that nobody has; gives the places of their rows, in order."""
        listed = ", ".join(f"({place}, '{number}'::bigint)" for number, place in numbers.items())
        text = f"select place from (values {listed}) as one (place, number) where {function}(number)"
        found = send(connection, text)
        return sorted(int(found.get_value(at, 0) or b"0") for at in range(found.ntuples))

    def _lock_and_begin_anew(self, connection: Lent, numbers: dict[int, int]) -> list[int]:
        """Lock keys for the session, and let the transaction begin again behind that, so that it sees what was committed."""
        first, _ = connection.taken
        with _unlocking(connection, [first, *numbers]):
            send(connection, f"select pg_advisory_lock({first})")
            places = self._lock(connection, numbers, "pg_try_advisory_lock")
            send(connection, "rollback")
            found = self._begin_behind(connection, [first, *(each for each, at in numbers.items() if at in places)])
        if not found:
            raise Conflict("the first row of the batch was changed while the keys of the others were locked")
        return places

    def _begin_behind(self, connection: Lent, numbers: Sequence[int]) -> bool:
        """Begin, have the transaction take over the session's locks, and take the first row."""
        locks = (f"select pg_advisory_xact_lock({number})" for number in numbers)
        return bool(send(connection, self._begin, *locks, *_unlocks(numbers), connection.taken[1]).ntuples)

    def _number(self, connection: Lent, id: Any) -> int | None:
        """Read the key's number as coordinators do: what this session has set for handlers may spell a value otherwise.

        The row that is taken afterwards is unchanged since it was offered, and so is its key.
        """
        try:
            found = send(connection, "begin", *_ALIKE, spelt(connection, self._key_number, {"id": id}))
        finally:
            send(connection, "rollback")
        return int(found.get_value(0, 0) or b"0") if found.ntuples else None

    def _numbers(self, connection: Lent, ids: Sequence[Any]) -> dict[int, int]:
        """Read the numbers of several keys in the open transaction, each with the place of its first row.

        The key of the row that the transaction has taken is left out.
        """
        wanted = spelt(connection, self._key_numbers, {"ids": list(ids)})
        found = send(connection, "savepoint shardrun_keys", *_ALIKE, wanted)
        send(connection, "rollback to savepoint shardrun_keys", "release savepoint shardrun_keys")
        numbers: dict[int, int] = {}
        for at in range(found.ntuples):
            place, number = (int(found.get_value(at, column) or b"0") for column in (0, 1))
            if number != connection.taken[0]:
                numbers.setdefault(number, place - 1)
        return numbers


_ALIKE = tuple(f"set local {name} = '{driver.COORDINATOR[name]}'" for name in driver.SPELLING)
"""Settings under which a key is spelt as by coordinators."""


def _unlocks(numbers: Iterable[int]) -> list[str]:
    return [f"select pg_advisory_unlock({number})" for number in numbers]


@contextmanager
def _unlocking(connection: Lent, numbers: Sequence[int]) -> Iterator[None]:
    """Let go of the session's locks where what would take them over fails half way."""
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            send(connection, "rollback", *_unlocks(numbers))
        raise
