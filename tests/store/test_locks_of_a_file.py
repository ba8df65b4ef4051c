"""The advisory lock form on SQLite: keys in work are known to the one replica that serves the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardrun.db.connect import database
from shardrun.db.store import Backlog, Settlement, Verb
from shardrun.errors import StatementFailed, Unsupported
from tests.store.conftest import Opener
from tests.store.place import Place, subscribe, usual

KEY = "accounts-{partition_key}"


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty file."""
    return open_place("sqlite")


class Holding:
    """A subscription's statements, prepared, on a connection."""

    def __init__(
        self, place: Place, without: Sequence[str] = (), settings: dict[str, Any] | None = None, **more: Any
    ) -> None:
        queue = usual(without=["locked_until", *without], **{"advisory_lock": KEY, **more})
        self.connection = place.connect()
        self.store = place.database.store(self.connection, subscribe(queue, **settings or {}))
        self.store.prepare(self.connection)

    def ids(self, limit: int = 10, full_keys: Sequence[Any] = ()) -> list[Any]:
        """Claim rows."""
        return [row.id for row in self.store.claim(self.connection, limit, full_keys)]

    def end(self, verb: Verb, id: Any, **how: Any) -> bool:
        """Settle a row; tells whether it took effect."""
        return self.store.settle(self.connection, [Settlement(verb, id, "", **{"attempt": 1, **how})]) == {id}


def keyed(place: Place, *keys: str | None, table: str = "q", **values: Any) -> None:
    for key in keys:
        place.fill(1, table, partition_key=key, **values)


def test_a_claim_takes_one_row_of_each_free_key_whatever_table_it_is_in(place: Place) -> None:
    """B4: rows whose keys match go one at a time; many rows of a busy key hide no other; NULL is a key like any other."""
    place.create_usual()
    place.create_usual("other")
    keyed(place, *["a"] * 100, *["b"] * 100, None, None, "c")
    keyed(place, "c", "d", table="other")
    holder, other = Holding(place), Holding(place, table="other")
    assert holder.ids(3) == [1, 101, 201]
    assert holder.ids() == [203]
    assert holder.ids() == []
    assert other.ids() == [2]
    assert holder.end(Verb.ACK, 1)
    assert holder.end(Verb.RETRY, 203, attempt=1, reason="no")
    assert other.ids() == [1]
    assert holder.ids() == [2]
    assert holder.store.backlog(holder.connection, [2]) == Backlog(ready=True, later=0, awaited=True)


def test_a_row_whose_key_changes_in_work_is_not_taken_again_and_frees_the_key_that_it_was_taken_by(
    place: Place,
) -> None:
    """B4: neither key is held for ever; the new one is free for the other rows that have it."""
    place.create_usual()
    keyed(place, "a", "a", "b")
    holder = Holding(place)
    assert holder.ids(1) == [1]
    place.run("update q set partition_key = 'b' where id = 1")
    assert holder.ids() == [3]
    assert holder.end(Verb.RETRY, 1)
    assert holder.end(Verb.ACK, 3)
    assert sorted(holder.ids()) == [1, 2]


@pytest.mark.parametrize(
    ("verb", "how", "left"),
    [
        (Verb.ACK, {}, None),
        (Verb.DROP, {"reason": "no"}, None),
        (Verb.RETRY, {"attempt": 3, "reason": "ValueError: no"}, (3, 0, "ValueError: no")),
        (Verb.RETRY, {"attempt": 3, "delay": 60.0}, (3, 1, None)),
        (Verb.SNOOZE, {"attempt": 2, "delay": 60.0}, (2, 1, None)),
        (Verb.RELEASE, {"attempt": 2}, (2, 0, None)),
    ],
)
def test_a_settlement_writes_what_its_verb_says_and_frees_the_key(
    place: Place, verb: Verb, how: dict[str, Any], left: tuple[Any, ...] | None
) -> None:
    """E1: ack and drop delete, retry counts, snooze and release do not; the key is free at once."""
    place.create_usual()
    keyed(place, "a", attempt=2)
    keyed(place, "a")
    holder = Holding(place)
    assert holder.ids() == [1]
    assert place.run("select attempt from q where id = 1") == [(3,)]
    assert holder.end(verb, 1, **how)
    due = f"coalesce(retry_after > {place.seconds(50)}, 0)"
    assert place.run(f"select attempt, {due}, last_error from q where id = 1") == ([left] if left else [])
    assert holder.ids() == [1 if left and not left[1] else 2]


