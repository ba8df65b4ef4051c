"""What MySQL and MariaDB have to themselves: DSNs, servers that cannot serve, sessions, errors by their numbers."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pymysql
import pytest

from shardrun.db.caller import unwrapped
from shardrun.db.connect import database
from shardrun.db.mysql import driver, drivers, dsn, server
from shardrun.db.statement import Statement
from shardrun.errors import Conflict, ConnectionLost, DatabaseUnreachable, ShardrunError, StatementFailed, UsageProblem
from tests.store.conftest import Opener
from tests.store.place import Holder, Place, subscribe, usual
from tests.waiting import eventually


@pytest.fixture
def place(open_place: Opener) -> Place:
    """Give an empty database of MariaDB's."""
    return open_place("mariadb")


def test_a_dsn_says_all_that_the_driver_is_told() -> None:
    """Contract 2: percent-encoding, a socket, settings by type; utf8mb4 whatever it asks for; port 3306 unless said."""
    account = dsn.read("a%40b:p%2Fw%C3%A9@db/my%20app?unix_socket=/run/x&ssl-ca=/ca.pem&charset=utf8&read_timeout=7")
    given = dsn.for_pymysql(account)
    assert given == {
        "host": "db",
        "port": 3306,
        "user": "a@b",
        "password": "p/wé".encode(),
        "database": "my app",
        "charset": "utf8mb4",
        "unix_socket": "/run/x",
        "ssl_ca": "/ca.pem",
        "read_timeout": 7,
    }
    assert dsn.for_mysqldb(account)["ssl"] == {"ca": "/ca.pem"}
    assert dsn.for_pymysql(dsn.read("[::1]:3307/x?ssl=true"))["ssl"].verify_mode == 0
    assert dsn.for_mysqldb(dsn.read("[::1]:3307/x?ssl=true"))["ssl_mode"] == "REQUIRED"
    assert "ssl" not in dsn.for_pymysql(dsn.read("h/x?ssl=false"))


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("root:tiger@db", "it names no database"),
        ("root:tiger@db:x/app", "its host or port is none"),
        ("root:tig#er@db/app", "a # in it must be written as %23"),
        ("root:tiger@db/app?passwd=tiger", "the driver has no setting 'passwd'"),
        ("root:tiger@db/app?read_timeout=tiger", "its setting read_timeout has a value that does not fit"),
        ("root:tiger@db/app?charset=latin1", "its setting charset has a value that does not fit"),
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_its_password(rest: str, said: str) -> None:
    """A5: a password is in no message."""
    with pytest.raises(UsageProblem) as caught:
        database(f"mariadb://{rest}", "DATABASE_URL")
    assert f"the DSN (from DATABASE_URL) cannot be read as MySQL's: {said}" in str(caught.value)
    assert "tig" not in str(caught.value).replace("password", "")


def test_a_server_that_is_away_or_refuses_says_so_without_a_password(place: Place) -> None:
    """A5: text 8, also for a wrong password, and a database that is not there."""
    for wrong, said in (
        (
            "mysql://app:tiger@127.0.0.1:1/app",
            "MySQL at 127.0.0.1:1 (database app, user app, from --dsn) did not answer: ",
        ),
        (place.dsn.replace("app:", "app:tiger"), "access denied for user 'app'@"),
        (f"{place.dsn}_not_there", "unknown database "),
        (f"{place.dsn}?ssl=true", "SSL is required but the server doesn't support it"),
    ):
        with pytest.raises(DatabaseUnreachable) as caught:
            database(wrong, "--dsn").connect("test")
        assert said in str(caught.value)
        assert "tiger" not in str(caught.value)


