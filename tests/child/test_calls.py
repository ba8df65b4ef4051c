"""Every ending of a handler becomes one report, and the child serves on."""

from __future__ import annotations

from decimal import Decimal

import pytest

from shardrun.ring import words
from tests.child.conftest import Spawn

RAISES = """
import asyncio
class Picky(Exception):
    def __init__(self, a, b): super().__init__(str(a))
class Mute(Exception):
    def __str__(self): raise SystemExit(3)
class Base(BaseException): pass
class Unpicklable(Exception):
    def __reduce__(self): raise SystemExit
def own_cause():
    error = ValueError("round")
    error.__cause__ = error
    raise error
def deep():
    return deep()
def nested():
    error = ValueError("inner")
    for _ in range(200):
        error = ExceptionGroup("outer", [error])
    raise error
def throw(error): raise error
WAYS = {
    "exit 0": lambda: sys.exit(0),
    "exit text": lambda: sys.exit("x"),
    "exit": lambda: exit(),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "generator exit": lambda: throw(GeneratorExit()),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "base": lambda: throw(Base("b")),
    "stop iteration": lambda: throw(StopIteration(1)),
    "recursion": deep,
    "picky": lambda: throw(Picky(1, 2)),
    "mute": lambda: throw(Mute()),
    "lock": lambda: throw(Exception(threading.Lock())),
    "unpicklable": lambda: throw(Unpicklable("u")),
    "own cause": own_cause,
    "nested": nested,
    "nul": lambda: throw(Exception("a\\0b")),
    "surrogate": lambda: throw(Exception("a\\ud800b\\udcff")),
    "long": lambda: throw(Exception("x" * 10_000_000)),
    "empty": lambda: throw(Exception("")),
    "fine": lambda: None,
}
"""

REASONS = {
    "exit 0": "SystemExit: 0",
    "exit text": "SystemExit: x",
    "exit": "SystemExit: None",
    "interrupt": "KeyboardInterrupt",
    "generator exit": "GeneratorExit",
    "cancelled": "CancelledError",
    "base": "Base: b",
    "stop iteration": "StopIteration: 1",
    "recursion": "RecursionError: maximum recursion depth exceeded",
    "picky": "Picky: 1",
    "mute": "Mute: (its message could not be read: SystemExit)",
    "unpicklable": "Unpicklable: u",
    "own cause": "ValueError: round",
    "nul": "Exception: a\N{REPLACEMENT CHARACTER}b",
    "surrogate": "Exception: a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}",
    "long": "Exception: " + "x" * 3989,
    "empty": "Exception",
}


def test_every_exception_is_one_failed_attempt_and_the_child_serves_on(spawn: Spawn) -> None:
    """C18, C28, C43: any exception, of any class and with any text, fails its row alone and crosses as text."""
    child = spawn(RAISES + "@queue.handler(workers=1)\ndef work(way): return WAYS[way]()")
    ways = [*REASONS, "lock", "nested", "fine"]
    for no, way in enumerate(ways, 1):
        child.give(no, way)
    reports = {way: child.report(no) for no, way in enumerate(ways, 1)}
    assert {way: report.code for way, report in reports.items() if report.code != words.FAILED} == {"fine": words.ACK}
    assert {way: reports[way].reason for way in REASONS} == REASONS
    assert (reports["lock"].reason or "").startswith("Exception: <unlocked _thread.lock")
    assert (reports["nested"].reason or "").startswith("ExceptionGroup: outer (1 sub-exception)")
    assert all(len(report.trace or "") <= 16_000 for report in reports.values())
    assert child.close() == 0


def test_the_same_holds_for_async_handlers(spawn: Spawn) -> None:
    """C28, C34: an exception of any kind from an async handler fails its row and leaves the loop running."""
    child = spawn(
        RAISES + "@queue.handler(workers=1)\nasync def work(way):\n    await asyncio.sleep(0)\n    WAYS[way]()"
    )
    ways = [way for way in REASONS if way != "stop iteration"]
    for no, way in enumerate(ways, 1):
        child.give(no, way)
    assert {way: child.report(no).reason for no, way in enumerate(ways, 1)} == {way: REASONS[way] for way in ways}
    assert child.run("fine", no=99).code == words.ACK
    assert child.close() == 0


