"""A handler of batches in a real child: one call, and an ending for each row."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from shardrun.ring import words
from shardrun.ring.wire import Report
from tests.child.children import Child
from tests.child.conftest import Spawn

HANDLER = """
import asyncio
ANSWERS = {
    "nothing": lambda n: None,
    "drop all": lambda n: Drop("all"),
    "each": lambda n: [None, Ack(), Retry(), Retry(5), Drop("no"), Snooze(2), DeadLetter("bad")],
    "tuple": lambda n: (Retry(1),) * n,
    "short": lambda n: [None] * (n - 1),
    "long": lambda n: [None] * (n + 1),
    "names": lambda n: {str(i): Drop() for i in range(n)},
    "pairs": lambda n: [(i, Drop()) for i in range(n)],
    "class": lambda n: [None] * (n - 1) + [Retry],
    "text": lambda n: "done",
    "generator": lambda n: (None for _ in range(n)),
    "raise": lambda n: 1 / 0,
    "exit": lambda n: sys.exit(1),
}
@queue.handler(batch=10, retry=Backoff(first=3, factor=1, jitter=0))
def work(rows: list[dict], deliveries: list[Delivery]):
    assert [row["n"] for row in rows] == [each.id for each in deliveries]
    if "logs" in rows[0]:
        __import__("logging").getLogger("mine").warning("%d rows", len(rows))
    return ANSWERS[rows[0]["answer"]](len(rows))
"""


def give(child: Child, no: int, bodies: Mapping[int, Any], attempt: int = 1) -> Report:
    """Hand over a batch, its rows by their numbers, and return its report."""
    until = time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
    rows = [(row, 0, row, attempt, until, "k", None, None, json.dumps(body)) for row, body in bodies.items()]
    child.send((no, 0, rows, 0, until))
    return child.report(no)


def endings(report: Report) -> list[tuple[int, float | None, str | None]]:
    """List code, delay and reason of each row of a report."""
    assert report.code == words.EACH
    rows: Any = report.seconds
    return [(each.code, each.seconds, each.reason) for each in (Report(*row) for row in rows)]


def answered(child: Child, answer: str, rows: int = 7, first: int = 1) -> Report:
    """Hand over a batch whose handler answers as named."""
    return give(child, first, {first + n: {"answer": answer, "n": first + n} for n in range(rows)})


def test_one_outcome_is_for_all_rows_and_a_list_has_one_for_each(spawn: Spawn) -> None:
    """B6, C104: each row ends in its own way."""
    child = spawn(HANDLER)
    assert answered(child, "nothing")[1] == words.ACK
    assert endings(answered(child, "drop all", 2, 11)) == [(words.DROP, None, "all")] * 2
    assert endings(answered(child, "each", 7, 21)) == [
        (words.ACK, None, None),
        (words.ACK, None, None),
        (words.RETRY, None, None),
        (words.RETRY, 5.0, None),
        (words.DROP, None, "no"),
        (words.SNOOZE, 2.0, None),
        (words.DEAD_LETTER, None, "bad"),
    ]
    assert endings(answered(child, "tuple", 3, 31)) == [(words.RETRY, 1.0, None)] * 3


MALFORMED = {
    "short": "work returned a list of 6 for 7 rows: one outcome (or None) for each, in their order. Counted as a failure of all.",
    "long": "work returned a list of 8 for 7 rows: one outcome",
    "names": "a handler returns nothing, an outcome for all, or a list of 7, one for each row. Counted as a failure.",
    "pairs": "work returned (0, Drop(reason=None)) (tuple); a handler returns nothing, or Ack, Retry",
    "class": "work returned the class Retry: write Retry().",
    "text": "work returned 'done' (str); a handler returns nothing, an outcome for all, or a list of 7, one for each row.",
    "generator": "(generator); a handler returns nothing, an outcome for all, or a list of 7, one for each row.",
    "raise": "ZeroDivisionError: division by zero",
    "exit": "SystemExit: 1",
}


def test_an_answer_of_another_shape_fails_every_row_and_acks_none_by_its_place(spawn: Spawn) -> None:
    """C104: the reason says what was wrong, and the child goes on."""
    child = spawn(HANDLER)
    for turn, (answer, said) in enumerate(MALFORMED.items()):
        found = endings(answered(child, answer, 7, 1 + 100 * turn))
        assert [code for code, _, _ in found] == [words.FAILED] * 7, answer
        assert {delay for _, delay, _ in found} == {3.0}
        assert all(said in (reason or "") for _, _, reason in found), found
    assert answered(child, "nothing", 1, 9001).code == words.ACK


def test_rows_that_do_not_decode_are_not_in_the_list(spawn: Spawn) -> None:
    """A4, B6: the others are answered for as if they had come without them; with none left nothing is called."""
    child = spawn(HANDLER)
    report = give(child, 1, {1: "no dict", 2: {"answer": "drop all", "n": 2}, 3: 7, 4: {"n": 4}})
    assert [code for code, _, _ in endings(report)] == [words.UNDECODABLE, words.DROP, words.UNDECODABLE, words.DROP]
    report = give(child, 5, {5: "no dict", 6: []})
    assert [code for code, _, _ in endings(report)] == [words.UNDECODABLE] * 2
    assert "the payload does not fit dict" in str(endings(report)[0][2])


def test_a_batch_is_named_as_what_runs_by_the_number_of_its_first_row(spawn: Spawn) -> None:
    """R7, H8: in the shared word and with log lines; one whose lease may be over is refused as a whole."""
    child = spawn(HANDLER)
    give(child, 5, {5: {"answer": "nothing", "n": 5, "logs": True}, 6: {"n": 6}})
    assert child.logged("2 rows")[4] == 5
    child.send((7, 0, [(7, 0, 7, 1, 1.0, "k", None, None, "{}")], 0, 1.0))
    assert child.report(7).code == words.UNSTARTED


@pytest.mark.parametrize(
    ("answer", "code"), [("None", words.ACK), ("[Drop(), Drop()]", words.EACH), ("1 / 0", words.EACH)]
)
def test_coroutines_take_batches_too(spawn: Spawn, answer: str, code: int) -> None:
    """H7, B6: as one task."""
    child = spawn(f"@queue.handler(batch=2)\nasync def work(rows: list[dict]):\n    return {answer}")
    assert give(child, 1, {1: {}, 2: {}}).code == code
