"""`shardrun dead`: dead letters are listed, put back, run again, and purged."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.db.connect import database
from tests.cli.terminal import Said, Terminal
from tests.servers import PASSWORD

LETTERS = """
import os
from shardrun import DeadLetter, Delivery, Queue

mails = Queue.standard("mails")


@mails.handler(max_attempts=1, workers=1)
def send(mail: dict, delivery: Delivery) -> DeadLetter | None:
    if os.environ.get("BROKEN"):
        return DeadLetter(mail["why"])
    print("sent", delivery.id, "attempt", delivery.attempt)
    return None
"""

BURIED = (("a", "smtp refused"), ("b", "smtp refused"), ("b", "smtp refused"), ("c", "no such user"))


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def queue(request: pytest.FixtureRequest, terminal: Terminal) -> Terminal:
    """Give a folder whose queue has its tables in a database of each kind in turn."""
    terminal.write("handlers.py", LETTERS)
    if request.param == "postgres":
        terminal.environment["DATABASE_URL"] = request.getfixturevalue("postgres").new_database()
    elif request.param == "mariadb":
        server = request.getfixturevalue("mariadb")
        terminal.environment["DATABASE_URL"] = server.url("mysql", server.new_database())
    assert terminal.run("ddl", "handlers.py", "--apply").code == 0
    return terminal


@pytest.fixture
def letters(queue: Terminal) -> Terminal:
    """Give a folder whose queue has four dead letters."""
    rows = (f"({row}, '{{}}', 3, 0, '{key}', '{why}')" for row, (key, why) in enumerate(BURIED, 1))
    columns = "id, payload, attempt, priority, partition_key, last_error"
    execute(queue, f"insert into mails_dead ({columns}) values {', '.join(rows)}")
    return queue


def work_off(terminal: Terminal) -> Said:
    """Run a replica until the queue is empty."""
    return terminal.run("start", "handlers.py", "--until-empty", "-p", "1", "--poll-interval", "0.1")


def dead(terminal: Terminal, *arguments: str) -> Said:
    """Run a command on the dead letters; no secret is ever shown."""
    said = terminal.run("dead", arguments[0], "handlers.py:mails", *arguments[1:])
    assert PASSWORD not in said.out + said.err
    return said


def test_dead_letters_are_listed_by_error(letters: Terminal) -> None:
    """E3, text 2.5: the most frequent first, with one of their ids; a part of the error narrows it down."""
    assert dead(letters, "list") == (
        0,
        "rows  first due  last due  a row  error\n"
        "   3          -         -      1  smtp refused\n"
        "   1          -         -      4  no such user\n",
        "",
    )
    assert dead(letters, "list", "--error", "user").out.splitlines()[1:] == [
        "   1          -         -      4  no such user"
    ]
    assert dead(letters, "list", "--error", "SMTP") == (0, "no dead letters in table mails_dead\n", "")


def test_requeued_rows_run_again_in_a_replica(queue: Terminal) -> None:
    """E3: they keep their id and begin with attempt 1, those of other errors stay; `--dry-run` changes nothing."""
    for key, why in BURIED:
        queue.run("enqueue", "handlers.py:mails", f'{{"why": "{why}"}}', "--key", key)
    queue.environment["BROKEN"] = "1"
    assert "0 acked, 0 retried, 0 dropped, 4 dead" in work_off(queue).out
    del queue.environment["BROKEN"]
    assert dead(queue, "requeue", "--error", "smtp", "--dry-run") == (0, "would requeue 3 rows\n", "")
    assert dead(queue, "requeue", "--error", "smtp") == (0, "requeued 3 rows of 2 keys, attempts set to 0\n", "")
    said = work_off(queue)
    assert said.out.splitlines()[:3] == ["sent 1 attempt 1", "sent 2 attempt 1", "sent 3 attempt 1"]
    assert "3 acked, 0 retried, 0 dropped, 0 dead" in said.out
    assert dead(queue, "list").out.splitlines()[1:] == ["   1          -         -      4  no such user"]


def test_named_rows_are_requeued_and_what_cannot_be_is_said(letters: Terminal) -> None:
    """E3: a row whose id is in the queue again is left, an id that is no dead letter is named (exit code 1)."""
    execute(letters, "insert into mails (id, payload) values (2, '{}')")
    said = dead(letters, "requeue", "1", "2", "77")
    assert said == (
        1,
        "requeued 1 row of 1 key, attempts set to 0\n",
        "shardrun: 1 row was left, since mails has its id (or another unique value) again: 2. "
        "There is no row in table mails_dead with the id 77.\n",
    )
    assert dead(letters, "list", "--error", "smtp").out.splitlines()[1].split()[0] == "2"


def test_many_rows_go_batch_by_batch(letters: Terminal) -> None:
    """E3: more than one transaction's worth."""
    number = "with recursive n (i) as (select 11 union all select i + 1 from n where i < 2260)"
    if letters.environment.get("DATABASE_URL", "").startswith("mysql"):
        number = "with n (i) as (select seq from seq_11_to_2260)"
    columns = "id, payload, attempt, priority, last_error"
    execute(letters, f"insert into mails_dead ({columns}) {number} select i, '{{}}', 3, 0, 'many' from n")
    assert dead(letters, "requeue", "--error", "many") == (0, "requeued 2,250 rows, attempts set to 0\n", "")
    assert execute(letters, "select count(*), max(attempt), min(last_error) from mails") == [(2250, 0, "many")]
    assert execute(letters, "select count(*) from mails_dead") == [(4,)]


