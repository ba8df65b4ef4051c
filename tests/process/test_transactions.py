"""Transactional mode with real children and real kills: each row's effect is there exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.site import Site
from tests.waiting import eventually
from tests.witness import START

MODULE = str(Path(__file__).with_name("transfers.py"))
POINTS = ("take", "before its write", "after its write", "settlement", "before the report", "retry")

PAUSES = """
create function pause() returns trigger language plpgsql as $$
begin
  if new.attempt = 1 then perform pg_sleep(60); end if;
  return null;
end $$;
create constraint trigger pause after insert on effects deferrable initially deferred for each row when (new.no = 4)
execute function pause();
"""

PAUSES_ON_MARIADB = """
create trigger pause before delete on q for each row
begin if old.id = 4 and old.attempt = {counted} then do sleep(60); end if; end
"""


def effects(site: Site, form: str = "lease") -> None:
    """Create the table that handlers write to, and on a server what stops the commit of row 4 half way."""
    on_mariadb = PAUSES_ON_MARIADB.format(
        counted=int(form == "lease")
    )  # an attempt that runs is counted by leases only
    site.create("beside")
    site.run("create table effects (no integer, attempt integer)")
    if site.dialect != "sqlite":
        site.run(PAUSES if site.dialect == "postgres" else on_mariadb)


def starts(site: Site, row: object) -> list[int]:
    """List the attempts under which a row's handler began."""
    return [event.attempt for event in site.witness.events() if event.what == START and event.row == row]


def is_pausing(site: Site) -> bool:
    """Tell whether a commit, or what is written just before it, waits inside the server."""
    if site.dialect == "mariadb":
        return bool(site.run("select 1 from information_schema.processlist where state = 'User sleep'"))
    return bool(site.run("select 1 from pg_stat_activity where wait_event = 'PgSleep' and query ilike 'commit'"))


LEASES = ["sqlite lease", "mariadb lease", "postgres lease"]


@pytest.fixture(params=[*LEASES, "postgres row lock", "postgres advisory", "mariadb advisory", "sqlite advisory"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Give a database of each kind, and each form of holding rows there."""
    dialect, _, form = request.param.partition(" ")
    site = Site(dialect, tmp_path, None if dialect == "sqlite" else request.getfixturevalue(dialect))
    site.create("q")
    yield site, form
    site.close()


def test_a_child_killed_at_any_point_leaves_each_effect_once(killed: tuple[Site, str]) -> None:
    """B5, R3, R4, H2: after the take, before and after its write, in its settlement, after its commit, idle; none is lost."""
    site, form = killed
    effects(site, form)
    for at in POINTS:
        site.add({"at": at})
    site.add({}, {})
    replica = site.start_module(MODULE, "-p", "1", FORM=form)
    if site.dialect != "sqlite":
        eventually(lambda: is_pausing(site), 20)
        replica.kill_child(replica.family()[0])
    eventually(lambda: site.count() == 0, 60)
    replica.kill_child(replica.family()[0])  # idle: it holds a connection and no row
    site.add({})
    eventually(lambda: site.count("effects") == 9, 20)
    replica.stop()
    assert site.run("select no, count(*) from effects group by no order by no") == [(row, 1) for row in range(1, 10)]
    assert [starts(site, row) for row in range(1, 7)] == [[2], [1, 2], [1, 2], [1, 2], [1], [1, 2]]
    assert "transfers row 5: its transaction had committed" in replica.stderr
    assert "9 acked, 1 retried, 0 dropped, 0 dead, 0 lost" in replica.stderr


def test_other_leases_live_on_while_transactions_are_slow(site: Site) -> None:
    """R3, C5: one after another, each most of the time that it may have, for more than two leases; none is lost or run twice."""
    effects(site)
    site.add({}, table="beside")
    site.add(*[{"last": 0.8}] * 9)
    replica = site.start_module(MODULE, "-p", "2", LEASE="3")
    eventually(lambda: site.count() == 0, 60)
    site.open_gate()
    eventually(lambda: site.count("beside") == 0, 20)
    replica.stop()
    assert starts(site, "beside 1") == [1]
    assert [starts(site, row) for row in range(1, 10)] == [[1]] * 9
    assert "10 acked, 0 retried, 0 dropped, 0 dead, 0 lost" in replica.stderr


def test_a_row_lock_holds_a_row_for_longer_than_its_lease(server_site: Site) -> None:
    """R3: it is not extended, and nobody else can take it, another replica included."""
    site = server_site
    effects(site)
    site.add({"last": 2.5})
    first = site.start_module(MODULE, "-p", "1", LEASE="0.5")
    eventually(lambda: starts(site, 1) == [1], 20)
    second = site.start_module(MODULE, "-p", "1", LEASE="0.5")
    eventually(lambda: site.count() == 0, 20)
    first.stop()
    second.stop()
    assert starts(site, 1) == [1]
    assert site.run("select no from effects") == [(1,)]
    assert "1 acked, 0 retried, 0 dropped, 0 dead, 0 lost" in first.stderr
