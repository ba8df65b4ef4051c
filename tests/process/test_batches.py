"""Batches, from the table through a child and back."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.process.site import Replica, Site
from tests.witness import START

MODULE = str(Path(__file__).with_name("batching.py"))
MALFORMED = {
    "one short": "one_short returned a list of 9 for 10 rows: one outcome (or None) for each",
    "one extra": "one_extra returned a list of 11 for 10 rows",
    "pairs": "pairs returned (1, Ack()) (tuple); a handler returns nothing, or Ack, Retry",
    "by name": "(dict); a handler returns nothing, an outcome for all, or a list of 10, one for each row",
    "a number": "a_number returned 10 (int); a handler returns nothing, an outcome for all, or a list of 10",
    "raise": "ValueError: half way",
}


FORMS: dict[str, tuple[str, dict[str, str | bool]]] = {
    "lease": ("sqlite", {"locked_until": "locked_until"}),
    "lease on a server": ("postgres", {"locked_until": "locked_until"}),
    "transactional": ("postgres", {"locked_until": "locked_until", "transactional": True}),
    "row lock": ("postgres", {}),
    "advisory lock on a server": ("postgres", {"advisory_lock": "row-{id}"}),
    "advisory lock on MariaDB": ("mariadb", {"advisory_lock": "row-{id}"}),
    "advisory lock": ("sqlite", {"advisory_lock": "row-{id}"}),
    "transactional row lock": ("postgres", {"transactional": True}),
    "transactional row lock on MariaDB": ("mariadb", {"transactional": True}),
    "transactional advisory lock on a server": ("postgres", {"advisory_lock": "row-{id}", "transactional": True}),
    "transactional advisory lock on MariaDB": ("mariadb", {"advisory_lock": "row-{id}", "transactional": True}),
    "transactional advisory lock": ("sqlite", {"advisory_lock": "row-{id}", "transactional": True}),
}
SITES = {"sqlite": "file_site", "postgres": "server_site", "mariadb": "mariadb_site"}


@pytest.fixture(params=list(FORMS))
def site(request: pytest.FixtureRequest) -> Site:
    """Give a database with the tables `q` and `q_dead`, whose rows are held in a form that has batches."""
    dialect, form = FORMS[request.param]
    place: Site = request.getfixturevalue(SITES[dialect])
    (place.folder / "form").write_text(json.dumps(form))
    return place


def work_off(site: Site, *flags: str, kind: str = "acts", **settings: Any) -> Replica:
    """Run what is there to its end."""
    flags = flags or ("-p", "1")
    replica = site.start_module(MODULE, *flags, "--until-empty", until=None, KIND=kind, ACTS=json.dumps(settings))
    assert replica.wait(60) == 0, replica.stderr
    return replica


def attempts(site: Site) -> dict[int, list[int]]:
    """List the attempts that each row ran with."""
    found = defaultdict(list)
    for event in site.witness.events():
        if event.what == START:
            found[event.row].append(event.attempt)
    return found


def batches(site: Site) -> list[list[int]]:
    """List the batches that ran, in order."""
    return [json.loads(line) for line in (site.folder / "batches").read_text().splitlines()]


def test_some_rows_of_a_batch_fail(site: Site) -> None:
    """C104, B6, E1: outcomes are per row, and an answer that does not fit, or an exception, fails every row and guesses none."""
    kinds = ["mixed", *MALFORMED]
    for kind in kinds:
        site.add(*[{}] * 10, group=kind)
    replica = work_off(site, kind="answers")
    ran = attempts(site)
    assert [ran[row] for row in range(1, 11)] == [[1]] * 7 + [[1, 2]] * 2 + [[1]]
    assert all(ran[row] == [1, 2] for row in range(11, 71))
    found = batches(site)
    for number, kind in enumerate(kinds):
        assert list(range(10 * number + 1, 10 * number + 11)) in found, kind
    assert all(replica.stderr.count(said) in (10, 11) for said in MALFORMED.values()), replica.stderr
    assert "69 acked, 62 retried, 1 dropped, 0 dead, 0 lost" in replica.stdout
    assert site.count() == site.count("q_dead") == 0


def test_a_batch_that_kills_its_child_is_delivered_row_by_row(site: Site) -> None:
    """R7, H4, C104: the one that does it again spends its last attempt; the others end well and lose none."""
    site.add({}, {}, {"do": "kill"}, {}, {})
    replica = work_off(site, batch=5, max_attempts=2)
    assert batches(site) == [[1, 2, 3, 4, 5], [1], [2], [3], [4], [5]]
    (count, error) = site.dead().pop(3)
    assert (count, error) == (2, "killed by signal 9 (SIGKILL), likely out of memory")
    assert "4 acked, 0 retried, 0 dropped, 1 dead, 0 lost" in replica.stdout


def test_a_batch_that_runs_past_its_timeout_spends_an_attempt_for_each_of_its_rows(file_site: Site) -> None:
    """E4, B6: the batch behind it goes on in a new child, uncounted."""
    site = file_site
    site.add({}, {"do": "hang"}, {}, {}, {})
    work_off(site, batch=3, timeout=0.5, max_attempts=1)
    assert set(site.dead()) == {1, 2, 3}
    assert set(site.dead().values()) == {(1, "ran longer than its timeout of 0.5 s")}
    assert attempts(site)[4] == attempts(site)[5] == [1]


def test_batches_by_key_keep_each_keys_order(site: Site) -> None:
    """D1, B6: a key's rows stay in its lane, in claim order, within batches and from one to the next.

    Rows of other keys may pass them: those of a full lane go back, and are claimed again when it has room.
    """
    site.add_keyed([(f"key {row % 11}", {}) for row in range(1, 201)])
    work_off(site, "-p", "2", "--child-pool-size", "2", batch=8, workers=None, workers_by_key=3)
    for key in range(11):
        name = f"key {key}"
        assert site.witness.order(name) == [row for row in range(1, 201) if row % 11 == key]
        assert len({event.pid for event in site.witness.events() if event.key == name}) == 1
    assert 3 < max(map(len, batches(site))) <= 8