def test_a_crash_is_counted_and_the_key_kept_and_dead_letters_go_where_they_are_declared(place: Place) -> None:
    """R8, E3: a RECOUNT keeps the key; a buried row has its count and its reason."""
    place.create_usual(without=["locked_until"], group="text")
    keyed(place, "a", "a", group="mails")
    to_table = Holding(place, group="group", settings={"dead_letter": "q_dead", "group": "mails"})
    assert to_table.ids() == [1]
    assert to_table.end(Verb.RECOUNT, 1, attempt=2, reason="killed by signal 9")
    assert to_table.ids() == []
    assert to_table.end(Verb.BURY, 1, attempt=2, reason="killed by signal 9")
    assert place.run("select id, attempt, last_error from q_dead") == [(1, 2, "killed by signal 9")]
    to_group = Holding(place, group="group", settings={"dead_letter_group": "dead", "group": "mails"})
    assert to_group.ids() == [2]
    assert to_group.end(Verb.BURY, 2, attempt=1, reason="no")
    assert place.run('select "group", attempt, last_error from q') == [("dead", 1, "no")]


def test_what_the_database_refuses_keeps_no_key_for_ever(place: Place) -> None:
    """B4: a row that is gone, or can never be settled, frees its key; one that cannot be counted is left alone."""
    place.create_usual()
    keyed(place, "a", "a", "b", "b", "c")
    place.run(
        "create trigger u before update on q when old.id = 1 and new.attempt = 7 begin select raise(abort, 'no'); end"
    )
    place.run("create trigger c before update on q when old.id = 5 begin select raise(abort, 'never'); end")
    holder = Holding(place)
    assert holder.ids() == [1, 3]
    with pytest.raises(StatementFailed):
        holder.end(Verb.RETRY, 1, attempt=7)
    place.run("delete from q where id = 3")
    assert not holder.end(Verb.ACK, 3)
    assert holder.ids() == [2, 4]


def test_a_handler_may_take_whole_rows_and_rows_of_its_own_select(place: Place) -> None:
    """A2, A3, D1: bodies are what they are in the other forms, and keys of full lanes are left out."""
    place.create_usual(without=["locked_until"], made="time")
    keyed(place, "a", "b", attempt=1, made="2026-01-01 00:00:00")
    whole = Holding(place, without=["payload"], settings={"workers_by_key": 2})
    (row,) = whole.store.claim(whole.connection, 5, ["a"])
    assert (row.lane_key, row.attempt, row.body["attempt"], row.body["made"]) == ("b", 2, 2, "2026-01-01 00:00:00")
    own = Holding(place, fetch="select id, attempt * 10 as tenfold from q")
    assert [row.body for row in own.store.claim(own.connection, 5, [])] == [{"id": 1, "tenfold": 20}]


@pytest.mark.parametrize("written", ["x'ff00'", "cast(x'ff61' as text)"], ids=["bytes", "a text that is no UTF-8"])
def test_keys_of_any_bytes_exclude_each_other(place: Place, written: str) -> None:
    """B4: what is no text is locked like any key, and another key's row is not behind it."""
    place.create_usual()
    keyed(place, "a", "a", "b")
    place.run(f"update q set partition_key = {written} where id < 3")
    holder = Holding(place)
    assert holder.ids(1) == [1]
    assert holder.ids() == [3]
    assert holder.end(Verb.ACK, 1)
    assert holder.ids() == [2]


def test_a_lock_file_that_cannot_be_opened_is_a_refusal_that_names_it(place: Place, tmp_path: Path) -> None:
    """B4: as where it is another user's."""
    place.create_usual()
    (tmp_path / "queue.db-shardrun-replica").mkdir()
    advisory = subscribe(usual(without=["locked_until"], advisory_lock=KEY))
    with pytest.raises(Unsupported, match=r"needs .*queue.db-shardrun-replica, which cannot be opened: Is a directory"):
        place.database.only_replica(advisory).__enter__()


def test_a_second_replica_of_a_file_is_refused(place: Place, tmp_path: Path) -> None:
    """B4: one replica per file, by a lock that ends with its process; the other forms have no such bound."""
    place.create_usual()
    advisory = subscribe(usual(without=["locked_until"], advisory_lock=KEY))
    (tmp_path / "link.db").symlink_to(tmp_path / "queue.db")
    other = database(f"sqlite:///{tmp_path}/link.db")  # one file is one, by whatever name
    with place.database.only_replica(advisory):
        with pytest.raises(Unsupported, match=r"another replica \(pid \d+\) serves advisory_lock= over .*link.db"):
            other.only_replica(advisory).__enter__()
        with other.only_replica(subscribe(usual())):
            pass
    with other.only_replica(advisory):
        pass
    assert (tmp_path / "queue.db-shardrun-replica").exists()
