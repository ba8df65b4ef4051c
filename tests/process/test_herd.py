"""Many replicas that wait on one empty table: what one row costs the server."""

from __future__ import annotations

from tests.process.site import Site
from tests.process.test_listening import insert
from tests.waiting import eventually

REPLICAS = 8


def claims(site: Site) -> int:
    """Count the claims that the server has seen."""
    return str(site.server.log).count("skip locked")  # type: ignore[union-attr]


def test_one_row_makes_one_claim_of_each_replica_that_is_woken_and_one_more(server_site: Site) -> None:
    """G2, C3, H8: eight replicas hear of it, one takes it and looks once more; then none asks again before its poll."""
    site = server_site
    with site.server.admin() as admin:  # type: ignore[union-attr]
        admin.execute(f"alter database \"{site.dsn.rpartition('/')[2]}\" set log_statement = 'all'")
    flags = ("--listen-notify", "--poll-interval", "600", "-p", "1")
    replicas = [site.start(*flags, until=None) for _ in range(REPLICAS)]
    for replica in replicas:
        replica.says("the table has no unfinished row")
    eventually(lambda: sum(name.endswith(" listener") for name in site.sessions()) == REPLICAS)
    before = claims(site)
    insert(site, notify=True)
    eventually(lambda: site.count() == 0)
    eventually(lambda: claims(site) >= before + REPLICAS + 1)
    insert(site, notify=False)
    for replica in replicas:
        replica.stop()
    assert claims(site) == before + REPLICAS + 1
    assert site.witness.runs(1) == 1
    assert site.count() == 1
