"""What the command says of itself, and of what it cannot understand."""

from __future__ import annotations

import re

import pytest

from shardrun.cli import main
from tests.cli.terminal import CONSOLE, MODULE, Terminal

HEAD = """\
Usage: shardrun [OPTIONS] COMMAND [ARGS]...

  Work off rows of your own SQL tables on all cores, in order per key.

  HANDLERS is a file (handlers.py), a folder (jobs/) or an import path (pkg.mod, pkg.mod:invoices). The database is
  --dsn, SHARDRUN_DSN or DATABASE_URL, else sqlite:///shardrun.db. Each option has a SHARDRUN_* variable and a key in
  shardrun.toml.

Run:
  start  Run one replica: claim rows and hand them to the children.
"""

TAIL = """
Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Exit codes: 0 done, 1 failed while running, 2 usage or import, 3 no database, 4 the table does not fit.
"""


@pytest.mark.parametrize("program", [CONSOLE, MODULE], ids=["console script", "python -m"])
def test_help_lists_the_commands_that_exist_and_the_exit_codes(terminal: Terminal, program: list[str]) -> None:
    """K1, text 2.3: from the console script and from `python -m shardrun` alike; each command once, on one line."""
    said = terminal.run("--help", program=program)
    text = said.out.replace("python -m shardrun", "shardrun")
    assert (said.code, said.err) == (0, "")
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)
    assert sorted(re.findall(r"^  ([a-z]+) +[A-Z]", text, re.MULTILINE)) == sorted(main.commands)


def test_the_command_alone_shows_its_help_as_an_error(terminal: Terminal) -> None:
    """K1: nothing was asked for (exit code 2)."""
    assert terminal.run() == (2, "", terminal.run("--help").out)


def test_version_is_one_line(terminal: Terminal) -> None:
    """K1: for people and for bug reports."""
    assert terminal.run("--version") == (0, "shardrun 0.1.0\n", "")


def test_help_of_start_names_every_flag_and_ends_with_an_example_and_the_signals(terminal: Terminal) -> None:
    """Contract 2, text 2.3: every flag of the contract that works; H5: the signals."""
    said = terminal.run("start", "-h")
    assert said.code == 0
    for flag in (
        "--dsn DSN",
        "-p, --processes N",
        "--pool-size N",
        "--child-pool-size N",
        "--connection-limit N",
        "--until-empty",
        "--drain-timeout S",
        "--poll-interval S",
        "--log-level L",
        "--log-format [text|json]",
        "--config FILE",
    ):
        assert f"\n  {flag} " in said.out
    assert said.out.endswith("SIGHUP replaces the children one by one with fresh code.\n")
    assert "\n  Example: shardrun start handlers.py --connection-limit 12\n" in said.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bogus"], "No such command 'bogus'. Try: shardrun --help"),
        (["start", "--bogus"], "No such option '--bogus'. Try: shardrun start --help"),
        (["start", "-p", "x"], "'x' is not a valid integer. Try: shardrun start --help"),
        (["start", "--dsn"], "Option '--dsn' requires an argument. Try: shardrun --help"),
        (["start", "--log-format", "xml"], "'xml' is not one of 'text', 'json'. Try: shardrun start --help"),
        (["workflow"], "No such command 'workflow'. Try: shardrun --help"),
    ],
)
def test_what_cannot_be_understood_is_one_sentence(terminal: Terminal, arguments: list[str], sentence: str) -> None:
    """Contract 2: exit code 2, on stderr."""
    said = terminal.run(*arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("shardrun: ")
    assert said.err.endswith(f"{sentence}\n")
