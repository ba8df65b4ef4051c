"""`handlers = [...]` of shardrun.toml stands in for HANDLERS in every command, a queue's own name for HANDLERS:QUEUE."""

from __future__ import annotations

import sqlite3

import pytest

from tests.cli.terminal import Terminal

MAILS = """
from shardrun import Queue

mails = Queue.standard("mails")


@mails.handler(max_attempts=1)
def send(mail: dict) -> None: ...
"""


@pytest.fixture
def configured(terminal: Terminal) -> Terminal:
    """Give a folder whose shardrun.toml names two handler modules, and whose SQLite file has their tables."""
    terminal.write("mailing.py", MAILS)
    terminal.write("shardrun.toml", 'handlers = ["handlers.py", "mailing.py"]\n')
    assert terminal.run("ddl", "--apply").code == 0
    return terminal


def bury(terminal: Terminal) -> None:
    """Put a dead letter into each queue's."""
    connection = sqlite3.connect(terminal.folder / "shardrun.db")
    with connection:
        for table in ("invoices_dead", "mails_dead"):
            connection.execute(f"insert into {table} (id, payload, priority, last_error) values (1, '{{}}', 0, 'no')")
    connection.close()


def test_every_command_takes_its_handlers_from_the_file(configured: Terminal) -> None:
    """Contract 2: check, plan, status, ddl, start, enqueue and dead; a queue goes by its name, with a colon or without."""
    assert "2 queues, 2 handlers" in configured.run("check").out
    assert configured.run("plan", "-p", "2").code == 0
    assert configured.run("enqueue", "invoices", '{"number": 7}').out == "1 row enqueued into invoices\n"
    assert configured.run("enqueue", ":mails", "{}", "{}").out == "2 rows enqueued into mails\n"
    assert configured.run("status").out.count("invoices") == 2
    bury(configured)
    assert configured.run("dead", "list", "mails").out.startswith("rows")
    assert configured.run("dead", "requeue", ":mails", "--all").err.startswith("shardrun: 1 row was left")
    assert configured.run("dead", "purge", "invoices", "1").out == "purged 1 row\n"
    assert configured.run("start", "--until-empty", "-p", "1").out.startswith("rendering 7\n3 acked")


def test_a_variable_names_the_handlers_as_well_and_one_queue_needs_no_name(configured: Terminal) -> None:
    """Contract 2: SHARDRUN_HANDLERS beats the file; a handler's name finds its queue."""
    configured.environment["SHARDRUN_HANDLERS"] = "mailing.py"
    assert configured.run("enqueue", stdin="{}\n{}\n").out == "2 rows enqueued into mails\n"
    assert configured.run("enqueue", "send", "{}").out == "1 row enqueued into mails\n"
    assert configured.run("dead", "list").out == "no dead letters in table mails_dead\n"
    assert "mailing.py has no queue invoices." in configured.run("enqueue", "invoices", "{}").err


def test_a_queue_of_the_configuration_goes_before_a_folder_or_a_module_of_its_name(configured: Terminal) -> None:
    """Contract 2: a path or an import path is still one; so is a name that no configured queue has."""
    for name, table in (("mails", "of_the_folder"), ("posts", "of_posts")):
        (configured.folder / name).mkdir()
        configured.write(f"{name}/own.py", MAILS.replace('"mails"', f'"{table}"'))
        assert configured.run("ddl", name, "--apply").code == 0
    assert configured.run("enqueue", "mails", "{}").out == "1 row enqueued into mails\n"
    assert configured.run("enqueue", "mails/", "{}").out == "1 row enqueued into of_the_folder\n"
    assert configured.run("enqueue", "posts", "{}").out == "1 row enqueued into of_posts\n"
    assert configured.run("enqueue", "mailing:mails", "{}").out == "1 row enqueued into mails\n"
    assert configured.run("enqueue", "mailing", "{}").out == "1 row enqueued into mails\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["enqueue", "invocies", "{}"], "handlers.py mailing.py has no queue invocies. Near it: invoices"),
        (["enqueue", ":x", "{}"], "handlers.py mailing.py has no queue x. It has: invoices, mails"),
        (["enqueue", "random", "{}"], "handlers.py mailing.py has no queue random. It has: invoices, mails"),
        (["enqueue", '{"a": 1}'], 'handlers.py mailing.py has no queue {"a": 1}. It has: invoices, mails'),
        (["enqueue"], "handlers.py mailing.py declares 2 queues; name one of them: invoices, mails"),
        (["dead", "purge", "17", "18"], "handlers.py mailing.py has no queue 17. It has: invoices, mails"),
        (["dead", "list"], "handlers.py mailing.py declares 2 queues; name one of them: invoices, mails"),
        (["dead", "requeue", "gone.py:mails", "1"], "gone.py does not exist in FOLDER."),
    ],
)
def test_a_name_that_is_no_queues_is_one_sentence(configured: Terminal, arguments: list[str], sentence: str) -> None:
    """Contract 2: exit code 2, with the names that there are."""
    assert configured.run(*arguments) == (2, "", f"shardrun: {sentence.replace('FOLDER', str(configured.folder))}\n")


def test_two_queues_of_one_name_are_told_apart_by_their_files(configured: Terminal) -> None:
    """Contract 2: and a module that fails to import says so."""
    configured.write("mailing.py", MAILS.replace("mails", "invoices"))
    assert configured.run("enqueue", "invoices", "{}").err == (
        "shardrun: handlers.py mailing.py declares 2 queues; name one of them: handlers.py:invoices, mailing.py:invoices\n"
    )
    configured.write("broken.py", "import no_such_thing\n")
    assert "broken" in configured.run("enqueue", "broken", "{}").err
    assert "No module named 'no_such_thing'" in configured.run("enqueue", "broken", "{}").err


def test_without_configured_handlers_a_name_alone_is_a_module(terminal: Terminal) -> None:
    """Contract 2: and no argument at all says what to give, or to write into the file."""
    assert terminal.run("enqueue", "handlers", "{}").err.startswith(
        "shardrun: queue invoices (handlers.py:4): there is no"
    )
    for arguments in (["enqueue"], ["dead", "list"], ["enqueue", ":invoices"]):
        said = terminal.run(*arguments)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("shardrun: no handler module was named. Try: shardrun ")
