"""The mistakes of the first hour: exit code, stream, and the sentence with its way out."""

from __future__ import annotations

import pytest

from tests.cli.terminal import Terminal

MANY = """
from shardrun import Queue

a = Queue("a_table", id="id", payload="payload", locked_until="locked_until")
b = Queue("b_table", id="id", payload="payload")


@a.handler(workers_by_key=4, max_attempts=3)
def one(body: dict) -> None: ...


@b.handler()
def two(body: dict) -> None: ...
"""


def only(said: tuple[int, str, str], code: int) -> str:
    """Give the one sentence that a command ended with: on stderr, with this exit code, and no traceback."""
    assert said[:2] == (code, "")
    assert said[2].startswith("shardrun: ")
    assert said[2].count("\n") == 1
    return said[2].removeprefix("shardrun: ").rstrip("\n")


@pytest.mark.parametrize("command", ["start", "check"])
def test_no_handler_module(terminal: Terminal, command: str) -> None:
    """Text 1: exit code 2."""
    assert only(terminal.run(command), 2).startswith("no handler module was named. Try: shardrun start handlers.py")


def test_a_wrong_path_names_what_is_near_it(terminal: Terminal) -> None:
    """Text 2: exit code 2."""
    sentence = only(terminal.run("start", "handler.py"), 2)
    assert sentence == f"handler.py does not exist in {terminal.folder}. Near it: handlers.py"


def test_an_import_that_fails_names_line_and_reason(terminal: Terminal) -> None:
    """Text 3: exit code 2, without a traceback."""
    terminal.write("broken.py", "import os\n\nimport no_such_library\n")
    sentence = only(terminal.run("start", "broken.py"), 2)
    assert sentence.startswith('broken.py could not be imported: line 3, "import no_such_library": ModuleNotFoundError')


def test_a_queue_without_a_handler(terminal: Terminal) -> None:
    """Text 4: exit code 2."""
    terminal.write("bare.py", 'from shardrun import Queue\ninvoices = Queue.standard("invoices")\n')
    assert "declares nothing to run" in only(terminal.run("start", "bare.py"), 2)


@pytest.mark.parametrize("command", ["start", "check"])
def test_no_database_named_and_no_default_file(terminal: Terminal, command: str) -> None:
    """Text 5: exit code 3, and no file is created."""
    sentence = only(terminal.run(command, "handlers.py"), 3)
    assert sentence == (
        "no database was named (--dsn, SHARDRUN_DSN, DATABASE_URL are unset) and the default, "
        f"{terminal.folder}/shardrun.db, does not exist. Set one, or create it: shardrun ddl handlers.py --apply"
    )
    assert not (terminal.folder / "shardrun.db").exists()


def test_an_odd_scheme(terminal: Terminal) -> None:
    """Text 6: exit code 2, and where the DSN came from."""
    said = terminal.run("check", "handlers.py", DATABASE_URL="oracle://scott:tiger@db")
    sentence = only(said, 2)
    assert sentence.startswith("oracle://db (from DATABASE_URL) is not a database that shardrun speaks.")
    assert "tiger" not in sentence


def test_a_server_that_is_away(terminal: Terminal) -> None:
    """Text 8: exit code 3; host, port, database, user and where the DSN came from, and never the password."""
    sentence = only(terminal.run("check", "handlers.py", "--dsn", "postgresql://app:hush@127.0.0.1:9/shop"), 3)
    assert sentence.startswith("PostgreSQL at 127.0.0.1:9 (database shop, user app, from --dsn) did not answer: ")
    assert "hush" not in sentence


@pytest.mark.parametrize("command", [("start",), ("check",), ("enqueue", "{}")])
def test_a_missing_table(terminal: Terminal, command: tuple[str, ...]) -> None:
    """Text 9: exit code 4 in every command that needs it."""
    terminal.write("empty.db", "")
    name, *payloads = command
    sentence = only(terminal.run(name, "handlers.py", *payloads, "--dsn", "sqlite:///empty.db"), 4)
    assert sentence == (
        f"queue invoices (handlers.py:4): there is no table invoices in {terminal.folder}/empty.db. "
        "To create it: shardrun ddl handlers.py --apply"
    )


