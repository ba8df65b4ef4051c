"""Leases that are kept, lost and taken over, and connections that break under every statement."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

import pytest

from tests.process.site import Site
from tests.proxy import Proxy, postgres_is_idle
from tests.waiting import eventually

LEFT = {
    "postgres": "select min(extract(epoch from locked_until - clock_timestamp())) from q where locked_until > '1900-01-01'",
    "sqlite": "select min((julianday(locked_until) - julianday('now')) * 86400) from q where locked_until > '1900-01-01'",
}
"""Reads how many seconds the shortest lease has left."""


def test_a_handler_of_three_leases_keeps_its_row_and_those_behind_it(site: Site) -> None:
    """C01, C08, B2: though it holds the GIL, and though another replica waits for every row that comes free."""
    site.add(*[{}] * 50, {"do": "hold", "for": 4.5}, *[{}] * 20, partition_key="k")
    first = site.start("-p", "1", lease=1.5)
    eventually(lambda: site.witness.runs(51) and site.held() == 21)
    second = site.start("-p", "1", lease=1.5)
    left = []

    def sampled() -> bool:
        left.append(site.one(LEFT[site.dialect]))
        return bool(site.witness.ended(51))

    eventually(sampled)
    assert min(each for each in left[:-1] if each is not None) > 0
    eventually(lambda: site.count() == 0)
    assert site.witness.order("k") == list(range(1, 72))
    assert {event.attempt for event in site.witness.events()} == {1}
    assert len({event.pid for event in site.witness.events()}) == 1
    first.stop()
    second.stop()


def test_a_replica_that_was_stopped_for_long_cannot_settle_what_another_has_taken(site: Site) -> None:
    """R1, R14: SIGSTOP for as long as it takes, then SIGCONT; its late ack changes nothing."""
    acts = [{"do": "gate", "gate": "first"}, {"do": "gate", "gate": "second"}]
    site.add({"do": "script", "acts": acts}, partition_key="k")
    stopped = site.start("-p", "1", lease=1)
    eventually(lambda: site.witness.runs(1) == 1)
    stopped.send_group(signal.SIGSTOP)
    other = site.start("-p", "1", lease=1)
    eventually(lambda: site.witness.runs(1) == 2)
    site.open_gate("first")
    stopped.send_group(signal.SIGCONT)
    stopped.says("lost")
    eventually(lambda: site.witness.ended(1) == 1)
    stopped.stop()
    assert site.attempts() == {1: 2}
    assert site.held() == 1
    site.open_gate("second")
    eventually(lambda: site.count() == 0)
    assert site.witness.runs(1) == 2
    other.stop()
    assert "1 lost" in stopped.stderr
    assert "0 lost" in other.stderr


def test_rows_that_wait_in_a_stopped_replica_run_once(site: Site) -> None:
    """C08, R14: what another has taken meanwhile does not start when the replica goes on."""
    site.add(*[{}] * 50, {"do": "gate"}, *[{}] * 20, partition_key="k")
    stopped = site.start("-p", "1", lease=1)
    eventually(lambda: site.witness.runs(51) == 1 and site.held() == 21)
    stopped.send_group(signal.SIGSTOP)
    other = site.start("-p", "1", lease=1)
    eventually(lambda: site.witness.runs(51) == 2)
    stopped.send_group(signal.SIGCONT)
    site.open_gate()
    eventually(lambda: site.count() == 0)
    assert all(site.witness.runs(row) == 1 for row in range(52, 72))
    stopped.stop()
    other.stop()


class TestTheServerIsAway:
    """PostgreSQL is stopped, or cannot be reached."""

    def test_for_longer_than_a_lease(self, server_site: Site) -> None:
        """C71, R2, F4: nothing is delivered twice by the replica that holds it; the same processes go on."""
        site, server = server_site, server_site.server
        assert server is not None
        site.add(*[{}] * 50, {"do": "sleep", "for": 3}, *[{}] * 20, partition_key="k")
        site.add({"do": "gate"}, partition_key="other")
        replica = site.start("-p", "2", workers_by_key=2, lease=1)
        eventually(lambda: site.witness.runs(51) and site.witness.runs(72) and site.held() >= 21)
        before = replica.pids()
        site.disconnect()
        server.stop()
        replica.says("the connection to the database is gone")
        eventually(lambda: site.witness.ended(51))
        server.start()
        site.connect()
        site.open_gate()
        eventually(lambda: site.count() == 0, 20)
        assert all(site.witness.runs(row) == 1 for row in range(1, 73))
        assert site.witness.order("k") == list(range(1, 72))
        assert replica.pids() == before
        replica.stop()

    def test_at_the_start(self, server_site: Site) -> None:
        """F4, C71: exit 3 and one sentence, no traceback, no password."""
        with Proxy.of(server_site.dsn) as proxy:
            proxy.refuse()
            replica = server_site.start("-p", "1", until=None, dsn=proxy.dsn(server_site.dsn))
            assert replica.wait() == 3
        assert "did not answer" in replica.stderr
        assert "Traceback" not in replica.stderr
        assert "never-shown" not in replica.stderr

    def test_and_comes_back_while_a_settlement_is_in_doubt(self, server_site: Site) -> None:
        """F4, R1: it is tried again with back-off, not as fast as the machine can."""
        site = server_site
        with Proxy.of(site.dsn) as proxy:
            replica = site.start("-p", "1", dsn=proxy.dsn(site.dsn))
            eventually(lambda: len(site.sessions()) == 3)  # all of the coordinator's: none has to be opened later
            site.add({"do": "gate"})
            eventually(lambda: site.witness.runs(1))
            cut = proxy.cut_after_request(b"delete from ", postgres_is_idle)
            proxy.refuse()
            site.open_gate()
            cut.wait()
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began > 2)
            assert replica.stderr.count("is gone") <= 3
            proxy.flow()
            replica.says("answers again")
            site.add({})
            eventually(lambda: site.count() == 0)
            replica.stop()
        assert site.witness.runs(1) == 1
        assert "2 acked" in replica.stderr

    def test_while_it_drains(self, server_site: Site) -> None:
        """H5, F4: a stop has an end although nothing can be written; the leases run out by themselves."""
        site = server_site
        site.add({"do": "gate"})
        with Proxy.of(site.dsn) as proxy:
            replica = site.start("-p", "1", "--drain-timeout", "1", lease=2, dsn=proxy.dsn(site.dsn))
            eventually(lambda: site.witness.runs(1))
            replica.family()
            proxy.refuse()
            proxy.cut()
            replica.says("is gone")
            site.open_gate()
            replica.send(signal.SIGTERM)
            assert replica.wait(15) in (0, 1)
        assert "Traceback" not in replica.stderr


@pytest.mark.parametrize(
    ("match", "answer", "runs", "said"),
    [
        (b"delete from ", None, 1, "2 acked"),
        (b"insert into ", ["DeadLetter", "no"], 1, "1 dead"),
        (b'"retry_after" = coalesce(', ["Retry", 0.1], 2, "1 retried"),
        (b'"retry_after" = coalesce(', ["Snooze", 0.1], 2, "1 retried"),
    ],
    ids=["ack", "dead letter", "retry", "snooze"],
)
@pytest.mark.parametrize("arrives", [True, False], ids=["committed", "never arrived"])
def test_a_settlement_whose_connection_breaks_is_resolved(
    server_site: Site, match: bytes, answer: list[Any] | None, runs: int, said: str, arrives: bool
) -> None:
    """R1, C06: whether it was committed or not, it takes effect once, and the handler runs no second time for it."""
    site = server_site
    first = {"do": "answer", "answer": answer, "gate": "gate"} if answer else {"do": "gate"}
    site.add({"do": "script", "acts": [first, {}]})
    with Proxy.of(site.dsn) as proxy:
        replica = site.start("-p", "1", dsn=proxy.dsn(site.dsn))
        eventually(lambda: site.witness.runs(1))
        cut = proxy.cut_after_request(match, postgres_is_idle) if arrives else proxy.cut_at_request(match)
        site.open_gate()
        cut.wait()
        site.add({})
        eventually(lambda: site.count() == 0)
        replica.stop()
    assert site.witness.runs(1) == runs
    assert site.witness.runs(2) == 1
    assert said in replica.stderr
    assert len(site.dead()) == (said == "1 dead")
    last = [event.attempt for event in site.witness.events() if event.row == 1][-1]
    assert last == (2 if answer and answer[0] == "Retry" else 1)


@pytest.mark.parametrize("arrives", [True, False], ids=["committed", "never arrived"])
@pytest.mark.parametrize(
    "verb", [b"skip locked))\n  returning e.", b"clock_timestamp() + "], ids=["extend", "read clock"]
)
def test_an_extension_whose_connection_breaks_loses_no_row(server_site: Site, arrives: bool, verb: bytes) -> None:
    """R1, R2: the row carries the old token or the new one, and either is known."""
    site = server_site
    site.add({"do": "gate"})
    with Proxy.of(site.dsn) as proxy:
        replica = site.start("-p", "1", lease=1, dsn=proxy.dsn(site.dsn))
        eventually(lambda: site.witness.runs(1))
        cut = proxy.cut_after_request(verb, postgres_is_idle) if arrives else proxy.cut_at_request(verb)
        cut.wait()
        replica.says("answers again")
        site.open_gate()
        eventually(lambda: site.count() == 0)
        replica.stop()
    assert site.witness.runs(1) == 1
    assert "1 acked" in replica.stderr


def test_a_claim_whose_reply_is_lost_delivers_its_rows_later_and_once(server_site: Site) -> None:
    """R2, C71: nobody holds what it took; when the lease has run out it is claimed like any abandoned row."""
    site = server_site
    with Proxy.of(site.dsn) as proxy:
        replica = site.start("-p", "2", lease=1, dsn=proxy.dsn(site.dsn))
        site.add(*[{}] * 20, partition_key="k")
        cut = proxy.cut_after_request(b"claimed as (", postgres_is_idle)
        proxy.cut()  # new connections prepare their statements anew, so that the claim's text comes by again
        cut.wait()
        eventually(lambda: site.count() == 0)
        replica.stop()
    assert all(site.witness.runs(row) == 1 for row in range(1, 21))


def test_connections_that_are_ended_all_the_time_lose_and_repeat_nothing(server_site: Site) -> None:
    """C71, C72, F4: pg_terminate_backend on every session, five times a second, through a whole run."""
    site, server = server_site, server_site.server
    assert server is not None
    site.add(*[{"do": "sleep", "for": 0.02}] * 200)
    replica = site.start("-p", "2", lease=1)
    before = replica.pids()
    query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'shardrun%'"
    ended = 0
    at = time.monotonic()

    def end_some() -> bool:
        nonlocal ended, at
        if time.monotonic() - at > 0.2 and ended < 40:
            ended += len(site.run(query))
            at = time.monotonic()
        return site.count() == 0

    eventually(end_some, 40)
    assert ended > 5
    assert all(site.witness.runs(row) == 1 for row in range(1, 201))
    assert replica.pids() == before
    replica.stop()
    print(f"\n{ended} sessions ended in one run")


def test_a_table_that_is_locked_for_longer_than_a_lease_loses_nothing(site: Site) -> None:
    """C06, C87: settlements, claims and extensions wait; every row runs once, no attempt is charged."""
    site.add({"do": "sleep", "for": 2.5}, *[{}] * 10, partition_key="k")
    replica = site.start("-p", "1", lease=1)
    before = replica.pids()
    eventually(lambda: site.witness.runs(1))
    with closing(site.another_connection()) as other:
        other.execute("begin immediate" if site.dialect == "sqlite" else "lock table q in access exclusive mode")
        eventually(lambda: site.witness.ended(1))
        other.rollback()
    eventually(lambda: site.count() == 0)
    assert site.witness.order("k") == list(range(1, 12))
    assert {event.attempt for event in site.witness.events()} == {1}
    assert "ERROR" not in replica.stderr
    assert replica.pids() == before
    replica.stop()
