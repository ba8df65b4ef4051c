"""`shardrun plan`: what replicas may open, beside what the server has."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.insert import channel
from tests.cli.terminal import Terminal
from tests.servers import PASSWORD

ONE = """\
part         connections
coordinator            3
children           2 x 1
one replica            5   {limit}
"""


def test_plan_adds_up_one_replica_and_several_beside_the_servers_limit(terminal: Terminal, postgres: Any) -> None:
    """F3, text 2.5: what others use now, other roles too, and what would be left."""
    arguments = ["plan", "handlers.py", "-p", "2", "--dsn", postgres.new_database()]
    with postgres.admin(), postgres.admin():
        said = terminal.run(*arguments, "--replicas", "3", "--connection-limit", "12")
        assert (said.code, said.err) == (0, "")
        *lines, last = said.out.splitlines(keepends=True)
        assert "".join(lines) == ONE.format(limit="limit 12")
        head, used, left = last.split(", ")
        assert head == "3 replicas            15   server 97"
        others = int(used.removeprefix("others use ").removesuffix(" now"))
        assert others >= 2
        assert left == f"{97 - 15 - others} left\n"


@pytest.mark.parametrize(("server", "limit"), [("postgres", 97), ("mariadb", 151)])
def test_replicas_that_the_server_has_no_room_for_are_refused_by_the_last_line(
    terminal: Terminal, server: str, limit: int, request: pytest.FixtureRequest
) -> None:
    """F3: exit code 2, after the table; the sentence says how many fit."""
    made = request.getfixturevalue(server)
    dsn = made.url("mariadb", made.new_database()) if server == "mariadb" else made.new_database()
    said = terminal.run("plan", "handlers.py", "-p", "2", "--replicas", "40", "--dsn", dsn)
    assert said.code == 2
    assert said.out.splitlines()[-1].startswith(f"40 replicas          200   server {limit}, others use ")
    assert said.out.endswith(" too many\n")
    assert said.err.startswith(
        f"shardrun: 40 replicas could open 200 connections; the server takes {limit} and others use "
    )
    fitting = int(said.err.partition(". Use --replicas ")[2].partition(",")[0])
    assert limit // 2 < fitting * 5 <= limit
    assert PASSWORD not in said.out + said.err


def test_a_limit_that_one_replica_could_pass_is_refused_by_the_last_line(terminal: Terminal) -> None:
    """F2, F3, text 14: the sum is printed, then each change that would mend it (exit code 2)."""
    said = terminal.run("plan", "handlers.py", "-p", "4", "--connection-limit", "3")
    assert said == (
        2,
        "part         connections\ncoordinator            1\nchildren           4 x 1\none replica            5   limit 3\n"
        "the database is a file: it has no limit of connections\n",
        "shardrun: these settings could open 5 connections: coordinator 1 + 4 children x 1; the limit is 3 "
        "(--connection-limit). Use --processes 2, or raise the limit.\n",
    )


def test_plan_does_without_a_server_that_answers(terminal: Terminal) -> None:
    """F3: the server's own limit is then not known, and plan says so without the password."""
    said = terminal.run(
        "plan", "handlers.py", "-p", "2", "--replicas", "2", "--dsn", "postgresql://app:tiger@127.0.0.1:1/x"
    )
    assert (said.code, said.err) == (0, "")
    head = ONE.format(limit="no limit") + "2 replicas            10\n"
    assert said.out.startswith(f"{head}the server's own limit is not known: PostgreSQL at 127.0.0.1:1 (database x, ")
    assert "tiger" not in said.out


def test_the_listener_is_counted_and_check_names_a_channel_that_is_cut(terminal: Terminal, postgres: Any) -> None:
    """F3, F2, G2: one connection more; a name of more than 63 bytes is not the channel's."""
    terminal.environment["DATABASE_URL"] = postgres.new_database()
    table = "mails_" * 10
    terminal.write(
        "long.py",
        f'''from shardrun import Queue
mails = Queue.standard("{table}")
@mails.handler()
def mail(body: dict) -> None: ...
''',
    )
    said = terminal.run("plan", "long.py", "-p", "2", "--listen-notify")
    assert "listener               1\n" in said.out
    assert "one replica            6 " in said.out
    assert terminal.run("ddl", "long.py", "--apply").code == 0
    said = terminal.run("check", "long.py", "--listen-notify")
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    assert f"{table}: NOTIFY on channel {channel(table)}, as the whole name is too long" in text
    assert "NOTIFY" not in terminal.run("check", "long.py").out


def test_plan_refuses_what_start_would(terminal: Terminal) -> None:
    """F3: handlers that are not there, a pool that is too small, no replica at all (exit code 2)."""
    server = ["--dsn", "postgresql://app@127.0.0.1:1/x"]
    for arguments, sentence in [
        ([], "no handler module was named. Try: shardrun plan handlers.py "),
        (["handlers.py", *server, "--pool-size", "1"], "--pool-size 1 is too small"),
        (["handlers.py", "--replicas", "0"], "--replicas 0 is no number of replicas: give 1 or more."),
        (["handlers.py", "--listen-notify"], "--listen-notify: "),
    ]:
        said = terminal.run("plan", *arguments)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith(f"shardrun: {sentence}")


@pytest.mark.parametrize(("flags", "coordinator"), [((), 5), (("--pool-size", "8"), 8)])
def test_rows_that_keep_connections_make_the_coordinators_pool_larger(
    terminal: Terminal, flags: tuple[str, ...], coordinator: int
) -> None:
    """Contract 2: lanes + 1 under locks, unless it is given; a pool without a connection to spare is refused."""
    terminal.write(
        "locks.py", "from shardrun import Queue\nq = Queue('t', id='id')\n\n@q.handler(workers=4)\ndef run(row): ...\n"
    )
    dsn = ("--dsn", "postgresql://nobody@127.0.0.1:1/none", "-p", "2")
    assert f"coordinator            {coordinator}\n" in terminal.run("plan", "locks.py", *dsn, *flags).out
    small = terminal.run("plan", "locks.py", *dsn, "--pool-size", "1")
    assert (small.code, "it must have a connection for the handler whose rows hold one" in small.err) == (2, True)
