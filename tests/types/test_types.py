"""What type checkers say to users: right uses pass, each mistake is reported where it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from shardrun import Ack, Answer, BatchAnswer, Delivery, Drop, Outcome, Queue, Retry, Snooze

@dataclass
class Invoice:
    number: int

plain = Queue("t", id="id")
typed = Queue[Invoice]("t", id="id", payload="p")
standard: Queue[Invoice] = Queue.standard("t")
"""

RIGHT = """
@plain.handler()
def takes_a_row(row: dict[str, Any]) -> None: ...

@plain.handler(workers=3)
def takes_bytes(row: bytes, delivery: Delivery) -> Retry | None: return Retry(after=3) if delivery.draining else None

@typed.handler(workers_by_key=8, key_scope="cluster", lease=60, max_attempts=5, dead_letter="x")
def by_key(invoice: Invoice, delivery: Delivery) -> Answer: return Snooze(3)

@typed.handler(batch=10)
def batch(invoices: list[Invoice]) -> BatchAnswer: return [None, Ack()]

@typed.handler()
async def coroutine(invoice: Invoice) -> None: ...

@typed.handler(retry=lambda attempt, error: 3.0 * attempt)
def with_default(invoice: Invoice, delivery: Delivery, *, extra: int = 3) -> Outcome: return Drop("no")

@standard.handler(batch=5, workers_by_key=3)
async def batch_of_coroutines(invoices: list[Invoice], deliveries: list[Delivery]) -> None: ...

answer: Answer = by_key(Invoice(1), Delivery(id=1))
outcome: Outcome = with_default(Invoice(1), Delivery(id=1), extra=4)
typed.insert(None, payload=Invoice(1), partition_key="a", retry_after=3)
plain.insert(None, payload={"a": 1}, column_of_mine=3)
"""

MISTAKES = {
    "a handler that returns int": "@plain.handler()\ndef f(row: bytes) -> int: return 3",
    "a handler that returns the class": "@plain.handler()\ndef f(row: bytes) -> type[Retry]: return Retry",
    "a payload type that is not the queue's": "@typed.handler()\ndef f(invoice: dict[str, int]) -> None: ...",
    "batch without a list": "@typed.handler(batch=10)\ndef f(invoice: Invoice) -> None: ...",
    "batch without a list, any payload": "@plain.handler(batch=10)\ndef f(row: dict[str, int]) -> None: ...",
    "workers with workers_by_key": "@typed.handler(workers=3, workers_by_key=3)\ndef f(invoice: Invoice) -> None: ...",
    "key_scope without keys": '@typed.handler(key_scope="cluster")\ndef f(invoice: Invoice) -> None: ...',
    "Snooze without a delay": "Snooze()",
    "another payload in insert": 'typed.insert(None, payload={"number": 1})',
    "a setting that does not exist": "@typed.handler(wrokers=3)\ndef f(invoice: Invoice) -> None: ...",
}


def mypy(folder: Path, text: str) -> list[int]:
    """Check a user's module as mypy --strict does; returns the lines with errors."""
    module = folder / "users_module.py"
    module.write_text(text)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(folder / "cache"),
        "--config-file",
        "",
        str(module),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert "users_module.py" in done.stdout or done.stdout.startswith("Success"), done.stdout + done.stderr
    return [int(line) for line in re.findall(r"users_module\.py:(\d+): error", done.stdout)]


def test_right_uses_pass_strict_checking(tmp_path: Path) -> None:
    """A2, E1: rows, payloads, keys, batches and coroutines, each with its own types; the function keeps its type."""
    assert mypy(tmp_path, HEAD + RIGHT) == []


def test_every_mistake_is_reported_where_it_stands(tmp_path: Path) -> None:
    """A2, E1: one error at least for each of them, and none elsewhere."""
    text, wanted = HEAD, {}
    for name, mistake in MISTAKES.items():
        first = text.count("\n") + 2
        text += f"\n{mistake.replace('def f(', f'def f{first}(')}\n"
        wanted[name] = range(first, first + mistake.count("\n") + 1)
    found = mypy(tmp_path, text)
    missed = [name for name, lines in wanted.items() if not any(line in lines for line in found)]
    assert missed == []
    assert [line for line in found if not any(line in lines for lines in wanted.values())] == []


def test_the_package_says_that_it_is_typed() -> None:
    """A2: py.typed ships beside the code."""
    import shardrun

    assert Path(shardrun.__file__).with_name("py.typed").exists()