def test_mysqlclient_is_used_where_it_is_and_pymysql_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A5, text 7: a DSN may ask for either; without both drivers the message says what to install."""
    theirs = types.ModuleType("MySQLdb.connections")
    theirs.Connection = type("Connection", (), {"__module__": theirs.__name__})  # type: ignore[attr-defined]
    theirs.cursors = types.SimpleNamespace(Cursor=dict)  # type: ignore[attr-defined]
    package = types.ModuleType("MySQLdb")
    package.connections = theirs  # type: ignore[attr-defined]
    both = {"MySQLdb": package, "MySQLdb.connections": theirs, "pymysql": pymysql}

    def chosen(dsn: str, **modules: Any) -> str:
        for name in both:
            is_there = modules.get(name.partition(".")[0], True)
            monkeypatch.setitem(sys.modules, name, both[name] if is_there else None)
        drivers.connection_class.cache_clear()
        target: Any = database(f"{dsn}://db/x")
        return str(drivers.connection_class(target._account.driver).__module__.partition(".")[0])

    assert [chosen(dsn) for dsn in ("mysql", "mariadb+mysqldb", "mysql+pymysql")] == ["MySQLdb", "MySQLdb", "pymysql"]
    assert [chosen(dsn, MySQLdb=False) for dsn in ("mysql", "mysql+mysqldb", "mysql+aiomysql")] == ["pymysql"] * 3
    assert [chosen(dsn, pymysql=False) for dsn in ("mysql", "mysql+pymysql")] == ["MySQLdb"] * 2
    with pytest.raises(UsageProblem, match=r"mysql:// needs PyMySQL. Install it: pip install 'shardrun\[mysql\]'"):
        chosen("mysql", pymysql=False, MySQLdb=False)
    drivers.connection_class.cache_clear()


def test_mysqlclients_connections_are_known_by_their_package() -> None:
    """Contract 1, C99: insert() takes them; and statements go to them in bytes, since not every id is text."""

    class Theirs:
        is_pymysql = False

        def literal(self, value: object) -> bytes:
            return b"'\xff%'" if value else b"NULL"

    Theirs.__module__ = "MySQLdb.connections"
    ours = Theirs()
    assert unwrapped(ours) == ("MySQLdb", ours)
    spelt = driver._spelt(ours, Statement("select %(a)s, '%%é', %(b)s", ("a", "b")), {"a": 1, "b": None})
    assert spelt == b"select '\xff%', '%\xc3\xa9', NULL"


@pytest.mark.parametrize(
    ("version", "comment", "refused"),
    [
        ("5.5.5-10.11.6-MariaDB-1~deb12", "Debian n/a", None),
        ("10.6.0-MariaDB", "", None),
        ("10.5.99-MariaDB-log", "", "MariaDB 10.5.99 at db/app is too old: shardrun needs MariaDB 10.6 or newer."),
        ("8.0.1-dmr", "MySQL Community Server", None),
        ("8.4.3-0ubuntu0.1", "", None),
        ("8.0.0", "", "MySQL 8.0.0 at db/app is too old: shardrun needs MySQL 8.0.1 or newer."),
        ("8.0.11-TiDB-v7.5.0", "TiDB Server", "TiDB 8.0.11 at db/app takes SKIP LOCKED and does not skip"),
        ("8.0.11", "TiDB Server (Apache License 2.0)", "TiDB 8.0.11 at db/app takes SKIP LOCKED and does not skip"),
    ],
)
def test_a_server_that_cannot_hold_rows_is_refused_by_name(version: str, comment: str, refused: str | None) -> None:
    """A5: MySQL before 8.0.1, MariaDB before 10.6, and TiDB whatever its version."""
    target = server.Mysql("mysql://db/app")
    facts = server.facts_of({"version": version, "version_comment": comment})
    target._product, target._version = facts.product, f" {server.number_of(facts.version)}"
    if refused is None:
        target._refuse(facts)
    else:
        with pytest.raises(ShardrunError) as caught:
            target._refuse(facts)
        assert str(caught.value).startswith(refused)


def test_a_log_of_statements_is_refused() -> None:
    """B7: such a server takes no write at READ COMMITTED."""
    said = {"version": "10.11.6-MariaDB", "log_bin": "ON", "binlog_format": "STATEMENT"}
    assert not server.facts_of(said).row_log
    assert server.facts_of({**said, "log_bin": "OFF"}).row_log
    assert server.facts_of({**said, "binlog_format": "MIXED"}).row_log


def test_the_coordinators_session_is_what_its_statements_stand_on(place: Place) -> None:
    """B3, B7: UTC, READ COMMITTED, nothing cut silently, short waits, and counts of rows that were found."""
    names = "time_zone, autocommit, innodb_lock_wait_timeout, character_set_client, character_set_results"
    asked = ", ".join(f"@@session.{name}" for name in names.split(", "))
    assert place.connect().execute(f"select {asked}").fetchall()[0] == ("+00:00", 1, 1, "utf8mb4", "utf8mb4")
    assert place.run("select @@tx_isolation") == [("READ-COMMITTED",)]
    place.run("create table t (a varchar(2) character set ascii)")
    for value in ("abc", "é"):
        with pytest.raises(place.own.Error):
            place.run("insert into t values (?)", value)
    place.run("insert into t values ('b')")
    assert place.own.execute("update t set a = 'b'").rowcount == 1
    lent = place.child()
    assert lent.execute("update t set a = 'b'").rowcount == 0
    assert not lent.get_autocommit()
    assert driver.descriptor(lent) == (lent._sock if lent.is_pymysql else lent).fileno()
    assert place.database.is_alive(lent)


def test_statements_of_one_transaction_go_together_or_not_at_all(place: Place) -> None:
    """R10: one round trip; the server stops at an error, and nothing is left open."""
    place.run("create table t (a int primary key)")
    insert = Statement("insert into t values (%(a)s)", ("a",))
    answers = driver.run_all(place.own, [(insert, {"a": 1}), (Statement("select a, '%%;' from t"), {})])
    assert (answers[0].rowcount, answers[1].fetchall()) == (1, ((1, "%;"),))
    with pytest.raises(StatementFailed, match="MariaDB refused: Duplicate entry"):
        driver.run_all(place.own, [(insert, {"a": 2}), (insert, {"a": 1}), (insert, {"a": 3})])
    assert place.run("select a, @@in_transaction from t") == [(1, 0)]
    with pytest.raises(ZeroDivisionError), driver.writing(place.own):
        place.own.execute("insert into t values (%s)", (1 // (place.own.execute("do 0").rowcount),))
    assert place.run("select @@in_transaction") == [(0,)]


@pytest.mark.parametrize(
    ("code", "named"),
    [
        *((code, Conflict) for code in (1020, 1040, 1203, 1205, 1213, 1226, 1317, 3572)),
        *((code, ConnectionLost) for code in (0, 1053, 1836, 1927, 2006, 2013, 2055, 3169, 4031)),
        *((code, StatementFailed) for code in (1062, 1064, 1142, 1146, 1153, 1290, 1406)),
    ],
)
def test_an_errors_number_says_what_it_means_for_the_row(place: Place, code: int, named: type[ShardrunError]) -> None:
    """B7, F4: in doubt, again, or never."""
    connection = place.connect()
    with pytest.raises(named, match=r"MariaDB.*: that is why"), driver.naming_errors(connection):
        raise connection.OperationalError(code, "that is why\nand more")
    assert driver.is_open(connection) is (named is not ConnectionLost)


def test_a_lock_that_someone_keeps_is_a_conflict_and_leaves_no_transaction(place: Place) -> None:
    """B7: the wait is short, and what the transaction had written is undone."""
    place.create_usual()
    place.fill(2)
    lent, ours = place.child(), place.connect()
    lent.execute("select * from q where id = 2 for update")
    update = Statement("update q set attempt = 1 where id = %(id)s", ("id",))
    with pytest.raises(Conflict, match="Lock wait timeout"):
        driver.run_all(ours, [(update, {"id": 1}), (update, {"id": 2})])
    assert ours.execute("select @@in_transaction, max(attempt) from q").fetchall() == ((0, None),)


def test_a_dead_childs_sessions_are_ended_asleep_or_waiting(place: Place) -> None:
    """R4: what they locked is free when this returns; a session of another server's life, or another's, is left."""
    place.create_usual()
    place.fill(1)
    holder, waiter, other = place.child(), place.child(), place.child()
    holder.execute("select * from q for update")
    names = [str(place.database.session(each)) for each in (holder, waiter, other)]
    ends: list[BaseException] = []
    threads = [
        threading.Thread(target=_until_it_fails, args=(holder, "select sleep(30)", ends), daemon=True),
        threading.Thread(target=_until_it_fails, args=(waiter, "update q set attempt = 7", ends), daemon=True),
    ]
    for thread in threads:
        thread.start()
    busy = "select count(*) from information_schema.processlist where id in (?, ?) and command = 'Query'"
    numbers = [int(name.partition(":")[0]) for name in names]
    eventually(lambda: place.run(busy, *numbers[:2]) == [(2,)])
    earlier = f"{numbers[2]}:{int(names[2].partition(':')[2]) - 60}"
    place.database.end_sessions(place.own, [*names[:2], earlier, f"{2**31}:{names[2].partition(':')[2]}"], "child 3")
    assert Holder(place, usual()).ids() == [1]
    for thread in threads:
        thread.join(10)
    assert [type(end) for end in ends] == [place.own.OperationalError] * 2
    assert [place.database.is_usable(each) for each in (holder, waiter, other)] == [False, False, True]


def _until_it_fails(connection: Any, text: str, ends: list[BaseException]) -> None:
    try:
        connection.execute(text)
    except connection.Error as error:
        ends.append(error)


def test_an_ended_session_reads_as_lost_and_is_never_opened_again(place: Place) -> None:
    """F4: the statement is not sent a second time on a new connection."""
    ours = place.connect()
    place.database.end_sessions(place.own, [str(place.database.session(ours))], "test")
    with pytest.raises(ConnectionLost, match="the connection to MariaDB was lost"):
        driver.run(ours, Statement("select 1"), {})
    assert not place.database.is_usable(ours)
    with pytest.raises(ConnectionLost, match=r"it is closed|Lost connection"):
        driver.run(ours, Statement("select 1"), {})


def test_an_answer_that_does_not_come_is_given_up(place: Place) -> None:
    """F4: a dead network, or a server that hangs, costs the connection; the session's own end is not waited for."""
    target = database(f"{place.dsn}?read_timeout=1")
    connection = target.connect("test")
    with pytest.raises(ConnectionLost, match=r"timed out|Lost connection"):
        driver.run(connection, Statement("select sleep(4)"), {})
    assert not target.is_usable(connection)


