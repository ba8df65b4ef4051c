"""The handler module that most process tests start: each row's payload says what its handler does.

`{"do": "kill"}` names the act; `{"until": 1}` does it up to that attempt only, and nothing later. What the handler is
declared with comes as JSON in ACTS, where the test's files are in ACTS_FOLDER.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardrun import Ack, DeadLetter, Delivery, Drop, Queue, Retry, Snooze
from tests.process import native
from tests.witness import Witness

FOLDER = Path(os.environ["ACTS_FOLDER"])
witness = Witness(FOLDER / "witness")
settings = json.loads(os.environ.get("ACTS", "{}"))
queue: Queue[Any] = Queue.standard("q")
if form := settings.pop("form", None):  # that of no lease: the same columns but for locked_until
    roles: dict[str, Any] = {role: column for role, column in queue.roles.items() if role != "locked_until"}
    roles |= {"advisory_lock": "accounts-{partition_key}"} if form == "advisory" else {}
    queue = Queue("q", **roles)
    settings = {"dead_letter": "q_dead", **settings}

with open(FOLDER / "loaded", "a") as loaded:  # by the coordinator and by each child
    loaded.write(f"{os.getpid()}\n")


bind: Callable[[Callable[..., Any]], Callable[..., Any]] = queue.handler(**settings)


@bind
def handle(body: dict, delivery: Delivery) -> Any:  # type: ignore[type-arg]
    """Do what the payload says, between two lines of the witness."""
    witness.start(delivery.id, delivery.key, delivery.attempt)
    answer = act(body, delivery) if delivery.attempt <= body.get("until", 10**9) else None
    witness.end(delivery.id, delivery.key, delivery.attempt)
    return answer


def act(body: Any, delivery: Delivery) -> Any:
    """Do what a payload names."""
    return globals()[f"do_{body.get('do', 'nothing')}"](body, delivery)


def do_script(body: Any, delivery: Delivery) -> Any:
    """Do something else at each run of the row."""
    return act(body["acts"][witness.runs(delivery.id) - 1], delivery)


def do_nothing(body: Any, delivery: Delivery) -> None:
    """Be done."""


def do_sleep(body: Any, delivery: Delivery) -> None:
    """Take a while, as a handler that waits does."""
    time.sleep(body["for"])


def do_slices(body: Any, delivery: Delivery) -> None:
    """Take a while in many small sleeps, and write down whatever is raised meanwhile."""
    try:
        for _ in range(10):
            time.sleep(body["for"] / 10)
    except BaseException as error:
        (FOLDER / "raised").write_text(type(error).__name__)
        raise


def do_hold(body: Any, delivery: Delivery) -> None:
    """Hold the GIL in one C call after another: no other thread of this child runs for long."""
    deadline = time.monotonic() + body["for"]
    while time.monotonic() < deadline:
        native.hold_the_gil()


def do_gate(body: Any, delivery: Delivery) -> None:
    """Wait until the test opens the gate."""
    gate = FOLDER / body.get("gate", "gate")
    while not gate.exists():
        time.sleep(0.01)


def do_drain(body: Any, delivery: Delivery) -> None:
    """Work until it had better end."""
    while not delivery.draining:
        time.sleep(0.01)


def do_kill(body: Any, delivery: Delivery) -> None:
    """Die as the out-of-memory killer ends a process."""
    witness.die()


def do_segfault(body: Any, delivery: Delivery) -> None:
    """Read address 0."""
    witness.died(os.getpid())
    ctypes.string_at(0)


def do_abort(body: Any, delivery: Delivery) -> None:
    """Die as a failed assertion in C does."""
    witness.died(os.getpid())
    os.abort()


def do_exit(body: Any, delivery: Delivery) -> None:
    """Leave without a word, with an exit code that says all is well."""
    witness.died(os.getpid())
    os._exit(body.get("code", 0))


def do_beside(body: Any, delivery: Delivery) -> None:
    """Die only when another row has started in this child and not ended."""
    do_gate(body, delivery)
    witness.die()


def do_sql(body: Any, delivery: Delivery) -> None:
    """Run a statement on the child's own connection, and say beforehand that it is about to."""
    with delivery.connection() as connection:
        for statement in body["sql"]:
            (FOLDER / f"sql-{delivery.id}").write_text(str(os.getpid()))
            connection.execute(statement)


def do_session(body: Any, delivery: Delivery) -> None:
    """Write down which server session the child's connection is."""
    with delivery.connection() as connection:
        session = connection.info.backend_pid
    with open(FOLDER / "sessions", "a") as file:
        file.write(f"{session} {os.getpid()}\n")


def do_raise(body: Any, delivery: Delivery) -> None:
    """Raise what the payload names."""
    kind = getattr(__builtins__, body["error"], None) or __builtins__[body["error"]]  # type: ignore[index]
    raise kind(*body.get("args", ()))


def do_exit_python(body: Any, delivery: Delivery) -> None:
    """Call sys.exit."""
    sys.exit(body.get("code", 0))


def do_answer(body: Any, delivery: Delivery) -> Any:
    """Return the outcome that the payload names, with its arguments; or any other value."""
    if "gate" in body:
        do_gate(body, delivery)
    name, *arguments = body["answer"]
    outcomes: dict[str, Any] = {each.__name__: each for each in (Ack, DeadLetter, Drop, Retry, Snooze)}
    return outcomes[name](*arguments) if name in outcomes else name


def do_term(body: Any, delivery: Delivery) -> None:
    """Send this child a signal that is meant for coordinators."""
    os.kill(os.getpid(), signal.SIGTERM)


def do_note(body: Any, delivery: Delivery) -> None:
    """Write down what the delivery says of its row."""
    note = {"id": delivery.id, "key": delivery.key, "attempt": delivery.attempt}
    note |= {"headers": delivery.headers, "group": delivery.group, "draining": delivery.draining}
    with open(FOLDER / "notes", "a") as file:
        file.write(json.dumps(note) + "\n")
