"""Sort settlements into what one statement can write, and make a reason fit to be stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardrun.db.store import Acked, Settlement, Token, Verb

GONE_AFTER = (Verb.ACK, Verb.DROP, Verb.BURY)
"""Verbs after which a row that is not there any more shows that they took effect."""

FREE_AFTER = (Verb.RETRY, Verb.SNOOZE, Verb.RELEASE, Verb.BURY)
"""Verbs after which a row may carry its last token, moved into the past."""


class Shared(NamedTuple):
    """Rows that one statement settles: an ack, or a release to a count of attempts, under one token."""

    verb: Verb
    token: Token
    attempt: int
    ids: list[Any]


def share(settlements: Iterable[Settlement], drops_alone: bool) -> tuple[list[Shared], list[Settlement]]:
    """Part settlements into those that share a statement and those that need one each; keeps the order of ids.

    `drops_alone` says that a drop with a reason writes that reason, so that it is not what an ack is.
    """
    shared: dict[tuple[Verb, Token, int], list[Any]] = {}
    alone: list[Settlement] = []
    ack, drop, release = Verb.ACK, Verb.DROP, Verb.RELEASE
    last: tuple[Verb, Token, int] | None = None
    ids: list[Any] = []
    for settlement in settlements:
        verb = settlement.verb
        if verb is ack or (verb is drop and not (drops_alone and settlement.reason)):
            key = (ack, settlement.token, 0)
        elif verb is release:
            key = (release, settlement.token, settlement.attempt)
        else:
            alone.append(settlement)
            continue
        if key != last:  # neighbours come from one claim: most rows of a batch share its token
            last, ids = key, shared.setdefault(key, [])
        ids.append(settlement.id)
    return [Shared(*key, ids) for key, ids in shared.items()], alone


def share_acked(acked: Acked) -> list[Shared]:
    """Part acks into those that share a statement."""
    return [Shared(Verb.ACK, token, 0, list(ids)) for token, ids in acked.items()]


def with_acks(settlements: Iterable[Settlement], acked: Acked) -> list[Settlement]:
    """List settlements, and each ack as one."""
    return [*settlements, *(Settlement(Verb.ACK, id, token) for token, ids in acked.items() for id in ids)]


def not_among(effective: set[Any], settlements: Iterable[Settlement], acked: Acked) -> list[Settlement]:
    """List the settlements, acks included, that have not taken effect."""
    return [each for each in with_acks(settlements, acked) if each.id not in effective]


def in_effect(doubted: Iterable[Settlement], seen: Mapping[Any, Token | None]) -> set[Any]:
    """Tell which settlements had taken effect before, from the rows still there and their tokens before they were aged."""
    effective = set()
    for settlement in doubted:
        if settlement.id not in seen:
            if settlement.verb in GONE_AFTER:
                effective.add(settlement.id)
        elif settlement.verb in FREE_AFTER and seen[settlement.id] == settlement.token:
            effective.add(settlement.id)
    return effective


def storable(reason: str | None, encodes_all: bool = True) -> str | None:
    """Make a reason fit for any text column: no NUL, no half of a surrogate pair, and ASCII where not all can be said."""
    if reason is None:
        return None
    text = reason.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return text if encodes_all else text.encode("ascii", "backslashreplace").decode()


def in_order(ids: Sequence[Any]) -> list[Any]:
    """Sort ids, so that all writers lock rows in one order; those that do not compare are sorted by their text."""
    try:
        return sorted(ids)
    except (TypeError, ArithmeticError):  # the latter is a Decimal's NaN
        return sorted(ids, key=str)
