"""Odd places to run in: no terminal, closed or full streams, one core, a folder that cannot be written, other locales."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.cli.terminal import CONSOLE, HANDLERS, Said, Terminal
from tests.waiting import eventually

SHARDRUN = CONSOLE[0]
QUICK = "start handlers.py --until-empty -p 1 --poll-interval 0.05"
DONE = re.compile(r"(\d+) acked, 0 retried, 0 dropped, (\d+) dead, 0 lost, 0 later in ")

STRANGE = """
from shardrun import Queue

queue = Queue.standard("zeilen_ü")


@queue.handler(max_attempts=1)
def render(body: dict) -> None:
    if body["number"] == 13:
        raise ValueError("unglück ☃")
"""

QUIET = HANDLERS.replace("max_attempts=2", "max_attempts=1").replace("print(", "id(", 1).replace('"rendering", ', "")


@pytest.fixture
def filled(ready: Terminal) -> Terminal:
    """Give a folder whose queue has a row that ends well and one that goes to the dead letters; nothing is printed."""
    ready.write("handlers.py", QUIET)
    assert ready.run("enqueue", "handlers.py", '{"number": 7}', '{"number": 13}').code == 0
    return ready


def shell(terminal: Terminal, line: str) -> Said:
    """Run a line of shell in which $shardrun is the command."""
    return terminal.run(program=["sh", "-c", line.replace("$shardrun", SHARDRUN)])


STREAMS = {
    "closed stdout": f"$shardrun {QUICK} >&-",
    "closed stderr": f"$shardrun {QUICK} 2>&-",
    "all closed": f"$shardrun {QUICK} <&- >&- 2>&-",
    "stdout's reader gone": f"{{ $shardrun {QUICK}; echo $? >code; }} | true; exit $(cat code)",
    "stderr's reader gone": f"{{ {{ $shardrun {QUICK}; echo $? >code; }} 2>&1 >out | true; }}; cat out; exit $(cat code)",
}


@pytest.mark.parametrize("line", STREAMS.values(), ids=STREAMS)
def test_streams_that_are_closed_or_have_no_reader_stop_no_rows(filled: Terminal, line: str) -> None:
    """Contract 2: every row is worked off, exit code 0, and nothing of Python's own is printed."""
    said = shell(filled, line)
    assert said.code == 0
    assert filled.rows("select count(*) from invoices") == [(0,)]
    assert filled.rows("select count(*) from invoices_dead") == [(1,)]
    assert "Exception ignored" not in said.err
    assert "Error: " not in re.sub("ValueError: ", "", said.err)


def test_a_full_disk_behind_stdout_is_a_sentence(filled: Terminal) -> None:
    """Contract 2: exit code 1; the rows are settled all the same."""
    said = shell(filled, f"$shardrun {QUICK} >/dev/full")
    assert said.code == 1
    assert said.err.splitlines()[-1] == "shardrun: stdout could not be written: No space left on device."
    assert filled.rows("select count(*) from invoices") == [(0,)]


def test_a_log_that_nobody_reads_stops_no_rows(ready: Terminal) -> None:
    """H1: tracebacks beyond what the pipe holds are dropped; the coordinator waits about a second for the reader, once."""
    ready.write(
        "handlers.py", HANDLERS.replace('"unlucky"', '"x" * 15_000').replace("max_attempts=2", "max_attempts=1")
    )
    assert ready.run("enqueue", "handlers.py", stdin='{"number": 13}\n' * 12).code == 0
    reader, writer = os.pipe()
    with open("/dev/null", "wb") as nowhere:
        process = subprocess.Popen(
            [*CONSOLE, *QUICK.split()], cwd=ready.folder, env=ready.surroundings(), stdout=nowhere, stderr=writer
        )
    os.close(writer)
    assert process.wait(30) == 0
    os.close(reader)
    assert ready.rows("select count(*) from invoices_dead") == [(12,)]


def test_one_usable_core_is_one_child(filled: Terminal) -> None:
    """Contract 2: processes = usable cores, by affinity."""
    core = min(os.sched_getaffinity(0))
    said = shell(filled, f"taskset -c {core} $shardrun start handlers.py --until-empty")
    assert DONE.search(said.out)
    assert "connections  at most 2: coordinator 1 + 1 child x 1\n" in said.err


