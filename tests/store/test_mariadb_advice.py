"""What `shardrun check` says of MariaDB's tables: statements that MariaDB takes, and what would wait or be mistaken."""

from __future__ import annotations

from typing import Any

import pytest

from shardrun.errors import Problems
from shardrun.queue import Queue
from tests.store.conftest import Opener
from tests.store.place import Place, subscribe, usual


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


def mend(place: Place, text: str) -> None:
    """Run the statement that a sentence ends with."""
    place.run(text[text.index("alter table") :].replace("`", '"'))


def warned(place: Place, queue: Queue[Any], about: str, **settings: Any) -> list[str]:
    """List the warnings of one kind."""
    return [text for text in place.database.warnings(place.own, subscribe(queue, **settings)) if about in text]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("varchar(40) collate utf8mb4_bin unique", "may be NULL. alter table q modify `uid` varchar(40) collate"),
        ("text not null unique", "is text, which no index takes whole: what is UNIQUE there is kept by a hash"),
    ],
)
def test_an_id_that_cannot_serve_is_mended_by_the_statement_that_is_told(place: Place, kind: str, said: str) -> None:
    """A5: in MariaDB's own words, with the column's collation."""
    place.create("q", n="key", uid=kind, locked_until="time")
    queue: Queue[Any] = Queue("q", id="uid", locked_until="locked_until")
    with pytest.raises(Problems) as caught:
        place.database.store(place.own, subscribe(queue))
    (problem,) = caught.value.problems
    assert said in str(problem)
    mend(place, str(problem))
    assert place.database.store(place.own, queue.subscriptions[0]).layout.table.columns["uid"].nullable is False


@pytest.mark.parametrize("kind", ["datetime(0)", "timestamp(0) null"])
def test_leases_in_whole_seconds_are_named(place: Place, kind: str) -> None:
    """R1, C84: an extension in doubt may have promised what another replica's, of another lease, writes."""
    place.create_usual(without=["locked_until"], locked_until=kind)
    (text,) = warned(place, usual(), "whole seconds")
    mend(place, text)
    assert warned(place, usual(), "whole seconds") == []


def test_a_handler_that_would_wait_for_its_own_rows_lock_is_warned(place: Place) -> None:
    """B1: an insert checks its foreign key by a lock on the row, which the row's own holder has."""
    place.create_usual()
    held = usual(without=["locked_until"])
    assert warned(place, held, "foreign key") == []
    place.run("create table notes (about bigint, foreign key (about) references q (id))")
    (text,) = warned(place, usual(without=["locked_until"]), "foreign key")
    assert text.startswith("q: a foreign key refers to it from notes: ")
    assert "(locked_until=), or use transactional=True and write through delivery.tx." in text
    assert warned(place, usual(), "foreign key") == []
    assert warned(place, usual(without=["locked_until"]), "foreign key", transactional=True) == []
