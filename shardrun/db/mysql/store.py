"""Speak for one subscription on MySQL and MariaDB: rows in and out of the statements that `sql` writes.

Whatever is written was locked first, in the order of ids and by SKIP LOCKED, so that one row which someone else keeps
locked holds up no other. Only rows that carry our token and are locked all the same are waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

from shardrun.db.mysql import driver, lists, sql
from shardrun.db.mysql.claims import Claims
from shardrun.db.mysql.driver import Connection, Step
from shardrun.db.mysql.fetch import Fetch
from shardrun.db.settling import Shared, in_effect, in_order, not_among, share, share_acked, storable
from shardrun.db.speaking import Speaking
from shardrun.db.statement import Statement
from shardrun.db.store import (
    NONE_ACKED,
    WAITING_LIMIT,
    Acked,
    Backlog,
    Claimed,
    Extension,
    Settlement,
    Token,
    Verb,
    Waiting,
)
from shardrun.db.table import Column, Layout
from shardrun.errors import StatementFailed

LOOK_SECONDS = 5
"""How long a locking look waits. Larger: a doubt takes longer to name; smaller: a slow commit is asked again."""

LONGEST_REASON = 16_383
"""Characters of a reason that are kept at most: what fits into a TEXT column in any character set."""

LONGEST_TINY = 63
"""The same for TINYTEXT."""

ENCODE_ALL = ("utf8mb4", "utf16", "utf32", "gb18030")
"""Character sets that have every character."""

LONGEST_DELAY = 100 * 365.25 * 86400
"""Seconds. A longer one ends where no column of times does."""


class Reasons:
    """Cuts reasons to what the columns for them take."""

    def __init__(self, layout: Layout) -> None:
        errors = [error] if (error := layout.column("last_error")) else []
        if errors and layout.dead is not None and errors[0].name in layout.dead.columns:
            errors.append(layout.dead.columns[errors[0].name])
        self._longest = min(map(_longest, errors), default=LONGEST_REASON)
        self._encodes_all = all(map(_encodes_all, errors))

    def fit(self, reason: str | None) -> str | None:
        """Give as much of a reason as fits, in characters that the columns have."""
        text = storable(reason[: self._longest] if reason else reason, self._encodes_all)
        return text[: self._longest] if text else text


def micros_of(delay: float | None) -> int | None:
    """Write a delay as the statements take it; None for none."""
    return ceil(min(delay, LONGEST_DELAY) * 1_000_000) if delay else None


class Looks(Speaking):
    """What both kinds of stores share: the looks at what is left, and at why a claim took nothing."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None) -> None:
        super().__init__(layout, where)
        self._fetch = fetch
        self._group = {"group": layout.group}
        self._backlog = sql.backlog(layout)
        self._waiting = sql.waiting(layout)
        self._reasons = Reasons(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        return [self._backlog, self._waiting, *([self._fetch.statement] if self._fetch else [])]

    def prepare(self, connection: Connection) -> int:
        """Have the server prepare every statement, without running it: names, types and permissions are checked."""
        statements = self.statements()
        with self._declared():
            for statement in statements:
                driver.prepare(connection, statement.text)
        return len(statements)

    def backlog(self, connection: Connection, awaited: Sequence[Any]) -> Backlog:
        """Look at what is left, along the claim's index."""
        first, *others = list(lists.pieces(awaited)) or [[None]]
        ready, later, is_awaited = _only_row(driver.run(connection, self._backlog, {**self._group, "ids": first}))
        for piece in others:
            is_awaited = (
                is_awaited or _only_row(driver.run(connection, self._backlog, {**self._group, "ids": piece}))[2]
            )
        return Backlog(ready=bool(ready), later=later, awaited=bool(is_awaited))

    def waiting(self, connection: Connection) -> Waiting:
        """Look why a claim took nothing, along the claim's index."""
        values = {**self._group, "limit": WAITING_LIMIT}
        return Waiting._make(_only_row(driver.run(connection, self._waiting, values)))

    def _settled(self, one: Settlement) -> dict[str, Any]:
        """Give the values of one settlement, but for its id."""
        return {
            "delay": micros_of(one.delay),
            "attempt": one.attempt,
            "reason": self._reasons.fit(one.reason),
            "dead_group": self.layout.dead_group,
        }


class MysqlStore(Looks):
    """The statements of one subscription, built once; holds no state of its own but what claims avoid."""

    def __init__(self, layout: Layout, where: str, fetch: Fetch | None = None, name: str = "") -> None:
        super().__init__(layout, where, fetch)
        self._claims = Claims(layout, name, fetch)
        self._lease_end = sql.lease_end(layout)
        self._take_to_extend = sql.take_to_extend(layout)
        self._extend = sql.extend(layout)
        self._held = sql.held(layout)
        self._hold_all = sql.hold_all(layout)
        self._take_to_settle = sql.held(layout, "for update skip locked")
        self._wait_to_settle = sql.held(layout, "for update")
        self._writes = {
            Verb.ACK: sql.ack(layout),
            Verb.DROP: sql.drop(layout),
            Verb.RETRY: sql.retry(layout),
            Verb.SNOOZE: sql.snooze(layout),
            Verb.BURY: sql.bury(layout),
            Verb.RELEASE: sql.release(layout),
            Verb.RECOUNT: sql.recount(layout),
        }
        self._remove = sql.remove(layout) if layout.dead is not None else None
        self._look = sql.look(layout)

    def statements(self) -> list[Statement]:
        """List every statement that this store runs."""
        taking = [self._take_to_extend, self._extend, self._hold_all, self._held, self._take_to_settle]
        every = [
            *self._claims.statements(),
            self._lease_end,
            *taking,
            self._wait_to_settle,
            *self._writes.values(),
            self._remove,
            self._look,
        ]
        return [*(one for one in every if one is not None), *super().statements()]

    def claim(self, connection: Connection, limit: int, full_keys: Sequence[Any]) -> list[Claimed]:
        """Take up to `limit` rows, in claim order, except those whose lane key is in `full_keys`."""
        return self._claims.claim(connection, limit, full_keys)

    def lease_end(self, connection: Connection) -> Token:
        """Read the database's clock, plus the lease."""
        return str(_only_row(driver.run(connection, self._lease_end, {}))[0])

    def extend(self, connection: Connection, ids: Sequence[Any], token: Token, new: Token) -> Extension:
        """Push the expiry of the rows that carry `token` to `new`, in one transaction, waiting for no one."""
        given = [{"ids": piece, "token": token, "new": new} for piece in lists.pieces(in_order(ids))]
        with driver.undoing(connection):
            locks = [(self._take_to_extend, values) for values in given]
            answers = lists.together(connection, [(driver.BEGIN, {}), *locks])
            taken = [[row[0] for row in answer.fetchall()] for answer in answers]
            writes = [(self._extend, {**given[0], "ids": some}) for some in taken if some]
            lists.together(connection, [*writes, (driver.COMMIT, {})])
        extended = [id for some in taken for id in some]
        if len(extended) == len(ids):
            return Extension(extended, [])
        left = in_order(list(set(ids).difference(extended)))
        return Extension(extended, list(self._tokens(connection, self._held, left, {token})))

    def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        repeated: bool = False,
        acked: Acked = NONE_ACKED,
    ) -> set[Any]:
        """Write settlements in one transaction of two round trips; returns the ids of those that took effect."""
        shared, alone = share(settlements, drops_alone=self._writes[Verb.DROP] is not None)
        shared += share_acked(acked)
        tokens = {id: group.token for group in shared for id in group.ids}
        tokens.update((one.id, one.token) for one in alone)
        with driver.undoing(connection):
            effective = self._lock(connection, tokens)
            steps = [step for group in shared for step in self._steps_shared(group, effective)]
            steps += [step for one in alone if one.id in effective for step in self._steps_alone(one)]
            lists.together(connection, [*steps, (driver.COMMIT, {})])
        if repeated and (doubted := not_among(effective, settlements, acked)):
            effective |= self._resolve(connection, doubted)
        return effective

    def steps(self, one: Settlement) -> list[Step]:
        """Give the statements that write one settlement in a transaction in which its row is locked already."""
        shared, _ = share([one], drops_alone=self._writes[Verb.DROP] is not None)
        return list(self._steps_shared(shared[0], {one.id}) if shared else self._steps_alone(one))

    def _lock(self, connection: Connection, tokens: Mapping[Any, Token]) -> set[Any]:
        """Begin, and lock the rows that carry their token; those that another keeps locked are waited for, the lost are not."""
        ids = in_order(list(tokens))
        by_token: dict[Token, list[Any]] = {}
        for id in ids:
            by_token.setdefault(tokens[id], []).append(id)
        locks = [
            (self._hold_all, {"ids": piece, "token": token})
            for token, some in by_token.items()
            for piece in lists.pieces(some)
        ]
        answers = lists.together(connection, [(driver.BEGIN, {}), *locks])[1:]
        if sum(answer.fetchall()[0][0] for answer in answers) == len(ids):
            return set(ids)
        found = self._tokens(connection, self._take_to_settle, ids, set(tokens.values()))
        ours = {id for id, token in found.items() if tokens[id] == token}
        if len(ours) == len(ids):
            return ours
        left = [id for id in ids if id not in ours]
        still = self._tokens(connection, self._held, left, {tokens[id] for id in left})
        awaited = [id for id in left if still.get(id) == tokens[id]]
        found = self._tokens(connection, self._wait_to_settle, awaited, {tokens[id] for id in awaited})
        return ours | {id for id, token in found.items() if tokens[id] == token}

    def _tokens(
        self, connection: Connection, statement: Statement, ids: Sequence[Any], tokens: set[Token]
    ) -> dict[Any, Token]:
        """Read, or lock, the rows that carry one of some tokens, and which."""
        given = {"tokens": sorted(tokens)}
        answers = lists.together(connection, [(statement, {**given, "ids": piece}) for piece in lists.pieces(ids)])
        return {id: token for answer in answers for id, token in answer.fetchall()}

    def _steps_shared(self, group: Shared, effective: set[Any]) -> Iterator[Step]:
        statement = self._statement(group.verb)
        for piece in lists.pieces(in_order([id for id in group.ids if id in effective])):
            yield statement, {"ids": piece, "token": group.token, "attempt": group.attempt}

    def _steps_alone(self, one: Settlement) -> Iterator[Step]:
        values = {"ids": [one.id], "token": one.token, **self._settled(one)}
        yield self._statement(one.verb), values
        if one.verb is Verb.BURY and self._remove is not None:
            yield self._remove, values

    def _statement(self, verb: Verb) -> Statement:
        statement = self._writes[verb]
        if statement is None:
            raise self._unwritable(verb)
        return statement

    def _resolve(self, connection: Connection, doubted: list[Settlement]) -> set[Any]:
        """Find which settlements had been committed before, by a locking look: whoever is still committing is waited for."""
        seen: dict[Any, Token | None] = {}
        with _waiting_longer(connection), driver.writing(connection):
            for piece in lists.pieces(in_order([one.id for one in doubted])):
                seen.update(driver.run(connection, self._look, {"ids": piece}).fetchall())
        return in_effect(doubted, seen)


@contextmanager
def _waiting_longer(connection: Connection) -> Iterator[None]:
    """Wait for locks as long as a doubt is worth."""
    with driver.naming_errors(connection):
        connection.execute(f"set session innodb_lock_wait_timeout = {LOOK_SECONDS}")
        try:
            yield
        finally:
            if driver.is_open(connection):
                usual = driver.COORDINATOR["innodb_lock_wait_timeout"]
                connection.execute(f"set session innodb_lock_wait_timeout = {usual}")


def _longest(error: Column) -> int:
    if error.type.lower().startswith("tinytext"):
        return LONGEST_TINY
    return min(error.length or LONGEST_REASON, LONGEST_REASON)


def _encodes_all(error: Column) -> bool:
    collation = getattr(error, "collation", None)
    return collation is None or collation.startswith(ENCODE_ALL)


def _only_row(cursor: Any) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    if row is None:
        raise StatementFailed("the server gave no row where there is always one.")
    return row