def test_sessions_are_counted_by_name_and_against_the_users_own_limit(place: Place) -> None:
    """F3: the limit that is nearer is the one that counts."""
    lent = place.database.connect_child("shardrun host-1 child 1")
    found = place.database.sessions(place.own)
    assert found is not None
    assert found.limit == 151
    if lent.is_pymysql:  # the other driver gives sessions no names
        assert "shardrun host-1 child 1" in (found.here or [])
        assert set(found.here or []) <= set(found.ours or [])
    else:
        assert (found.ours, found.here) == (None, None)
    place.database.close(lent)
    place.run("alter user current_user() with max_user_connections 40")
    try:
        limited = place.connect()
    finally:
        place.run("alter user current_user() with max_user_connections 0")
    limit, in_use = place.database.connection_limit(limited) or (0, 0)
    assert (limit, 2 <= in_use < 40) == (40, True)


def test_tables_of_another_engine_and_columns_that_write_themselves_are_refused(place: Place) -> None:
    """A5: a row of theirs cannot be locked, or loses its token; the message has the statement that mends it."""
    place.create_usual(without=["locked_until"], locked_until="timestamp null on update current_timestamp")
    text = _problem(place)
    assert (
        "column locked_until (role locked_until) is set by the server at every update of its row. alter table q" in text
    )
    place.create_usual("m")
    for table in ("m", "m_dead"):
        place.run(f"alter table {table} engine = MyISAM")
    text = _problem(place, table="m", dead_letter="m_dead")
    assert "m is kept by the engine MyISAM, which has no transactions and locks no rows. alter table `m` engine" in text
    assert "m_dead is kept by the engine MyISAM" in text


def _problem(place: Place, table: str = "q", **settings: Any) -> str:
    with pytest.raises(ShardrunError) as caught:
        place.database.store(place.own, subscribe(usual(table=table), **settings))
    return str(caught.value)


def test_a_group_that_no_index_takes_whole_is_named(place: Place) -> None:
    """A5: the warning says what to change, where no CREATE INDEX would help."""
    place.create_usual(group="mediumtext")
    subscription = subscribe(usual(group="group"), group="a")
    (text,) = place.database.warnings(place.own, subscription)
    assert "Column group is mediumtext, which no index takes whole. alter table `" in text
    place.run(text[text.index("alter table") :].replace("`", '"'))
    (text,) = place.database.warnings(place.own, subscription)
    assert text.startswith("q: no index serves the claim. create index if not exists `q_claim_in_group` on ")
