"""What keeps a subscription from starting, in the words that the user reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardrun import boot, config, registry
from shardrun.db.connect import database
from shardrun.db.postgres import server
from shardrun.db.store import Verb
from shardrun.errors import DatabaseUnreachable, Problems, ShardrunError, UsageProblem
from shardrun.queue import Form, Queue
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual


def problems(place: Place, queue: Queue[Any], **settings: Any) -> list[str]:
    """Open a subscription and list what is wrong with it."""
    with pytest.raises(Problems) as caught:
        place.database.store(place.own, subscribe(queue, **settings))
    assert caught.value.exit_code in (2, 4)
    return [str(problem) for problem in caught.value.problems]


def schema_of(place: Place) -> str:
    """Name what the tables of a place lie in."""
    return {"postgres": "public", "sqlite": "main"}.get(place.dialect) or str(place.run("select database()")[0][0])


def test_a_missing_table_is_named_with_its_neighbours(place: Place) -> None:
    """A5: text 9."""
    place.create_usual("invoice_job")
    (text,) = problems(place, Queue("invoice_jobs", id="id", locked_until="locked_until"))
    assert "there is no table invoice_jobs in " in text
    assert "Near it: invoice_job" in text
    assert text.startswith("queue invoice_jobs (tests/store/test_start.py:")
    assert text.endswith("To create it: shardrun ddl tests/store/test_start.py --apply")


def test_all_misspelt_columns_are_listed_with_what_there_is(place: Place) -> None:
    """A5: text 10, all at once."""
    place.create_usual()
    texts = problems(place, usual(priority="urgency", retry_after="due_on"), dead_letter="q_gone")
    assert len(texts) == 3
    assert "table q has no column urgency (role priority). It has: id, payload, partition_key, priority" in texts[0]
    assert "has no column due_on (role retry_after)" in texts[1]
    assert "there is no table q_gone" in texts[2]


def test_a_queue_without_lease_is_refused(place: Place) -> None:
    """B1: SQLite cannot lock rows (text 11); servers can."""
    place.create_usual()
    if place.dialect != "sqlite":
        assert place.database.store(place.own, subscribe(usual(without=["locked_until"]))).layout.form is Form.ROW_LOCK
        return
    with pytest.raises(Problems) as caught:
        place.database.store(place.own, subscribe(usual(without=["locked_until"])))
    (problem,) = caught.value.problems
    assert 'SQLite cannot lock rows. Give it a lease column: Queue("q", id="id", locked_until=' in str(problem)


def test_a_composite_or_repeating_id_is_refused(place: Place) -> None:
    """A5: one column must name a row."""
    place.run("create table pair (a int, b int, locked_until timestamp, primary key (a, b))")
    place.run("create table loose (a int, locked_until timestamp)")
    (text,) = problems(place, Queue("pair", id="a", locked_until="locked_until"))
    assert "a primary key of several columns (a, b)" in text
    (text,) = problems(place, Queue("loose", id="a", locked_until="locked_until"))
    assert "column a (role id) is not unique" in text


def test_a_unique_column_serves_as_id(place: Place) -> None:
    """A1: any column that is unique by itself."""
    place.run("create table u (a int primary key, b varchar(99) not null unique, locked_until timestamp)")
    place.database.store(place.own, subscribe(Queue("u", id="b", locked_until="locked_until")))


def test_columns_of_types_that_cannot_serve_are_refused(place: Place) -> None:
    """A5: what the role needs is said."""
    place.create_usual(without=["retry_after", "attempt"], retry_after="integer", attempt="text")
    texts = problems(place, usual())
    integer, text, time = {
        "postgres": ("integer", "text", "timestamptz or timestamp"),
        "sqlite": ("INTEGER", "TEXT", "text or timestamp"),
        "mariadb": ("int(11)", "varchar(255)", "datetime or timestamp"),
    }[place.dialect]
    assert f"column retry_after (role retry_after) is {integer}; it must be {time}" in texts[0]
    assert f"column attempt (role attempt) is {text}; it must be an integer" in texts[1]


def test_dead_letters_must_have_the_same_columns_and_be_another_table(place: Place) -> None:
    """E3: nothing of a row is lost on the way, and no subscription reads its own dead letters."""
    place.create_usual(extra="text")
    place.create("short", id="bigint", payload="json", must="text not null")
    texts = problems(place, usual(), dead_letter="short")
    assert "need the same columns: short has no partition_key, priority" in texts[0]
    assert "short wants must, which q does not have" in texts[1]
    (text,) = problems(place, usual(), dead_letter=f"{schema_of(place)}.q")
    assert "which is the queue's own table" in text


def test_a_view_is_refused(place: Place) -> None:
    """A5: rows of a view cannot be claimed."""
    place.create_usual()
    place.run("create view v as select * from q")
    assert "is a view" in problems(place, usual(table="v"))[0]


@pytest.mark.parametrize("kind", ["jsonb", "int[]", "point", 'text collate "blind"'])
def test_keys_that_cannot_be_hashed_are_refused_where_lanes_are_by_key(open_place: Opener, kind: str) -> None:
    """R16: nondeterministic collations and types without one spelling."""
    place = open_place("postgres")
    place.run("create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    place.create_usual(without=["partition_key"], partition_key=kind)
    assert "whose equal values may differ in their bytes" in problems(place, usual())[0]
    place.database.store(place.own, subscribe(usual(), workers=2))


def test_a_collation_of_the_users_program_is_refused(open_place: Opener) -> None:
    """R16: an unknown collation cannot be followed."""
    place = open_place("sqlite")
    place.own.create_collation("mine", lambda a, b: 0)
    place.create_usual(without=["partition_key"], partition_key="text collate mine")
    place.own.create_collation("mine", None)
    other = place.connect()
    with pytest.raises(Problems, match="whose equal values may differ"):
        place.database.store(other, subscribe(usual()))


def test_a_missing_index_is_a_warning_that_prints_the_statement(place: Place) -> None:
    """A5: the statement printed makes the warning go away."""
    place.create_usual(processed_at="time", group="text")
    subscription = subscribe(usual(processed_at="processed_at", group="group"), group="a")
    (text,) = place.database.warnings(place.own, subscription)
    assert text.startswith("q: no index serves the claim. create index ")
    place.run(text[text.index("create index") :])
    assert place.database.warnings(place.own, subscription) == []


def test_a_permission_that_lacks_is_found_at_start(open_place: Opener, postgres: Any) -> None:
    """A5: statements are prepared on the server, as the role that will run them."""
    place = open_place("postgres")
    place.create_usual()
    with postgres.admin(place.dsn) as admin:
        admin.execute("alter table q owner to postgres")
        admin.execute("grant select on q to app")
    store = place.database.store(place.own, subscribe(usual()))
    with pytest.raises(ShardrunError, match="permission denied for table q"):
        store.prepare(place.own)


REFUSED: list[tuple[str, str]] = [
    (
        "oracle://scott:tiger@db/x",
        "oracle://db (from DATABASE_URL) is not a database that shardrun speaks. Known: postgres",
    ),
    ("not a dsn", "is not a database that shardrun speaks"),
    ("mysql://root:tiger@db", "cannot be read as MySQL's: it names no database"),
    ("sqlite://file.db", "names no file. Write sqlite:///file.db"),
    ("sqlite:///:memory:", "a database in memory is seen by one process only"),
    ("postgresql://app:tiger%zz@db/x", "cannot be read as PostgreSQL's"),
]


@pytest.mark.parametrize(("dsn", "said"), REFUSED)
def test_an_odd_dsn_is_refused_without_its_password(dsn: str, said: str) -> None:
    """A5: text 6; a password is in no message."""
    with pytest.raises(UsageProblem) as caught:
        database(dsn, "DATABASE_URL")
    assert said in str(caught.value)
    assert "tiger" not in str(caught.value)


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    """A5: text 8."""
    target = database("postgresql+psycopg://app:tiger@127.0.0.1:1/app", "DATABASE_URL")
    with pytest.raises(DatabaseUnreachable) as caught:
        target.connect("test")
    text = str(caught.value)
    assert text.startswith("PostgreSQL at 127.0.0.1:1 (database app, user app, from DATABASE_URL) did not answer: ")
    assert "refused" in text
    assert "tiger" not in text


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    """A5: only those who may create it do."""
    with pytest.raises(DatabaseUnreachable, match="does not exist"):
        database(f"sqlite:///{tmp_path}/none.db").connect("test")
    with pytest.raises(
        DatabaseUnreachable, match=r"no database was named .* and the default, .*none.db, does not exist"
    ):
        database(f"sqlite:///{tmp_path}/none.db", "default").connect("test")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_driver_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A5: text 7."""
    import sys

    for name in [name for name in sys.modules if name.startswith("shardrun.db.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageProblem, match=r"needs psycopg. Install it: pip install 'shardrun\[postgres\]'"):
        database("postgresql://db/x")


DECLARED = """
from shardrun import Queue

first = Queue("q", id="id", payload="payload", locked_until="locked_until")
second = Queue("{table}", id="id", payload="payload", locked_until="locked_until")


@first.handler(lease={lease})
def one(body: dict) -> None: ...


@second.handler()
def two(body: dict) -> None: ...
"""


def refused(place: Place, folder: Path, table: str, lease: int) -> list[str]:
    """Open everything that a start needs, and list what is wrong."""
    (folder / "handlers.py").write_text(DECLARED.format(table=table, lease=lease))
    settings = config.load({"dsn": place.dsn}, None, {}, str(folder))
    with pytest.raises(ShardrunError) as caught:
        boot.open_all(settings, registry.load([str(folder / "handlers.py")]))
    return [str(problem) for problem in getattr(caught.value, "problems", [caught.value])]


@pytest.mark.usefixtures("fresh_imports")
def test_one_table_by_two_names_is_one_table(place: Place, tmp_path: Path) -> None:
    """A5, C101: two handlers for the same rows are refused as they are where the names are alike."""
    place.create_usual()
    (text,) = refused(place, tmp_path, "Q" if place.dialect == "sqlite" else f"{schema_of(place)}.q", lease=30)
    assert "has two handlers for the same rows: one (" in text


@pytest.mark.usefixtures("fresh_imports")
def test_a_server_that_is_too_old_is_one_problem_among_all(
    open_place: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5: the others are said with it."""
    place = open_place("postgres")
    monkeypatch.setattr(server, "OLDEST", 990000)
    texts = refused(place, tmp_path, "other", lease=-1)
    assert len(texts) == 2
    assert "too old: shardrun needs PostgreSQL 12" in texts[1]


def test_a_database_without_an_encoding_is_served_in_utf8(postgres: Any) -> None:
    """A5: in SQL_ASCII the driver would give bytes for every text."""
    dsn = postgres.new_database()
    name = dsn.rpartition("/")[2].partition("?")[0]
    with postgres.admin() as admin:
        admin.execute(f'drop database "{name}"')
        admin.execute(f"create database \"{name}\" owner app template template0 encoding 'SQL_ASCII' locale 'C'")
    place = Place("postgres", dsn)
    place.create_usual(headers="text")
    place.fill(1, payload='{"a": "\u00e9"}', partition_key="\u00e9", headers="\u00e9")
    holder = Holder(place, usual(headers="headers"))
    (row,) = holder.claim()
    assert (row.key, row.headers, row.body) == ("\u00e9", "\u00e9", '{"a": "\u00e9"}')
    assert holder.one(Verb.RETRY, row, reason="caf\u00e9")
    place.close()
