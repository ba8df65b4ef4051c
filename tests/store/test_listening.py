"""What a session hears that listens: channels and groups, answers, its own end; and where nothing can be listened to."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from shardrun.db.insert import channel
from shardrun.db.listening import Ear, Told
from shardrun.errors import ConnectionLost, Unsupported
from tests.pgbouncer import Pgbouncer
from tests.store.conftest import Opener
from tests.store.place import Place, usual

LONG = "schöner_" * 8
ODD = 'a"b.c d'


@pytest.fixture
def direct(open_place: Opener) -> Place:
    """Give an empty PostgreSQL database."""
    return open_place("postgres")


@pytest.fixture
def ear(direct: Place) -> Iterator[Ear]:
    """Give a session that listens on the channels of three tables."""
    assert direct.database.listening
    opened = direct.database.listening.open("shardrun ear listener", [channel(name) for name in ("q", ODD, LONG)])
    yield opened
    opened.close()


def next_of(ear: Ear) -> list[Told]:
    """Wait until something comes, and take it."""
    assert select.select([ear.descriptor], [], [], 10)[0]
    return ear.heard()


def answered(ear: Ear) -> list[Told]:
    """Take all that comes before the answer."""
    told: list[Told] = []
    while ear.awaits_answer:
        told += next_of(ear)
    return told


def hear_the_last_of(ear: Ear) -> None:
    """Take what comes until it raises."""
    while True:
        next_of(ear)


def test_it_hears_the_groups_of_its_channels_whatever_their_names(direct: Place, ear: Ear) -> None:
    """G2: a group, an empty one for all; quoted names, and one of more than 63 bytes, as `insert` sends it."""
    assert answered(ear) == []
    direct.create_usual(group="text")
    with psycopg.connect(direct.dsn) as user:
        user.execute("set client_encoding = 'LATIN1'")  # its own affair: the server knows what it means
        usual(group="group").insert_many(user, [{"group": group, "notify": True} for group in ("Grün", "Grün", None)])
        user.execute("select pg_notify(%s, 'odd'), pg_notify(%s, 'long')", (channel(ODD), channel(LONG)))
        user.execute("""notify "shardrun:elsewhere", 'x'""")
    told: list[Told] = []
    while len(told) < 4:
        told += next_of(ear)
    assert told[:2] == [("shardrun:q", "Grün"), ("shardrun:q", "")]
    assert told[2:] == [(channel(ODD), "odd"), (channel(LONG), "long")]
    ear.ask()
    assert answered(ear) == []


def test_its_session_bears_its_part_and_its_end_is_told_at_once(direct: Place, ear: Ear) -> None:
    """G2, F2: the server's list names it; when it is ended, the socket wakes, and what comes is that it is lost."""
    answered(ear)
    found = "select pid from pg_stat_activity where application_name = 'shardrun ear listener'"
    ((pid,),) = direct.run(found)
    direct.run("select pg_terminate_backend(?)", pid)
    with pytest.raises(ConnectionLost, match="the connection to PostgreSQL was lost"):
        hear_the_last_of(ear)
    with pytest.raises(ConnectionLost):
        ear.ask()


def test_a_session_that_may_not_listen_says_why(direct: Place) -> None:
    """G2: the server's own words."""
    assert direct.database.listening
    ear = direct.database.listening.open("shardrun ear listener", [""])
    with pytest.raises(ConnectionLost, match=r"PostgreSQL does not let it listen: .*zero-length"):
        answered(ear)
    ear.close()


def test_a_pooler_that_would_swallow_listen_is_named(direct: Place, pgbouncer: Pgbouncer) -> None:
    """G2, A5: in transaction mode; directly, and in session mode, nothing stands in the way."""
    assert direct.database.listening
    assert direct.database.listening.problems(direct.own) == []
    for mode, count in (("transaction", 1), ("session", 0)):
        pgbouncer.set(pool_mode=mode)
        pgbouncer.forget(direct.dsn)
        pooled = Place("postgres", pgbouncer.dsn(direct.dsn))
        assert pooled.database.listening
        problems: list[Any] = pooled.database.listening.problems(pooled.own)
        assert [type(one) for one in problems] == [Unsupported] * count
        assert all(str(one).startswith("--listen-notify: LISTEN needs a session of its own") for one in problems)
        pooled.close()
    pgbouncer.set(pool_mode="transaction")
    pgbouncer.forget(direct.dsn)


@pytest.mark.parametrize("dialect", ["sqlite", "mariadb"])
def test_other_databases_tell_nothing(open_place: Opener, dialect: str) -> None:
    """G2: there is nothing to listen to."""
    assert open_place(dialect).database.listening is None