def test_a_folder_that_cannot_be_written_is_no_obstacle(filled: Terminal) -> None:
    """Contract 2: nothing is written beside the database; where that would be there, the sentence says why it is."""
    handlers, folder = f"{filled.folder}/handlers.py", filled.folder
    line = f"cd /proc && $shardrun start {handlers} --dsn sqlite:///{folder}/shardrun.db --until-empty -p 1"
    assert DONE.search(shell(filled, line).out)
    said = shell(filled, f"cd /proc && $shardrun ddl {handlers} --apply")
    assert (said.code, said.err) == (
        3,
        "shardrun: the SQLite file /proc/shardrun.db (the default, since --dsn, SHARDRUN_DSN, DATABASE_URL are unset) could "
        "not be opened: unable to open database file.\n",
    )


def test_a_folder_that_is_gone_is_a_sentence(terminal: Terminal) -> None:
    """Contract 2: exit code 2."""
    said = shell(terminal, "mkdir gone && cd gone && rmdir ../gone && $shardrun check handlers.py")
    assert said[:2] == (2, "")
    assert said.err.splitlines()[-1] == "shardrun: the working directory is gone. Go to one that is there: cd"


LOCALES = {
    "C": {"LC_ALL": "C"},
    "ascii streams": {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    "ascii throughout": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.parametrize("variables", LOCALES.values(), ids=LOCALES)
def test_names_that_the_locale_cannot_spell_are_files_like_others(tmp_path: Path, variables: dict[str, str]) -> None:
    """C38: blanks and umlauts in folder, module, table and error; text and JSON; the log stays JSON line by line."""
    folder = tmp_path / "my höme"
    folder.mkdir()
    terminal = Terminal(folder)
    terminal.write("fünf zeilen.py", STRANGE)
    dsn = ("--dsn", "sqlite:///zeilen ü.db")
    assert terminal.run("ddl", "fünf zeilen.py", "--apply", *dsn).code == 0
    assert terminal.run("enqueue", "fünf zeilen.py", '{"number": 7}', '{"number": 13}', *dsn).code == 0
    flags = ("start", "fünf zeilen.py", *dsn, "--until-empty", "-p", "1", "--log-format", "json")
    said = terminal.under(variables, *flags)
    assert said.code == 0, said.err
    done = DONE.search(said.out)
    assert done is not None
    assert done.groups() == ("1", "1")
    records = [json.loads(line) for line in said.err.splitlines()]
    (failure,) = [record for record in records if record["level"] == "error"]
    assert failure["message"] == "queue row 2 attempt 1: ValueError: unglück ☃. Moved to zeilen_ü_dead."
    assert (folder / "zeilen ü.db").exists()


def on_a_screen(terminal: Terminal, columns: int, *arguments: str, **variables: str) -> str:
    """Run a command on a terminal of its own, and give what it shows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {
        name: value for name, value in terminal.surroundings().items() if name not in ("COLUMNS", "NO_COLOR")
    }
    process = subprocess.Popen(
        [*CONSOLE, *arguments],
        cwd=terminal.folder,
        env={**environment, "TERM": "xterm", **variables},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = bytearray()

    def ended() -> bool:
        try:
            shown.extend(os.read(leader, 65536))
        except OSError:  # the other end is closed
            return True
        return False

    eventually(ended, 30)
    os.close(leader)
    process.wait(10)
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_has_colour_and_a_width(filled: Terminal) -> None:
    """K2, text 2.4: the banner and `check` fit 80 columns; levels have colour; NO_COLOR and files have none of it."""
    filled.write("handlers.py", filled.read("handlers.py").replace("max_attempts=1", "max_attempts=1, workers=2"))
    shown = on_a_screen(filled, 80, *QUICK.split())
    plain = re.sub(r"\x1b\[\d+m", "", shown)
    assert "\x1b[31mERROR\x1b[0m invoices row 2 attempt 1: ValueError: unlucky. Moved to invoices_dead.\n" in shown
    assert "\x1b[33m  warning: handler render " in shown
    banner = plain.partition(" ready in ")[0].splitlines()[:-1]
    assert len(banner) > 5
    assert max(map(len, banner)) <= 80 or str(filled.folder) in max(banner, key=len)
    assert (
        "  warning: handler render (handlers.py:7): workers=2 runs the rows of one\n      partition_key side" in plain
    )
    assert "\x1b" not in on_a_screen(filled, 120, "check", "handlers.py", NO_COLOR="1")
    assert "\x1b[33mwarn\x1b[0m  handler render" in on_a_screen(filled, 80, "check", "handlers.py")
    assert "\x1b" not in "".join(map(str, filled.run("check", "handlers.py")))


COMPLETED = {
    "shardrun st": ["start", "status"],
    "shardrun start --conn": ["--connection-limit"],
    "shardrun start --log-level w": ["warning"],
    "shardrun start --log-format ": ["text", "json"],
    "shardrun dead ": ["list", "park", "purge", "requeue"],
}


def test_a_shell_completes_commands_options_and_their_values(terminal: Terminal) -> None:
    """K1: click's own completion; HANDLERS and --config are completed as files."""
    for line, expected in COMPLETED.items():
        assert completed(terminal, line) == [("plain", each) for each in expected]
    assert (
        completed(terminal, "shardrun start han")
        == completed(terminal, "shardrun check --config han")
        == [("file", "han")]
    )
    said = terminal.run(_SHARDRUN_COMPLETE="bash_source")
    assert "complete -o nosort -F _shardrun_completion shardrun" in said.out


def completed(terminal: Terminal, line: str) -> list[tuple[str, str]]:
    """Ask for what bash would offer at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    said = terminal.under({"_SHARDRUN_COMPLETE": "bash_complete", **words})
    found = [tuple(each.split(",", 1)) for each in said.out.splitlines()]
    return [(kind, value) for kind, value in found]


def test_a_flag_beats_a_variable_beats_the_file_in_the_command_too(ready: Terminal) -> None:
    """Contract 2: by presence, in every command that has the setting; `handlers` stands in for HANDLERS."""
    ready.write(
        "shardrun.toml", 'handlers = ["handlers.py"]\nprocesses = 3\nconnection_limit = 30\ndsn = "sqlite:///none.db"\n'
    )
    dsn = {"SHARDRUN_DSN": "sqlite:///shardrun.db"}
    assert "at most 4 a replica, limit 30" in ready.under(dsn, "check").out
    assert "at most 6 a replica, limit 30" in ready.under({"SHARDRUN_PROCESSES": "5", **dsn}, "check").out
    assert (
        "at most 8 a replica, limit 9"
        in ready.under({"SHARDRUN_PROCESSES": "5", **dsn}, "check", "-p", "7", "--connection-limit", "9").out
    )
    assert "(from dsn in shardrun.toml) does not exist" in ready.run("check").err
    for command in (["ddl"], ["plan"], ["status"], ["start", "--until-empty", "-p", "1"]):
        assert ready.under(dsn, *command).code == 0, command


def test_a_secret_is_in_no_message_and_no_childs_arguments(terminal: Terminal) -> None:
    """Contract 2: a password in a flag, a variable, the file, a setting, or a DSN that cannot be read; text and JSON."""
    terminal.write("shardrun.toml", 'handlers = ["handlers.py"]\ndsn = ["postgresql://a:s3cret@b/c"]\n')
    ways: list[tuple[list[str], dict[str, str]]] = [
        ([], {}),
        (["--dsn", "postgresql://a:s3cret@127.0.0.1:9/c"], {}),
        (["--dsn", "postgresql://a@127.0.0.1:9/c?password=s3cret"], {}),
        (["--dsn", "postgresql://a:s3cret@127.0.0.1:nine/c", "--log-level", "debug"], {}),
        (["--log-format", "json"], {"SHARDRUN_DSN": "oracle://a:s3cret@b/c"}),
        ([], {"DATABASE_URL": "a:s3cret@b/c"}),
        (["--dsn"], {"DATABASE_URL": "postgresql://a:s3cret@b/c"}),
    ]
    for flags, variables in ways:
        said = terminal.under(variables, "start", *flags)
        assert said.code in (2, 3)
        assert said.err.startswith("shardrun: ")
        assert "s3cret" not in said.out + said.err
