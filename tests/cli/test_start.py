"""`shardrun start` as a user sees it: banner, log, summary, exit codes, and no password anywhere."""

from __future__ import annotations

import json
import re
import signal

import psutil
import pytest

from tests.cli.terminal import Terminal
from tests.servers import PASSWORD, Postgres
from tests.waiting import eventually

SUMMARY = re.compile(
    r"(\d+) acked, (\d+) retried, (\d+) dropped, (\d+) dead, (\d+) lost, (\d+) later in [\d.]+ s \([\d,]+ rows/s\)\n"
)
QUICK = ("--until-empty", "-p", "1", "--poll-interval", "0.05")


def fill(terminal: Terminal, *numbers: int, **flags: str) -> None:
    """Enqueue invoices."""
    payloads = [json.dumps({"number": number}) for number in numbers]
    more = [part for name, value in flags.items() for part in (f"--{name}", value)]
    assert terminal.run("enqueue", "handlers.py", *payloads, *more).code == 0


def test_the_summary_is_the_last_line_of_stdout_and_logs_are_on_stderr(ready: Terminal) -> None:
    """Contract 2, text 2.4: handlers' print passes through; dead letters are no failure (exit code 0)."""
    fill(ready, 7, 13)
    ready.write("handlers.py", ready.read("handlers.py").replace("max_attempts=2", "max_attempts=1"))
    said = ready.run("start", "handlers.py", *QUICK)
    assert said.code == 0
    *printed, summary = said.out.splitlines(keepends=True)
    assert sorted(printed) == ["rendering 13\n", "rendering 7\n"]
    match = SUMMARY.fullmatch(summary)
    assert match is not None, summary
    assert match.groups() == ("1", "0", "0", "1", "0", "0")
    assert "ERROR invoices row 2 attempt 1: ValueError: unlucky. Moved to invoices_dead." in said.err
    assert "rendering" not in said.err


def test_rows_that_are_due_later_are_counted_and_not_waited_for(ready: Terminal) -> None:
    """Contract 2: `later`; rows that this run itself put off are waited for."""
    fill(ready, 1)
    fill(ready, 2, 3, after="3600")
    source = ready.read("handlers.py").replace("max_attempts=2", "max_attempts=2, retry=lambda attempt, error: 0.1")
    ready.write("handlers.py", source)
    fill(ready, 13)
    match = SUMMARY.search(ready.run("start", "handlers.py", *QUICK).out)
    assert match is not None
    assert match.groups() == ("1", "1", "0", "1", "0", "2")


def test_an_empty_table_ends_at_once(ready: Terminal) -> None:
    """Contract 2: nothing due, nothing in work."""
    match = SUMMARY.fullmatch(ready.run("start", "handlers.py", *QUICK).out)
    assert match is not None
    assert match.groups() == ("0",) * 6


def test_the_banner_says_what_runs_on_what(ready: Terminal) -> None:
    """Text 2.4: version, replica, Python, database and where it was named; each queue; the connections."""
    said = ready.run("start", "handlers.py", "--until-empty", "-p", "2", "--connection-limit", "12")
    first, queue, connections = said.err.splitlines()[:3]
    assert re.fullmatch(
        rf"shardrun 0\.1\.0   replica \S+-\d+   Python \S+   SQLite \S+ at {ready.folder}/shardrun\.db \(default\)",
        first,
    )
    assert queue == (
        "  invoices   invoices   lease 30 s   2 lanes by partition_key on 2 children   2 attempts, then invoices_dead"
    )
    assert connections == "  connections  at most 3 of 12: coordinator 1 + 2 children x 1"


def test_the_banner_aligns_its_queues(terminal: Terminal) -> None:
    """Text 2.4: one column each; the timeout that a transaction has on SQLite is said, too."""
    source = terminal.read("handlers.py")
    more = '\n\nm = Queue.standard("m")\n\n@m.handler(workers=1, transactional=True)\ndef send(m: str): ...\n'
    terminal.write("handlers.py", source + more)
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    lines = terminal.run("start", "handlers.py", *QUICK).err.splitlines()[1:3]
    assert lines == [
        "  invoices   invoices   lease 30 s                                1 lane by partition_key   2 attempts, then "
        "invoices_dead",
        "  m          m          lease 30 s, transactional, timeout 12 s   1 lane                    no limit of attempts",
    ]
    assert "m: m, 10 columns, lease 30 s, transactional, timeout 12 s, " in terminal.run("check", "handlers.py").out


