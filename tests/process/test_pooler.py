"""A replica behind PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pgbouncer import Pgbouncer
from tests.process.site import Site
from tests.waiting import eventually


@pytest.fixture
def dsn(server_site: Site, pgbouncer: Pgbouncer) -> Iterator[str]:
    """Give the site's DSN through the pooler, which keeps no session after the test."""
    yield pgbouncer.dsn(server_site.dsn)
    for replica in server_site.replicas:
        replica.kill()
    pgbouncer.forget(server_site.dsn)


def test_rows_are_worked_off_through_a_pooler_and_a_dead_childs_statement_is_ended(server_site: Site, dsn: str) -> None:
    """R4, B4: two children, one of them killed in SQL that would go on; its row runs again when that is ended."""
    site = server_site
    site.add({"do": "sql", "sql": ["update q set priority = 7 where id = 1", "select pg_sleep(60)"], "until": 1})
    site.add(*[{"do": "sql", "sql": ["select 1"] * 6}] * 9, *[{}] * 190)  # as often as would have it prepared
    replica = site.start("-p", "2", "--until-empty", until="ready", dsn=dsn)
    asleep = "select pid from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
    session = eventually(lambda: site.run(asleep))[0][0]
    child = next(event.pid for event in site.witness.events() if event.row == 1)
    site.witness.kill(child)
    eventually(lambda: site.witness.runs(1) == 2)
    assert not site.run("select 1 from pg_stat_activity where pid = ?", session)
    assert replica.wait(40) == 0, replica.stderr
    assert replica.stdout.startswith("200 acked"), replica.stdout
    assert site.witness.runs(2) == 1
