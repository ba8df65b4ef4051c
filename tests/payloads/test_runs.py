"""Payloads in a real replica: stored bytes that nothing changes, bodies that do not fit, rows of a SELECT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.process.site import Site

TRICKY = '{"big": 1180591620717411303424,  "cents": 1.10, "minus": -0.0, "twice": 1, "twice": 2}'

STORED: dict[str, dict[str, list[Any]]] = {
    "postgres": {
        "pg_catalog.json": [TRICKY, '{"nul": "\\u0000"}', "null", '""', "{}", None],
        "jsonb": [TRICKY, "null", '""', "{}", None],
        "text": ["naïve 🦆 \u0301", "", " ", None],
        "bytea": [bytes(range(256)), b"", None],
        "text[]": [["a", None, '"'], [], None],
        "mood": ["glad", None],
    },
    "sqlite": {
        "json": [TRICKY, '{"nul": "\\u0000"}', "null", "1.10", 7, "{}", None],
        "json text": [TRICKY, "1.10", '""', "{}", None],
        "text": ["naïve 🦆 \u0301", "nul \0 here", "", None],
        "blob": [bytes(range(256)), b"", "text", 5, None],
        "": [1, "1", 1.5, b"1", None],
    },
}
"""Payload columns and what is stored in them."""

COLUMNS = (
    "id {key} primary key, payload {payload}, attempt int, retry_after {time}, locked_until {time}, last_error text"
)

RETRYING = """
from shardrun import Backoff, Queue, Retry
BEGAN = {}

def declare(number):
    queue = Queue(f"q{number}", id="id", payload="payload", attempt="attempt", retry_after="retry_after",
                  locked_until="locked_until", last_error="last_error")

    @queue.handler(max_attempts=3, dead_letter=f"q{number}_dead", retry=Backoff(first=0, jitter=0))
    def handle(body, delivery: "Delivery"):
        if delivery.attempt == 2:
            return Retry()
        raise ValueError(f"attempt {delivery.attempt}")
    handle.__name__ = f"handle{number}"
    return queue

from shardrun import Delivery
"""


def create(site: Site, payload: str, *tables: str) -> None:
    """Create tables whose columns are named after their roles."""
    key, time = ("bigint", "timestamptz") if site.dialect == "postgres" else ("integer", "timestamp")
    for table in tables:
        site.run(f"create table {table} ({COLUMNS.format(key=key, payload=payload, time=time)})")


def prints(site: Site, table: str) -> list[tuple[Any, ...]]:
    """Take the fingerprint of each stored payload."""
    if site.dialect == "sqlite":
        return site.run(f"select id, typeof(payload), quote(payload), hex(payload) from {table} order by id")
    return site.run(f"select id, md5(payload::text), payload is null from {table} order by id")


def test_stored_bytes_are_the_same_after_retries_and_in_the_dead_letters(site: Site) -> None:
    """C98: three attempts, then dead: no payload of any type is written anew."""
    if site.dialect == "postgres":
        site.run("create type mood as enum ('sad', 'glad')")
    lines = [RETRYING]
    before = []
    for number, (column, values) in enumerate(STORED[site.dialect].items()):
        create(site, column, f"q{number}", f"q{number}_dead")
        for row, value in enumerate(values, 1):
            site.run(f"insert into q{number} (id, payload) values (?, ?)", row, value)
        before.append(prints(site, f"q{number}"))
        lines.append(f"q{number} = declare({number})")
    run(site, "\n".join(lines))
    for number, (column, seen) in enumerate(zip(STORED[site.dialect], before, strict=True)):
        assert prints(site, f"q{number}_dead") == seen, column
        assert site.run(f"select distinct attempt, last_error from q{number}_dead") == [(3, "ValueError: attempt 3")]
        assert site.count(f"q{number}") == 0


POLICIES = """
from dataclasses import dataclass
from shardrun import Backoff, DeadLetter, Drop, Queue, Retry

@dataclass
class Invoice:
    number: int