ANSWERS = """
async def nothing(): pass
ANSWERS = {
    "none": lambda: None,
    "ack": lambda: Ack(),
    "retry": lambda: Retry(),
    "retry later": lambda: Retry(after=30),
    "snooze": lambda: Snooze(0.5),
    "drop": lambda: Drop("not wanted"),
    "dead": lambda: DeadLetter("too odd"),
    "42": lambda: 42,
    "class": lambda: Retry,
    "coroutine": nothing,
    "generator": lambda: (x for x in ()),
    "infinite": lambda: Retry(after=float("inf")),
    "negative": lambda: Snooze(-5),
    "text": lambda: Retry(after="5"),
    "never": lambda: Snooze(None),
}
@queue.handler(workers=1)
def work(way):
    if way == "raise":
        raise Retry(after=30)
    return ANSWERS[way]()
"""

USABLE = "cannot be used: give seconds (0 or more) or a timedelta."


@pytest.mark.parametrize(
    ("way", "code", "seconds", "reason"),
    [
        ("none", words.ACK, None, None),
        ("ack", words.ACK, None, None),
        ("retry", words.RETRY, None, None),
        ("retry later", words.RETRY, 30.0, None),
        ("snooze", words.SNOOZE, 0.5, None),
        ("drop", words.DROP, None, "not wanted"),
        ("dead", words.DEAD_LETTER, None, "too odd"),
    ],
)
def test_an_outcome_is_reported_as_it_was_returned(
    spawn: Spawn, way: str, code: int, seconds: float | None, reason: str | None
) -> None:
    """E1: nothing and Ack are an ack; a delay is seconds; a reason crosses."""
    report = spawn(ANSWERS).run(way)
    assert (report.code, report.seconds, report.reason) == (code, seconds, reason)


def test_anything_else_returned_fails_the_attempt_and_says_what_to_return(spawn: Spawn) -> None:
    """E1, C34, C42: a value, a class, an outcome raised, a delay that is none: each a failure with the way out."""
    child = spawn(ANSWERS)
    expected = {
        "42": "work returned 42 (int); a handler returns nothing, or Ack, Retry, Snooze, Drop, DeadLetter. "
        "Counted as a failure.",
        "class": "work returned the class Retry: write Retry().",
        "raise": "TypeError: exceptions must derive from BaseException "
        "(outcomes are returned, not raised: return Retry(after=30))",
        "coroutine": "work returned a coroutine, which nobody awaited: declare work with async def.",
        "generator": "work returned a generator, whose body never ran: a handler has no yield.",
        "infinite": f"work returned Retry with a delay of inf {USABLE}",
        "negative": f"work returned Snooze with a delay of -5 {USABLE}",
        "text": f"work returned Retry with a delay of '5' (str) {USABLE}",
        "never": f"work returned Snooze with a delay of None (NoneType) {USABLE}",
    }
    for no, way in enumerate(expected, 1):
        child.give(no, way)
    reports = {way: child.report(no) for no, way in enumerate(expected, 1)}
    assert {way: report.reason for way, report in reports.items()} == expected
    assert {report.code for report in reports.values()} == {words.FAILED}


def test_a_traceback_begins_at_the_handler(spawn: Spawn) -> None:
    """E2: the traceback names the user's file and line, and none of shardrun's own."""
    report = spawn("@queue.handler(workers=1)\ndef work(body): raise ValueError('boom')").run()
    assert report.reason == "ValueError: boom"
    assert 'handlers.py", line' in (report.trace or "")
    assert "in work" in (report.trace or "")
    assert "call.py" not in (report.trace or "")


def test_a_failure_is_put_off_by_the_retry_rule(spawn: Spawn) -> None:
    """E2: back-off grows with the attempt, within its jitter."""
    child = spawn("@queue.handler(workers=1, retry=Backoff(first=2, jitter=0.1))\ndef work(body): raise ValueError")
    child.give(1, attempt=1)
    child.give(2, attempt=3)
    assert 1.8 <= (child.report(1).seconds or 0) <= 2.2
    assert 7.2 <= (child.report(2).seconds or 0) <= 8.8


