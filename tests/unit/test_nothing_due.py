"""The sentence that says why nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.coordinator.nothing_due import reason
from shardrun.db.store import WAITING_LIMIT, Waiting
from shardrun.queue import Form, Queue, Source, Subscription

WHERE = Source("handlers.py", 1)


def bound(form: Form = Form.LEASE, **settings: Any) -> Subscription:
    """Bind a handler to a queue of a form."""
    roles: dict[Form, dict[str, Any]] = {Form.LEASE: {"locked_until": "l"}, Form.ADVISORY: {"advisory_lock": "{id}"}}
    queue: Queue[Any] = Queue("q", id="id", fifo=settings.pop("fifo", False), **roles.get(form, {}))
    return Subscription(queue, lambda row: None, WHERE, **settings)


FIRST = "2026-01-31 14:00:00.25+00"


@pytest.mark.parametrize(
    ("found", "group", "sentence"),
    [
        (
            Waiting(3, 3, 0, 0, FIRST, 7080.0, None),
            None,
            "nothing is due. 3 rows wait, the first until 14:00:00 UTC (in 1 h 58 min); 0 leased.",
        ),
        (
            Waiting(1, 1, 0, 0, FIRST, 90_000.0, None),
            None,
            "nothing is due. 1 row waits, the first until 2026-01-31 14:00:00 UTC (in 25 h 0 min); 0 leased.",
        ),
        (
            Waiting(1, 1, 0, 0, "infinity", float("inf"), None),
            None,
            "nothing is due. 1 row waits, the first until infinity; 0 leased.",
        ),
        (Waiting(2, 0, 2, 0, None, None, None), "a", "nothing is due. 0 rows wait; 2 leased."),
        (
            Waiting(WAITING_LIMIT, 9_999, 0, 1, FIRST, 5.0, None),
            None,
            "nothing is due. 9,999+ rows wait, the first until 14:00:00 UTC (in 5.0 s); 0+ leased. 1 row could not be taken: "
            "another transaction has locked it, or it is only just there.",
        ),
        (
            Waiting(0, 0, 0, 0, None, None, None),
            None,
            "the table has no unfinished row (a transaction that has not committed yet is not seen).",
        ),
        (
            Waiting(0, 0, 0, 0, None, None, None),
            "live",
            "the table has no unfinished row of group 'live' (a transaction that has not committed yet is not seen).",
        ),
        (
            Waiting(0, 0, 0, 0, None, None, "'Live'"),
            "live",
            "the table has no unfinished row of group 'live', but it has some of group 'Live'.",
        ),
    ],
)
def test_the_sentence_says_what_the_table_holds(found: Waiting, group: str | None, sentence: str) -> None:
    """Text 1 #20: due times are the database's, in UTC."""
    assert reason(found, bound(group=group)) == sentence


@pytest.mark.parametrize(
    ("free", "form", "end"),
    [
        (0, Form.ROW_LOCK, "3 rows wait; 0 locked by others."),
        (0, Form.ADVISORY, "3 rows wait; 0 locked by others."),
        (
            2,
            Form.ROW_LOCK,
            "3 rows wait. 2 rows could not be taken: another transaction has locked them, or they are only just there.",
        ),
        (
            1,
            Form.ADVISORY,
            "3 rows wait. 1 row could not be taken: someone else has locked its key, or it is only just there.",
        ),
    ],
)
def test_the_sentence_speaks_of_leases_only_where_rows_have_them(free: int, form: Form, end: str) -> None:
    """Text 1 #20, B1, B4: no row tells who has locked it; one that is due and was not taken is someone else's."""
    assert reason(Waiting(3 + free, 3, 0, free, None, None, None), bound(form)) == f"nothing is due. {end}"


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"fifo": True}, "2 rows wait behind others of the same group, which are in work or put off"),
        ({"key_scope": "cluster"}, "2 rows wait behind others of the same key, which are in work or put off"),
    ],
)
def test_the_sentence_says_that_rows_keep_their_order(settings: dict[str, Any], end: str) -> None:
    """D3, D4: those that are due and were not taken wait for another row, which `status` names."""
    said = reason(Waiting(3, 1, 0, 2, FIRST, 5.0, None), bound(**settings))
    assert said.endswith(f"0 leased. {end}: shardrun status names those put off.")