def declare(name, **settings):
    queue = Queue(name, id="id", payload="payload", attempt="attempt", retry_after="retry_after",
                  locked_until="locked_until", last_error="last_error")

    @queue.handler(**settings)
    def handle(invoice: Invoice):
        raise AssertionError("it was called")
    handle.__name__ = f"{name}_handler"
    return queue

usual = declare("usual", dead_letter="usual_dead")
counting = declare("counting", max_attempts=2, dead_letter="counting_dead", on_decode_error=Retry(after=0))
dropping = declare("dropping", on_decode_error=Drop())
dead = declare("dead", dead_letter="dead_dead", on_decode_error=DeadLetter())
waiting = declare("waiting", retry=Backoff(first=60, jitter=0))
"""


def test_a_body_that_does_not_fit_goes_by_the_decode_policy(site: Site) -> None:
    """A4: drop, retry after a delay, dead letter, and by default dead letter or back-off; each says why; attempts count."""
    for table in ("usual", "counting", "dropping", "dead", "waiting"):
        create(site, "text", table, f"{table}_dead")
        site.run(f"insert into {table} (id, payload) values (1, ?)", '{"number": "seven"}')
    replica = run(
        site, POLICIES, until=("waiting row 1 attempt 1", "counting row 1 attempt 2", "usual row", "dead row")
    )
    why = "the payload does not fit Invoice: Expected int, got str, at $.number"
    for table, attempts in (("usual", 1), ("counting", 2), ("dead", 1)):
        assert site.run(f"select id, attempt, last_error from {table}_dead") == [(1, attempts, why)]
        assert f"{table} row 1 attempt {attempts}: {why}. Moved to {table}_dead." in replica
    assert site.count("dropping") == 0
    assert f"dropping row 1 attempt 1: {why}. Dropped." in replica
    assert site.run("select attempt, last_error from waiting") == [(1, why)]
    assert f"waiting row 1 attempt 1: {why}. Again in 60 s." in replica


FETCHING = """
from dataclasses import dataclass
from shardrun import Delivery, Queue

@dataclass
class Work:
    name: str
    payload: dict

q = Queue("q", id="id", payload="payload", attempt="attempt", retry_after="retry_after", partition_key="partition_key",
          locked_until="locked_until", last_error="last_error",
          fetch="select j.id, j.payload, c.name from q j join customers c on c.key = j.partition_key where j.id in (:ids)")

@q.handler(dead_letter="q_dead")
def work(row: Work, delivery: Delivery):
    with delivery.connection() as db:
        db.cursor().execute(f"insert into seen values ({delivery.id}, '{delivery.key} {row.name} {row.payload['n']}')")
"""


def test_a_replica_works_off_what_a_select_returns(site: Site) -> None:
    """A3: a row that the SELECT leaves out goes to the dead letters, with the reason; the others run."""
    site.run("create table customers (key text, name text)")
    site.run("create table seen (id bigint, said text)")
    site.run("insert into customers values ('a', 'Ann'), ('b', 'Bob'), ('b', 'Bert')")
    site.add_keyed([("a", {"n": 1}), ("nobody", {"n": 2}), ("a", {"n": 3}), ("b", {"n": 4})])
    said = run(site, FETCHING)
    assert site.run("select * from seen order by id") == [(1, "a Ann 1"), (3, "a Ann 3")]
    none = "the queue's fetch= returned no row for this id; it must return one"
    assert site.dead() == {2: (1, none), 4: (1, none.replace("no row", "2 rows"))}
    assert f"q row 2 attempt 1: {none}. Moved to q_dead." in said
    assert site.count() == 0


def run(site: Site, module: str, until: Sequence[str] = ()) -> str:
    """Work off what is due with a replica of a handler module, or wait until it says so; returns what it logged."""
    file = Path(site.folder, "tried.py")
    file.write_text(module)
    replica = site.start_module(str(file), *([] if until else ["--until-empty"]), "--processes", "1", until=None)
    for text in until:
        replica.says(text)
    if until:
        replica.stop()
    assert replica.wait(60) == 0, replica.stderr
    return replica.stderr