def test_a_connection_limit_that_is_too_small(ready: Terminal) -> None:
    """Text 14, F2: exit code 2, with the sum."""
    sentence = only(ready.run("start", "handlers.py", "-p", "4", "--connection-limit", "3"), 2)
    assert sentence.startswith(
        "these settings could open 5 connections: coordinator 1 + 4 children x 1; the limit is 3"
    )


def test_several_problems_are_numbered_and_the_exit_code_is_the_smallest(terminal: Terminal) -> None:
    """A5, contract 2: all problems at once; flags (2) and tables (4) together end with 2."""
    terminal.write("many.py", MANY)
    said = terminal.run("check", "many.py", "--dsn", "sqlite:///none.db", "--connection-limit", "1", "-p", "1")
    lines = said.err.splitlines()
    assert (said.code, said.out) == (2, "")
    assert lines[0] == f"shardrun: {len(lines) - 1} problems, nothing was started"
    assert [line[:5] for line in lines[1:]] == [f"  {number}. " for number in range(1, len(lines))]
    for part in (
        "workers_by_key=4",
        "nowhere to put a row",
        "no column to count attempts",
        "none.db",
        "the limit is 1",
    ):
        assert sum(part in line for line in lines) == 1, part


def test_problems_of_the_tables_alone_end_with_four(terminal: Terminal) -> None:
    """A5: the SQLite file is there, nothing in it fits."""
    terminal.write("many.py", MANY)
    terminal.write("empty.db", "")
    said = terminal.run("check", "many.py", "--dsn", "sqlite:///empty.db")
    assert said.code == 4
    assert "there is no table a_table" in said.err
    assert 'SQLite cannot lock rows. Give it a lease column: Queue("b_table", id="id", locked_until=' in said.err


def test_settings_that_are_wrong_are_listed_at_once(ready: Terminal) -> None:
    """Contract 2: flags, variables and the file, each by its name; unknown keys are errors."""
    ready.write("shardrun.toml", 'handlers = ["handlers.py"]\nproceses = 2\n')
    said = ready.run("check", "-p", "0", SHARDRUN_LOG_LEVEL="loud")
    assert said.code == 2
    assert said.err.startswith("shardrun: 3 problems, nothing was started\n")
    assert "shardrun.toml: there is no setting proceses. Near it: processes" in said.err
    assert "--processes: expected a whole number, 1 or more, got 0." in said.err
    assert "SHARDRUN_LOG_LEVEL: expected debug, info, warning or error, got loud." in said.err


def test_listening_is_refused_where_nothing_can_be_heard(ready: Terminal) -> None:
    """G2: a file tells nobody of a commit; one sentence, with the way out."""
    for command in ("start", "check", "plan"):
        said = only(ready.run(command, "handlers.py", "--listen-notify"), 2)
        assert said.startswith("--listen-notify: SQLite ")
        assert said.endswith(
            " has no NOTIFY, PostgreSQL alone has. Leave it out: rows are found within --poll-interval (1 s), and at once "
            "what handlers insert in delivery.connection()."
        )


def test_a_handler_module_is_named_by_the_file_in_every_command(ready: Terminal) -> None:
    """Contract 2: `handlers = [...]` stands in for HANDLERS."""
    ready.write("shardrun.toml", 'handlers = ["handlers.py"]\n')
    assert ready.run("check").code == 0
    assert ready.run("ddl").out.startswith('create table if not exists "invoices"')
    assert ready.run("start", "--until-empty", "-p", "1").code == 0


def test_a_child_that_dies_while_it_loads_is_a_sentence_too(ready: Terminal) -> None:
    """Contract 2: the coordinator imported the module, the child cannot (exit code 2)."""
    ready.write("only_once.py", ready.read("handlers.py") + '\nimport sys\nif "-P" in sys.orig_argv: sys.exit(7)\n')
    said = ready.run("start", "only_once.py", "-p", "1")
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert said.err.splitlines()[-1].startswith("shardrun: ")
