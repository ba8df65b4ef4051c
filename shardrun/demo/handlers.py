"""What the demo runs: a queue of Python files, and a handler that measures one and writes down what it found."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from dataclasses import astuple, dataclass, fields
from time import monotonic, thread_time
from typing import Any

from shardrun import Delivery, Queue
from shardrun.demo.measure import Measures, measure

LIBRARY = sysconfig.get_path("stdlib")

FINDINGS = "shardrun_demo_findings"

COLUMNS = (
    "id",
    "package",
    "path",
    "attempt",
    "pid",
    "began",
    "ended",
    "cpu",
    *(field.name for field in fields(Measures)),
)


@dataclass
class SourceFile:
    """A row's payload; `path` lies below the standard library's folder."""

    path: str


files = Queue[SourceFile](
    "shardrun_demo_files",
    id="id",
    payload="payload",
    partition_key="package",
    retry_after="due_at",
    attempt="attempt",
    locked_until="locked_until",
    last_error="last_error",
)


@files.handler(max_attempts=3, dead_letter="shardrun_demo_files_dead")
def look_into(file: SourceFile, delivery: Delivery) -> None:
    """Measure one file. A row may be delivered twice, so its findings are written so that the second writing does no harm."""
    began, spent = monotonic(), thread_time()
    with tokenize.open(os.path.join(LIBRARY, file.path)) as text:
        measures = measure(text.read())
    took = thread_time() - spent
    run = (delivery.id, delivery.key, file.path, delivery.attempt, os.getpid(), began, monotonic(), took)
    with delivery.connection() as db:
        db.execute(insertion(db), (*run, *astuple(measures)))


def insertion(db: Any) -> str:
    """Write the INSERT as the database that lent the connection has it, with its driver's placeholders."""
    packages = {base.__module__.partition(".")[0] for base in type(db).__mro__}
    mark = "?" if "sqlite3" in packages else "%s"
    first = f"insert into {FINDINGS} ({', '.join(COLUMNS)}) values ({', '.join([mark] * len(COLUMNS))})"
    if packages & {"pymysql", "MySQLdb"}:
        return f"{first} on duplicate key update {', '.join(f'{column} = values({column})' for column in COLUMNS[1:])}"
    return (
        f"{first} on conflict (id) do update set {', '.join(f'{column} = excluded.{column}' for column in COLUMNS[1:])}"
    )
