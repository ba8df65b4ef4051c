"""Rows that other programs commit run at once where they notify, however long the poll interval is."""

from __future__ import annotations

from shardrun.operate import REPLICA
from shardrun.queue import Queue
from tests.pgbouncer import Pgbouncer
from tests.process.site import Site
from tests.waiting import eventually

END = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like '% listener' and datname = ?"


def insert(site: Site, notify: bool) -> None:
    """Insert a row as another program does, in a transaction of its own."""
    connection = site.another_connection()
    Queue.standard("q").insert(connection, payload={}, notify=notify)
    connection.commit()
    connection.close()


def all_done(site: Site) -> None:
    """Wait until no row is left."""
    eventually(lambda: site.count() == 0)


def test_a_commit_elsewhere_wakes_whatever_befell_the_listener(server_site: Site) -> None:
    """G2, C75, F2: poll interval 10 min; its session is ended, the server restarts; what came unheard is made up for."""
    site = server_site
    limits = ["--pool-size", "2", "--child-pool-size", "1", "--connection-limit", "4"]
    replica = site.start("--listen-notify", "--poll-interval", "600", "-p", "1", *limits)
    replica.says("the table has no unfinished row")
    eventually(lambda: [name for name in site.sessions() if name.endswith(f"-{replica.pid} listener")])
    assert len({match and match[1] for match in map(REPLICA.fullmatch, site.sessions())}) == 1
    insert(site, notify=True)
    all_done(site)
    insert(site, notify=False)
    assert site.run(END, site.dsn.rpartition("/")[2])
    replica.says("NOTIFY is listened for again")
    all_done(site)
    assert site.server
    site.disconnect()
    site.server.stop()
    replica.says("nothing listens for NOTIFY, rows are found by the poll meanwhile", times=2)
    site.server.start()
    site.connect()
    replica.says("NOTIFY is listened for again", times=2)
    replica.says("the database answers again")
    insert(site, notify=True)
    all_done(site)
    assert len(site.sessions()) <= 4
    replica.stop()


def test_a_pooler_that_swallows_listen_is_refused_at_start(server_site: Site, pgbouncer: Pgbouncer) -> None:
    """G2, A5: exit code 4, and the sentence names the flag and the ways out."""
    replica = server_site.start("--listen-notify", until=None, dsn=pgbouncer.dsn(server_site.dsn))
    assert replica.wait() == 4
    assert replica.stderr == (
        "shardrun: --listen-notify: LISTEN needs a session of its own, and the DSN leads to PgBouncer (or a pooler like it) "
        "in transaction mode. Name the PostgreSQL server itself in the DSN, or set pool_mode=session for this database.\n"
    )
    pgbouncer.forget(server_site.dsn)