def test_a_delay_that_cannot_be_computed_fails_the_attempt_only(spawn: Spawn) -> None:
    """E2: the child serves on, also where the count of attempts is no integer."""
    child = spawn("@queue.handler(workers=1)\ndef work(body): raise ValueError('boom')")
    child.give(1, attempt=Decimal(1))  # type: ignore[arg-type]
    child.give(2, attempt=1)
    assert (child.report(1).code, child.report(1).seconds) == (words.FAILED, 60.0)
    assert (child.report(1).reason or "").startswith("ValueError: boom (and its delay could not be told: TypeError")
    assert child.report(2).code == words.FAILED


RULE = """
def rule(attempt, error):
    return {"seconds": 7, "retry": Retry(after=8), "ack": Ack(), "snooze": Snooze(9), "dead": DeadLetter(),
            "huge": 10**400, "nonsense": "soon", "raise": None}[str(error)]
@queue.handler(workers=1, retry=rule)
def work(way): raise RuntimeError(way)
"""


def test_a_retry_rule_may_be_a_function_that_answers_seconds_or_an_outcome(spawn: Spawn) -> None:
    """E2, C42: the rule's outcome is reported with the error; a rule that fails gives way to the default back-off."""
    child = spawn(RULE)
    ways = ["seconds", "retry", "ack", "snooze", "dead", "huge", "nonsense", "raise"]
    for no, way in enumerate(ways, 1):
        child.give(no, way)
    got = {way: child.report(no) for no, way in enumerate(ways, 1)}
    assert (got["seconds"].code, got["seconds"].seconds) == (words.FAILED, 7.0)
    assert (got["retry"].code, got["retry"].seconds) == (words.FAILED, 8.0)
    assert (got["ack"].code, got["ack"].reason) == (words.DROP, "RuntimeError: ack")
    assert (got["snooze"].code, got["snooze"].seconds) == (words.SNOOZE, 9.0)
    assert (got["dead"].code, got["dead"].reason) == (words.DEAD_LETTER, "RuntimeError: dead")
    assert (got["huge"].code, got["huge"].seconds) == (words.FAILED, 3650 * 86_400.0)
    for way in ("nonsense", "raise"):
        assert got[way].code == words.FAILED
        assert (got[way].reason or "").startswith(f"RuntimeError: {way} (and its retry rule failed: it answered with")
        assert 0.8 <= (got[way].seconds or 0) <= 1.2


def test_a_body_that_does_not_fit_is_reported_as_such(spawn: Spawn) -> None:
    """A4: the handler does not run, and the sentence says where the body is wrong."""
    child = spawn(
        """
        from dataclasses import dataclass
        @dataclass
        class Invoice:
            number: int
        @queue.handler(workers=1)
        def work(invoice: Invoice): print("ran")
        """
    )
    report = child.run({"number": "x"})
    assert report.code == words.UNDECODABLE
    assert report.reason == "the payload does not fit Invoice: Expected int, got str, at $.number"
    assert 0.8 <= (report.seconds or 0) <= 1.2


def test_a_handler_sees_its_delivery(spawn: Spawn) -> None:
    """E5: id, key, attempt, headers, group, and that there is no transaction."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body, delivery: Delivery):
            if body == "tx":
                delivery.tx
            return Drop(repr([body, delivery.id, delivery.key, delivery.attempt, delivery.headers, delivery.group]))
        """
    )
    assert child.run("b", attempt=4).reason == repr(["b", 101, "key 1", 4, {"h": 1}, "group"])
    assert (child.run("tx", no=2).reason or "").startswith(
        "RuntimeError: delivery.tx exists only under @queue.handler(transactional=True)"
    )


def test_draining_is_seen_while_a_handler_runs(spawn: Spawn) -> None:
    """E5: a long handler can look whether the runtime has been asked to stop."""
    child = spawn(
        """
        import logging
        @queue.handler(workers=1)
        def work(body, delivery: Delivery):
            logging.warning("draining is %s", delivery.draining)
            while not delivery.draining:
                time.sleep(0.005)
        """
    )
    child.give(1)
    child.logged("draining is False")
    child.deliveries.words[words.DRAINING] = 1
    assert child.report(1).code == words.ACK
