"""Twenty mistakes of the first hour: the whole message, where it is printed, and the exit code."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Said, Terminal
from tests.servers import Postgres
from tests.waiting import eventually

QUEUE = 'invoices = Queue("invoice_jobs", id="id", payload="payload", {}locked_until="locked_until")'


def declaring(queue: str = "", handler: str = "", more: str = "") -> str:
    """Write a handler module whose queue is at line 3 and whose handler is at line 6."""
    return (
        f"from shardrun import Queue\n\n{QUEUE.format(queue)}\n\n\n"
        f"@invoices.handler({handler})\ndef render(invoice: dict) -> None: ...\n{more}"
    )


def one(said: Said, code: int) -> str:
    """Give the one sentence that a command ended with: on stderr, nothing beside it."""
    assert (said.code, said.out) == (code, ""), said
    assert said.err.startswith("shardrun: ")
    assert said.err.endswith("\n")
    return said.err.removeprefix("shardrun: ").removesuffix("\n")


@pytest.fixture
def place(terminal: Terminal) -> Terminal:
    """Give a folder whose SQLite file has a table for the module's queue."""
    terminal.write("handlers.py", declaring())
    execute(terminal, "create table invoice_jobs (id integer primary key, payload json, locked_until timestamp)")
    return terminal


def execute(terminal: Terminal, *statements: str) -> None:
    """Run statements as anyone would."""
    connection = sqlite3.connect(terminal.folder / "shardrun.db")
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_1_no_module_and_2_a_wrong_path(place: Terminal) -> None:
    """Text 1 #1, #2: what to type, and what is near."""
    assert one(place.run("start"), 2) == (
        'no handler module was named. Try: shardrun start handlers.py (or put handlers = ["handlers.py"] into shardrun.toml)'
    )
    assert one(place.run("start", "handler.py"), 2) == (
        f"handler.py does not exist in {place.folder}. Near it: handlers.py"
    )


def test_3_an_import_that_fails(place: Terminal) -> None:
    """Text 1 #3: the user's line and which Python; the user's own traceback, and no more, at level debug."""
    place.write("broken.py", "import os\n\nimport pdfkit\n")
    sentence = (
        "broken.py could not be imported: line 3, \"import pdfkit\": ModuleNotFoundError: No module named 'pdfkit'. "
        f"Python is {python(place)}."
    )
    assert one(place.run("start", "broken.py"), 2) == sentence
    said = place.run("start", "broken.py", SHARDRUN_LOG_LEVEL="debug")
    assert said.err == (
        "Traceback (most recent call last):\n"
        f'  File "{place.folder}/broken.py", line 3, in <module>\n    import pdfkit\n'
        f"ModuleNotFoundError: No module named 'pdfkit'\nshardrun: {sentence}\n"
    )


def python(place: Terminal) -> str:
    """Tell what the console script's Python calls itself."""
    place.write("which.py", "import sys\nraise ValueError(sys.executable)\n")
    return place.run("check", "which.py").err.partition("ValueError: ")[2].partition(". Python is")[0]


def test_3_imports_in_a_circle_and_from_no_package(place: Terminal) -> None:
    """Text 1 #3: what Python says is kept, the way out is added; both at once, numbered."""
    place.write("circle.py", "import aside\n\nX = 1\n")
    place.write("aside.py", "from circle import X\n")
    place.write("alone.py", "from . import aside\n")
    said = place.run("check", "circle.py", "alone.py")
    head, first, second = said.err.splitlines()
    assert (said.code, head) == (2, "shardrun: 2 problems, nothing was started")
    assert first.startswith(
        '  1. circle.py could not be imported: aside.py, line 1, "from circle import X": ImportError: cannot import name '
        f"'X' from 'circle' ({place.folder}/circle.py). The import is circular: circle.py is only half imported here. "
        "Import later, or inside the function. Python is "
    )
    assert second.startswith(
        '  2. alone.py could not be imported: line 1, "from . import aside": ImportError: attempted relative import with no '
        "known parent package. alone.py is in no package: write import x in place of from . import x, or add an __init__.py "
        "to its folder. Python is "
    )


