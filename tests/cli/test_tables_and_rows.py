"""`ddl` and `enqueue` on a SQLite file, and `check` of what they made."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

import pytest

from tests.cli.terminal import Terminal

OWN = """
from shardrun import Queue

mails = Queue("mails", id="id", payload="body", locked_until="held_until")
other = Queue("other", id="id", payload="body", partition_key="customer", group="topic", priority="urgency",
              retry_after="due_at", locked_until="held_until", attempt="attempt")


@mails.handler()
def send(body: str) -> None: ...


@other.handler(group="work", dead_letter_group="dead", max_attempts=3)
def work(body: dict) -> None: ...
"""


def rows(terminal: Terminal, query: str, file: str = "shardrun.db") -> list[Any]:
    """Read the file as anyone would."""
    connection = sqlite3.connect(terminal.folder / file)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_ddl_prints_sql_that_can_be_piped_and_creates_nothing(terminal: Terminal) -> None:
    """A6: only statements on stdout, dead letters included."""
    said = terminal.run("ddl", "handlers.py")
    assert (said.code, said.err) == (0, "")
    assert not (terminal.folder / "shardrun.db").exists()
    connection = sqlite3.connect(":memory:")
    connection.executescript(said.out)
    tables = connection.execute("select name from sqlite_schema where type = 'table' and name like 'inv%'").fetchall()
    connection.close()
    assert sorted(tables) == [("invoices",), ("invoices_dead",)]


def test_ddl_apply_creates_what_is_missing_and_says_so(terminal: Terminal) -> None:
    """A6: a second run finds nothing missing, and alters nothing."""
    first = terminal.run("ddl", "handlers.py", "--apply")
    assert (first.code, first.err) == (0, "shardrun: ran 3 statements\n")
    before = rows(terminal, "select sql from sqlite_schema order by name")
    assert terminal.run("ddl", "handlers.py", "--apply") == (0, "", "shardrun: nothing is missing\n")
    assert rows(terminal, "select sql from sqlite_schema order by name") == before
    assert terminal.run("check", "handlers.py").code == 0


def test_check_says_what_it_found_fit(ready: Terminal) -> None:
    """A5, text 2.5: on stdout, with what it would open."""
    said = ready.run("check", "handlers.py", "-p", "2", "--connection-limit", "12")
    assert (said.code, said.err) == (0, "")
    statements = re.search(r", (\d+) statements prepared\n", said.out)
    assert statements
    assert int(statements[1]) > 10
    assert said.out == (
        "ok    handlers.py: 1 queue, 1 handler\n"
        f"ok    invoices: invoices, 10 columns, lease 30 s, {statements[1]} statements prepared\n"
        "ok    connections: at most 3 a replica, limit 12\n"
        "nothing that stops a start\n"
    )


def test_check_warns_of_a_claim_without_an_index_and_prints_the_way_out(ready: Terminal) -> None:
    """A5: a warning is no problem (exit code 0)."""
    connection = sqlite3.connect(ready.folder / "shardrun.db")
    connection.execute("drop index invoices_claim")
    connection.close()
    said = ready.run("check", "handlers.py")
    assert said.code == 0
    assert "warn  invoices: no index serves the claim. create index" in said.out
    assert said.out.endswith("1 warning, nothing that stops a start\n")
    assert "  warning: invoices: no index serves the claim." in ready.run("start", "handlers.py", "--until-empty").err


def test_enqueue_takes_arguments(ready: Terminal) -> None:
    """K1: one row each; the summary says how many and where."""
    said = ready.run("enqueue", "handlers.py:invoices", '{"number": 7}', "[1, 2]", '"text"', "null")
    assert said == (0, "4 rows enqueued into invoices\n", "")
    found = [row[0] for row in rows(ready, "select payload from invoices order by id")]
    assert [json.loads(each) if each else None for each in found[:2]] == [{"number": 7}, [1, 2]]


def test_enqueue_takes_lines_of_stdin(ready: Terminal) -> None:
    """K1: empty lines are none; the order of lines is the order of ids."""
    said = ready.run("enqueue", "handlers.py:invoices", stdin='{"number": 1}\n\n{"number": 2}\n')
    assert said == (0, "2 rows enqueued into invoices\n", "")
    found = [json.loads(row[0])["number"] for row in rows(ready, "select payload from invoices order by id")]
    assert found == [1, 2]


def test_enqueue_writes_key_group_priority_and_due_time(ready: Terminal) -> None:
    """K1, R17: the due time is the database's."""
    flags = ["--key", "c-1", "--group", "work", "--priority", "3", "--after", "3600"]
    assert ready.run("enqueue", "handlers.py", "{}", *flags) == (0, "1 row enqueued into invoices\n", "")
    seconds = "round((julianday(retry_after) - julianday('now')) * 86400 / 60)"
    assert rows(ready, f"select partition_key, name, priority, {seconds} from invoices") == [("c-1", "work", 3, 60.0)]