def test_json_logs_are_one_object_a_line_from_the_first_line_on(ready: Terminal) -> None:
    """K2: the banner too; a failure carries queue, row, attempt and trace as fields."""
    fill(ready, 13)
    ready.write("handlers.py", ready.read("handlers.py").replace("max_attempts=2", "max_attempts=1"))
    said = ready.run("start", "handlers.py", *QUICK, "--log-format", "json")
    records = [json.loads(line) for line in said.err.splitlines()]
    assert all({"time", "level", "message"} <= record.keys() for record in records)
    assert records[0]["message"].startswith("shardrun 0.1.0   replica ")
    (failure,) = [record for record in records if record["level"] == "error"]
    assert {name: failure[name] for name in ("queue", "row", "attempt")} == {
        "queue": "invoices",
        "row": "1",
        "attempt": 1,
    }
    assert failure["trace"].rstrip().endswith("ValueError: unlucky")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", failure["time"])


def test_a_log_level_hides_what_is_below_it(ready: Terminal) -> None:
    """K2: the banner stays."""
    said = ready.run("start", "handlers.py", *QUICK, "--log-level", "error")
    assert "ready" not in said.err
    assert said.err.startswith("shardrun 0.1.0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_ends_well(ready: Terminal, number: signal.Signals) -> None:
    """H5: exit code 0; the totals are in the log, stdout holds no summary without --until-empty."""
    fill(ready, 1)
    process = ready.start("handlers.py", "-p", "1", "--poll-interval", "0.05")
    eventually(lambda: "rendering 1" in ready.read("stdout"))
    process.send_signal(number)
    assert process.wait(20) == 0
    assert re.search(r"draining: \d+ in work, \d+ given back, no new claims", ready.read("stderr"))
    assert re.search(r"stopped: 1 acked, 0 retried", ready.read("stderr"))
    assert ready.read("stdout") == "rendering 1\n"


def test_handlers_that_are_ended_by_the_drain_timeout_make_it_a_failure(ready: Terminal) -> None:
    """H5: exit code 1, and the log says how far it came."""
    waits = "\n    import threading\n    threading.Event().wait(60)\n    if "
    ready.write("handlers.py", ready.read("handlers.py").replace("\n    if ", waits))
    fill(ready, 1)
    process = ready.start("handlers.py", "-p", "1", "--drain-timeout", "0.1")
    eventually(lambda: "rendering 1" in ready.read("stdout"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    assert "stopped: 0 acked" in ready.read("stderr")


def test_a_password_is_never_shown(terminal: Terminal, postgres: Postgres) -> None:
    """Contract 2: not in the banner, the log, a handler's failure, a stop, nor any process's arguments."""
    dsn = postgres.new_database()
    password = PASSWORD if PASSWORD in dsn else dsn.partition("://")[2].partition("@")[0].partition(":")[2]
    terminal.environment["SHARDRUN_DSN"] = dsn
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    fill(terminal, 13)
    process = terminal.start("handlers.py", "-p", "2", "--poll-interval", "0.05", "--log-level", "debug")
    eventually(lambda: "unlucky" in terminal.read("stderr"))
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 2
    arguments = [part for each in (psutil.Process(process.pid), *family) for part in each.cmdline()]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    text = terminal.read("stderr") + terminal.read("stdout") + " ".join(arguments)
    assert "PostgreSQL " in text
    assert "(SHARDRUN_DSN)" in text
    assert not password or password not in text


def test_a_password_is_not_in_what_a_wrong_database_or_role_says(terminal: Terminal, postgres: Postgres) -> None:
    """Contract 2: exit code 3; the server's answer names neither."""
    dsn = postgres.new_database()
    for wrong in (dsn + "_not_there", dsn.replace("postgresql://app:", "postgresql://nobody:"), dsn + "?sslmode=odd"):
        said = terminal.run("check", "handlers.py", DATABASE_URL=wrong)
        assert said.code in (2, 3)
        assert said.err.startswith("shardrun: ")
        assert "Traceback" not in said.err
        assert PASSWORD not in said.err


def test_what_a_server_refuses_to_create_is_a_sentence(terminal: Terminal, postgres: Postgres) -> None:
    """A6: a schema that is not there; no traceback of the driver's."""
    terminal.write("far.py", 'from shardrun import Queue\nq = Queue.standard("nowhere.q")\n')
    said = terminal.run("ddl", "far.py", "--apply", "--dsn", postgres.new_database())
    assert said.code in (1, 4)
    assert said.err == 'shardrun: PostgreSQL refused: schema "nowhere" does not exist\n'


def test_check_names_the_servers_database(terminal: Terminal, postgres: Postgres) -> None:
    """A5: a missing table is exit code 4 on a server, too."""
    said = terminal.run("check", "handlers.py", "--dsn", postgres.new_database())
    assert said.code == 4
    assert re.search(
        r"there is no table invoices in database \S+\. To create it: shardrun ddl handlers\.py --apply", said.err
    )