def test_4_a_queue_without_a_handler(place: Terminal) -> None:
    """Text 1 #4: the line of the queue."""
    place.write("bare.py", f"from shardrun import Queue\n\n{QUEUE.format('')}\n")
    assert one(place.run("start", "bare.py"), 2) == (
        "bare.py declares nothing to run. It has a queue, invoices (line 3), without a handler: "
        "put @invoices.handler() above a function."
    )


def test_5_no_database_and_6_an_odd_scheme(terminal: Terminal) -> None:
    """Text 1 #5, #6: no file is made; the DSN is shown without its password."""
    assert one(terminal.run("start", "handlers.py"), 3) == (
        f"no database was named (--dsn, SHARDRUN_DSN, DATABASE_URL are unset) and the default, {terminal.folder}/shardrun.db, "
        "does not exist. Set one, or create it: shardrun ddl handlers.py --apply"
    )
    assert not (terminal.folder / "shardrun.db").exists()
    assert one(terminal.run("start", "handlers.py", DATABASE_URL="oracle://scott:tiger@db"), 2) == (
        "oracle://db (from DATABASE_URL) is not a database that shardrun speaks. "
        "Known: postgresql://, mysql:// (MySQL and MariaDB), sqlite:///file.db"
    )


def test_7_no_driver_and_8_no_server(terminal: Terminal) -> None:
    """Text 1 #7, #8: how to install it; who was asked, as whom, and where that was said."""
    (terminal.folder / "bare").mkdir()
    terminal.write("bare/psycopg.py", "raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')\n")
    path = f"{terminal.folder}/bare:{terminal.environment['PYTHONPATH']}"
    dsn = "postgresql://app:hush@127.0.0.1:9/shop"
    assert one(terminal.run("start", "handlers.py", DATABASE_URL=dsn, PYTHONPATH=path), 2) == (
        "postgresql:// needs psycopg. Install it: pip install 'shardrun[postgres]'"
    )
    assert one(terminal.run("start", "handlers.py", DATABASE_URL=dsn), 3) == (
        "PostgreSQL at 127.0.0.1:9 (database shop, user app, from DATABASE_URL) did not answer: connection refused."
    )


def test_9_a_missing_table_and_10_a_misspelt_column(place: Terminal, postgres: Postgres) -> None:
    """Text 1 #9, #10, A5: where it was declared, what is near, and what there is; on both databases."""
    place.write("far.py", declaring().replace('"invoice_jobs"', '"billing.invoice_jobs"'))
    dsn = postgres.new_database()
    assert place.run("ddl", "handlers.py", "--apply", "--dsn", dsn).code == 0
    assert one(place.run("start", "far.py", "--dsn", dsn), 4) == (
        f"queue invoices (far.py:3): there is no table billing.invoice_jobs in database {dsn.rpartition('/')[2]}. "
        "Near it: invoice_jobs. To create it: shardrun ddl far.py --apply"
    )
    place.write("odd.py", declaring().replace('"locked_until")', '"locked_till", retry_after="due_on")'))
    execute(place, "alter table invoice_jobs add column due_at timestamp")
    assert place.run("start", "odd.py") == (
        4,
        "",
        "shardrun: 2 problems, nothing was started\n"
        "  1. queue invoices (odd.py:3): table invoice_jobs has no column due_on (role retry_after). Near it: due_at. "
        "It has: id, payload, locked_until, due_at\n"
        "  2. queue invoices (odd.py:3): table invoice_jobs has no column locked_till (role locked_until). "
        "Near it: locked_until. It has: id, payload, locked_until, due_at\n",
    )


def test_11_sqlite_without_a_lease(place: Terminal) -> None:
    """Text 1 #11: both ways out."""
    place.write("free.py", declaring().replace(', locked_until="locked_until"', ""))
    assert one(place.run("start", "free.py"), 4) == (
        'queue invoices (free.py:3): SQLite cannot lock rows. Give it a lease column: Queue("invoice_jobs", id="id", '
        'locked_until="locked_until"), or use Queue.standard("invoice_jobs")'
    )


