"""What MariaDB does not tell of a table: triggers, without the privilege; spaces that its collations take for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardrun.db.mysql.catalogue import _is_like
from tests.mariadb import Mariadb
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, usual


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty MariaDB database."""
    return open_place("mariadb")


@pytest.fixture
def plain_user(place: Place, mariadb: Mariadb) -> Iterator[str]:
    """Make a user that may read and write rows of the database, and no more; its DSN."""
    name = place.dsn.rpartition("/")[2]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("create or replace user plain@'127.0.0.1' identified by 'plain'")
        cursor.execute(f"grant select, insert, update, delete on `{name}`.* to plain@'127.0.0.1'")
        yield f"mariadb://plain:plain@{place.dsn.rpartition('@')[2]}"
        cursor.execute("drop user plain@'127.0.0.1'")


def test_a_lease_that_an_unseen_trigger_swallows_is_not_taken_for_one(
    place: Place, plain_user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R1, R10: MySQL tells a user without the privilege of no triggers, so claims read what was written; others need not."""
    place.create_usual()
    place.fill(2)
    other = Place("mariadb", plain_user)
    try:
        assert not Holder(place, usual()).store.layout.table.rewrites
        holder = Holder(other, usual())
        assert holder.store.layout.table.rewrites
        place.own.execute(
            "create trigger odd before update on q for each row set new.locked_until = if(old.id = 1, null, new.locked_until)"
        )
        assert holder.ids() == [2]
    finally:
        other.close()
    assert "q row 1: it cannot be claimed: the database does not write its lease" in caplog.text


def test_patterns_of_grants_are_read_as_the_server_reads_them() -> None:
    """A5: a percent sign for any text, an underscore for any character, and either behind a backslash for itself."""
    assert [_is_like("my_app", pattern) for pattern in ("%", "my_app", "my\\_app", "my_a%", "m%\\_p")] == [True] * 4 + [
        False
    ]
    assert [_is_like("my-app", pattern) for pattern in ("my_app", "my\\_app", "")] == [True, False, False]


@pytest.mark.parametrize("kind", ["text", "varchar(2000)", "varchar(20)"])
def test_keys_that_differ_in_trailing_spaces_of_any_kind_share_a_lane(place: Place, kind: str) -> None:
    """D1, C99: exactly where the database calls them equal, also a no-break space in a collation of Unicode's."""
    place.create_usual(without=["partition_key"], partition_key=f"{kind} collate utf8mb4_unicode_ci")
    keys = ["a", "A ", "a\u00a0", "a\u00a0b", "a b", "ab", "\u00e1\u00a0", "", " ", "\u00df", "ss"]
    for key in keys:
        place.fill(1, partition_key=key)
    lane_keys = {row.id: row.lane_key for row in Holder(place, usual(), workers_by_key=2).claim()}
    equal = place.run("select a.id, b.id, a.partition_key = b.partition_key from q a, q b")
    assert [(one, other, int(lane_keys[one] == lane_keys[other])) for one, other, _ in equal] == equal
    assert lane_keys[1] == lane_keys[3] != lane_keys[6]