def test_a_failure_says_how_far_it_came(ready: Terminal) -> None:
    """E3: what earlier batches did stays done (exit code 1), and the rest is still there."""
    number = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 1500)"
    execute(ready, f"insert into invoices_dead (id, payload, attempt, priority) {number} select i, '{{}}', 3, 0 from n")
    execute(
        ready,
        "create trigger no before insert on invoices when new.id = 1200 begin select raise(abort, 'not this one'); end",
    )
    assert ready.run("dead", "requeue", "handlers.py:invoices", "--all") == (
        1,
        "",
        "shardrun: SQLite refused: not this one. 1,000 rows were done before; run it again for the rest.\n",
    )
    assert execute(ready, "select count(*) from invoices") == [(1000,)]
    assert execute(ready, "select count(*) from invoices_dead") == [(500,)]


def test_purged_rows_are_gone(letters: Terminal) -> None:
    """E3: by id, by error, or all of them."""
    assert dead(letters, "purge", "--all", "--dry-run") == (0, "would purge 4 rows\n", "")
    assert dead(letters, "purge", "2", "--error", "smtp") == (0, "purged 1 row\n", "")
    assert dead(letters, "purge", "1", "--error", "user") == (
        1,
        "purged 0 rows\n",
        "shardrun: There is no row with 'user' in its error in table mails_dead with the id 1.\n",
    )
    assert dead(letters, "purge", "--all") == (0, "purged 3 rows\n", "")
    assert dead(letters, "list").out == "no dead letters in table mails_dead\n"
    assert execute(letters, "select count(*) from mails") == [(0,)]


REFUSED = [
    (
        ["requeue", "handlers.py:invoices"],
        "dead requeue takes the ids of rows, --error TEXT, or --all. To see what there is: "
        "shardrun dead list handlers.py:invoices",
    ),
    (["purge", "handlers.py:invoices", "--error", ""], "dead purge takes the ids of rows, --error TEXT, or --all."),
    (["purge", "handlers.py:invoices", "1", "--all"], "dead purge takes ids or --all, not both."),
    (["requeue", "handlers.py:invoices", "x"], "'x' is not the id of a row: column id (role id) is INTEGER."),
    (["list", "handlers.py:nothing"], "handlers.py has no nothing."),
    (["list", "two.py"], "two.py declares 2 queues; name one of them: two.py:first, two.py:second"),
    (
        ["purge", "two.py:first", "--all"],
        "table lost also takes the dead letters of queue second, and nothing tells whose ",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"), REFUSED, ids=lambda value: None if isinstance(value, str) else value[1]
)
def test_what_is_not_clear_is_refused(ready: Terminal, arguments: list[str], sentence: str) -> None:
    """E3: one sentence, exit code 2, nothing done."""
    ready.write("two.py", TWO)
    said = ready.run("dead", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"shardrun: {sentence}")


TWO = """
from shardrun import Queue

first = Queue("first", id="id", attempt="attempt", locked_until="locked_until")
second = Queue("second", id="id", attempt="attempt", locked_until="locked_until")


@first.handler(max_attempts=3, dead_letter="lost")
def one(row: dict) -> None: ...


@second.handler(max_attempts=3, dead_letter="lost")
def two(row: dict) -> None: ...
"""

GROUPS = """
from shardrun import Queue

orders = Queue("orders", id="id", group="name", attempt="attempt", locked_until="locked_until")


@orders.handler(group="eu", max_attempts=3, dead_letter_group="gone")
def europe(row: dict) -> None: ...


@orders.handler(group="us", max_attempts=3, dead_letter_group="gone")
def america(row: dict) -> None: ...
"""


def test_rows_of_several_groups_go_back_to_the_one_that_is_named(terminal: Terminal) -> None:
    """E3: one dead group for two handlers tells not whose its rows were; the handler's name does. No last_error, no filter."""
    terminal.write("handlers.py", GROUPS)
    terminal.run("ddl", "handlers.py", "--apply")
    execute(terminal, "insert into orders (name, attempt) values ('gone', 3), ('gone', 3), ('us', 1)")
    said = terminal.run("dead", "requeue", "handlers.py:orders", "--all")
    assert said.code == 2
    assert said.err == (
        "shardrun: rows of the groups 'eu', 'us' lie together in group gone of orders, and nothing tells whose they were. "
        "Name the handler whose group they shall get, as HANDLERS:europe\n"
    )
    assert terminal.run("dead", "list", "handlers.py:orders").out.splitlines()[1:] == [
        "   2          -         -      1  (none was recorded)"
    ]
    said = terminal.run("dead", "purge", "handlers.py:orders", "--error", "x")
    assert said.code == 4
    assert said.err.startswith("shardrun: queue orders has no last_error role, so --error has nothing to look at. Name")
    said = terminal.run("dead", "requeue", "handlers.py:america", "--all")
    assert said == (0, "requeued 2 rows, attempts set to 0\n", "")
    assert execute(terminal, "select distinct name, attempt from orders order by attempt") == [("us", 0), ("us", 1)]


def execute(terminal: Terminal, text: str) -> list[Any]:
    """Run a statement on the folder's database, as anyone would."""
    target = database(terminal.environment.get("DATABASE_URL") or f"sqlite:///{terminal.folder}/shardrun.db")
    connection = target.connect("tests")
    try:
        cursor = connection.execute(text)
        return list(cursor.fetchall()) if cursor.description else []
    finally:
        target.close(connection)