DECLARED = [
    (
        declaring(handler="workers_by_key=8"),
        "handler render (handlers.py:6) of queue invoices asks for workers_by_key=8, but the queue names no partition_key. "
        'Add partition_key="<column>" to Queue(...), or use workers=8.',
    ),
    (
        declaring(queue='attempt="attempt", ', handler="max_attempts=5"),
        "handler render (handlers.py:6) has max_attempts=5 and nowhere to put a row after the fifth. Add "
        'dead_letter="invoice_jobs_dead" (shardrun ddl prints that table) or dead_letter_group="dead".',
    ),
    (
        declaring(handler='max_attempts=5, dead_letter="invoice_jobs_dead"'),
        "handler render (handlers.py:6) has max_attempts=5 and queue invoices has no column to count attempts in. "
        'Add attempt="<column>" to Queue(...).',
    ),
    (
        declaring(more="\n\n@invoices.handler()\ndef mail(invoice: dict) -> None: ...\n"),
        "queue invoices has two handlers for the same rows: render (handlers.py:6) and mail (handlers.py:10). "
        "Give each its group=, or make them one.",
    ),
]


@pytest.mark.parametrize(("module", "sentence"), DECLARED, ids=["12", "13", "13, no count", "15"])
def test_12_13_15_what_the_declaration_lacks(place: Terminal, module: str, sentence: str) -> None:
    """Text 1 #12, #13 and its twin, #15: the handler's line and what to add."""
    execute(
        place,
        "alter table invoice_jobs add column attempt integer",
        "create table invoice_jobs_dead (id integer primary key, payload json, locked_until timestamp, attempt integer)",
    )
    place.write("handlers.py", module)
    assert one(place.run("start", "handlers.py"), 4) == sentence


def test_14_a_limit_that_is_too_small(place: Terminal, postgres: Postgres) -> None:
    """Text 1 #14, F2: the sum, and each single change that mends it; on SQLite the coordinator has one."""
    dsn = postgres.new_database()
    assert place.run("ddl", "handlers.py", "--apply", "--dsn", dsn).code == 0
    flags = ["-p", "8", "--pool-size", "5", "--connection-limit", "12"]
    assert one(place.run("start", "handlers.py", "--dsn", dsn, *flags), 2) == (
        "these settings could open 13 connections: coordinator 5 + 8 children x 1; the limit is 12 (--connection-limit). "
        "Use --processes 7, or --pool-size 4, or raise the limit."
    )


RUNS_ON = """
from dataclasses import dataclass

from shardrun import Delivery, Queue, Retry

q = Queue("q", id="id", payload="payload", attempt="attempt", locked_until="locked_until")


@dataclass
class Invoice:
    number: int
    how: str = ""


@q.handler(max_attempts=1, dead_letter="q_dead")
async def render(invoice: Invoice, delivery: Delivery):
    match invoice.how:
        case "value":
            return 42
        case "class":
            return Retry
        case "raised":
            raise Retry(after=30)
        case "nested":
            with delivery.connection(), delivery.connection():
                pass
        case "tx":
            delivery.tx.execute("select 1")
"""


def test_16_to_19_what_a_row_meets_is_in_the_log(terminal: Terminal) -> None:
    """Text 1 #16 to #19, E2: queue, row, attempt, what was wrong and what became of the row; the run goes on."""
    terminal.write("handlers.py", RUNS_ON)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    rows = [
        '{"number": "ten"}',
        *(f'{{"number": 1, "how": "{how}"}}' for how in ("value", "class", "raised", "nested")),
    ]
    assert terminal.run("enqueue", "handlers.py:q", *rows, '{"number": 1, "how": "tx"}', '{"number": 1}').code == 0
    said = terminal.run("start", "handlers.py", "--until-empty", "-p", "1", "--poll-interval", "0.05")
    assert said.code == 0
    assert said.out.startswith("1 acked, 0 retried, 0 dropped, 6 dead, 0 lost")
    errors = re.findall(r"^\S+ ERROR (.*)", said.err, re.MULTILINE)
    moved = "Moved to q_dead."
    assert sorted(errors) == [
        f"q row 1 attempt 1: the payload does not fit Invoice: Expected int, got str, at $.number. {moved}".replace(
            "`", ""
        ),
        f"q row 2 attempt 1: render returned 42 (int); a handler returns nothing, or Ack, Retry, Snooze, Drop, DeadLetter. "
        f"Counted as a failure. {moved}",
        f"q row 3 attempt 1: render returned the class Retry: write Retry(). {moved}",
        f"q row 4 attempt 1: TypeError: exceptions must derive from BaseException (outcomes are returned, not raised: "
        f"return Retry(after=30)). {moved}",
        f"q row 5 attempt 1: PoolTimeout: render (queue q, row 5) waited 0 s for a second connection; this child has 1 and "
        f"the same handler holds it. Use one block, or --child-pool-size 2. {moved}",
        f"q row 6 attempt 1: RuntimeError: delivery.tx exists only under @q.handler(transactional=True); use "
        f"delivery.connection(). {moved}",
    ]