@pytest.mark.parametrize(
    ("arguments", "stdin", "sentence"),
    [
        (
            ["{}", "nope"],
            "",
            "'nope' is not JSON (Expecting value: line 1 column 1 (char 0)). Quote a string: '\"text\"'",
        ),
        (["NaN"], "", "'NaN' is not JSON (JSON has no NaN). Quote a string: '\"text\"'"),
        ([], "{}\n\nnope\n", "line 3 of stdin, 'nope' is not JSON"),
    ],
)
def test_enqueue_refuses_what_is_not_json_and_inserts_nothing(
    ready: Terminal, arguments: list[str], stdin: str, sentence: str
) -> None:
    """K1: exit code 2; all rows or none."""
    said = ready.run("enqueue", "handlers.py:invoices", *arguments, stdin=stdin)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"shardrun: {sentence}")
    assert rows(ready, "select * from invoices") == []


def test_enqueue_wants_one_queue(terminal: Terminal) -> None:
    """K1: of several, the message names each as it would be written."""
    terminal.write("own.py", OWN)
    said = terminal.run("enqueue", "own.py", "{}")
    assert said == (2, "", "shardrun: own.py declares 2 queues; name one of them: own.py:mails, own.py:other\n")
    assert "own.py has no nothing. It has: " in terminal.run("enqueue", "own.py:nothing", "{}").err


@pytest.mark.parametrize(
    ("flag", "role"), [("--key", "partition_key"), ("--group", "group"), ("--after", "retry_after")]
)
def test_enqueue_refuses_a_flag_whose_role_the_queue_lacks(terminal: Terminal, flag: str, role: str) -> None:
    """A1: exit code 2, and how to add it."""
    terminal.write("own.py", OWN)
    terminal.run("ddl", "own.py", "--apply")
    said = terminal.run("enqueue", "own.py:mails", "{}", flag, "5")
    assert said.code == 2
    assert said.err == (
        f"shardrun: {flag} goes to the {role} column, which queue mails (own.py:4) does not name. "
        f'Add {role}="<column>" to Queue(...).\n'
    )


def test_a_row_that_the_database_refuses_is_a_sentence(ready: Terminal) -> None:
    """Contract 2: exit code 1, no traceback of the driver's."""
    connection = sqlite3.connect(ready.folder / "shardrun.db")
    connection.execute("create unique index one_key on invoices (partition_key)")
    connection.close()
    assert ready.run("enqueue", "handlers.py", "{}", "--key", "a").code == 0
    said = ready.run("enqueue", "handlers.py", "{}", "--key", "a")
    assert (said.code, said.out) == (1, "")
    assert said.err == "shardrun: SQLite refused: UNIQUE constraint failed: invoices.partition_key\n"


def test_enqueue_and_ddl_apply_may_create_a_file_and_check_may_not(terminal: Terminal) -> None:
    """Contract 2: elsewhere a missing file is exit code 3."""
    assert terminal.run("check", "handlers.py", "--dsn", "sqlite:///new.db").code == 3
    assert not (terminal.folder / "new.db").exists()
    assert terminal.run("enqueue", "handlers.py", "{}", "--dsn", "sqlite:///new.db").code == 4
    assert (terminal.folder / "new.db").exists()


def test_a_reader_that_goes_away_is_no_failure(terminal: Terminal) -> None:
    """Contract 2: `shardrun ddl handlers.py | head -1`."""
    pipe = ["sh", "-c", f"{terminal_command()} ddl handlers.py | head -1; exit 0"]
    said = terminal.run(program=pipe)
    assert said == (0, 'create table if not exists "invoices" (\n', "")


def terminal_command() -> str:
    from tests.cli.terminal import CONSOLE

    return CONSOLE[0]