LATER = """
from shardrun import Queue

roles = {"id": "id", "payload": "payload", "retry_after": "due", "locked_until": "held", "group": "topic"}
waits = Queue("waits", **roles)
empty = Queue("empty", **roles)
other = Queue("other", **roles)
keyed = Queue("keyed", id="id", payload="payload", retry_after="due", advisory_lock="k-{id}")


@waits.handler()
def first(body: dict) -> None: ...


@empty.handler()
def second(body: dict) -> None: ...


@other.handler(group="live")
def third(body: dict) -> None: ...


@keyed.handler()
def fourth(body: dict) -> None: ...
"""


def test_20_why_nothing_happens_is_said_once(terminal: Terminal) -> None:
    """Text 1 #20: due times in UTC, what is held, an empty table, another group; once however often it polls."""
    terminal.write("handlers.py", LATER)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    execute(
        terminal,
        "insert into waits (due) values (strftime('%Y-%m-%d 23:59:59', 'now', '+1 day')), ('2999-01-01 00:00:00')",
        "insert into waits (held) values (datetime('now', '+60 seconds'))",
        "insert into other (topic) values ('Live')",
        "insert into keyed (due) values ('2999-01-01 00:00:00')",
    )
    terminal.start("handlers.py", "-p", "1", "--poll-interval", "0.02")
    eventually(lambda: all(f"{name}: " in terminal.read("stderr") for name in ("waits", "empty", "other", "keyed")))
    execute(terminal, "insert into empty (payload) values ('{}')")
    eventually(lambda: not terminal.rows("select * from empty"))
    said = [line.partition(" ")[2] for line in terminal.read("stderr").splitlines() if " row" in line]
    assert len(said) == 4
    assert sum(each.startswith("keyed: ") and each.endswith("; 0 locked by others.") for each in said) == 1
    assert (
        said.count("empty: the table has no unfinished row (a transaction that has not committed yet is not seen).")
        == 1
    )
    assert said.count("other: the table has no unfinished row of group 'live', but it has some of group 'Live'.") == 1
    waits = r"waits: nothing is due. 2 rows wait, the first until \S+ 23:59:59 UTC \(in \d+ h \d+ min\); 1 leased\."
    assert sum(re.fullmatch(waits, line) is not None for line in said) == 1


def test_one_file_is_one_module_however_it_is_named(place: Terminal) -> None:
    """C38: a module named like a standard one, a folder, a package, a path with attribute, and one file named four times."""
    (place.folder / "pkg").mkdir()
    for name in ("json.py", "pkg/__init__.py", "pkg/mod.py"):
        place.write(name, "" if "__init__" in name else declaring())
    for sources in (
        ["json.py"],
        ["pkg/"],
        ["pkg.mod:invoices"],
        ["handlers.py", "./handlers.py", "handlers", "handlers:render"],
    ):
        said = place.run("check", *sources)
        assert (said.code, said.out.splitlines()[0]) == (0, f"ok    {', '.join(sources)}: 1 queue, 1 handler")
    assert one(place.run("check", "pkg.nod"), 2).endswith("Near it: pkg.mod")
    assert one(place.run("check", "pkg.mod:invoice"), 2) == "pkg.mod has no invoice. Near it: invoices"


@pytest.mark.parametrize("name", ["json", "queue", "typing", "logging"])
def test_python_m_takes_no_module_of_the_working_directory_for_a_standard_one(place: Terminal, name: str) -> None:
    """C38: `python -m shardrun` is the same program beside a json.py as elsewhere, and its children are, too."""
    place.write(f"{name}.py", "raise SystemExit('the wrong module')\n")
    flags = ["start", "handlers.py", "--until-empty", "-p", "1"]
    said = place.run(*flags, program=[sys.executable, "-m", "shardrun"])
    assert (said.code, said.out[:8]) == (0, "0 acked,")
    assert Path(place.folder, f"{name}.py").exists()
