"""What each form and mode gives where: the code refuses by one declaration, and README's table is made from it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scripts import guarantees
from shardrun import boot, config, registry
from shardrun.db import forms
from shardrun.db.forms import Mode, On
from shardrun.errors import Problems, ShardrunError, Unsupported
from shardrun.queue import Form, Subscription
from tests.store.place import Place, subscribe, usual

DIALECTS = {"postgres": On.POSTGRES, "mariadb": On.MYSQL, "sqlite": On.SQLITE}

ROLES: dict[Form, dict[str, Any]] = {
    Form.ROW_LOCK: {"without": ["locked_until"]},
    Form.LEASE: {},
    Form.ADVISORY: {"without": ["locked_until"], "advisory_lock": "accounts-{partition_key}"},
}

SETTINGS: dict[Mode, dict[str, Any]] = {
    Mode.PLAIN: {},
    Mode.TRANSACTIONAL: {"transactional": True},
    Mode.BATCH: {"batch": 16},
    Mode.BOTH: {"transactional": True, "batch": 16},
}


def subscription(form: Form, mode: Mode) -> Subscription:
    return subscribe(usual(**ROLES[form]), **SETTINGS[mode])


def said_of(form: Form, mode: Mode, on: On) -> ShardrunError:
    (said,) = forms.refusals(on, subscription(form, mode))
    return said


def test_a_database_takes_what_is_declared_and_refuses_the_rest(place: Place) -> None:
    """B1 to B6: every form in every mode, by the declared sentence and nothing else."""
    place.create_usual()
    on = DIALECTS[place.dialect]
    for form, mode in itertools.product(Form, Mode):
        found: list[str] = []
        try:
            store = place.database.store(place.own, subscription(form, mode))
            assert store.layout.form is form
        except Problems as problems:
            found = [str(each).partition(": ")[2] for each in problems.problems]
        is_there = forms.cell(form, mode, on).is_there
        expected = [] if is_there else [str(said_of(form, mode, on)).partition(": ")[2]]
        assert found == expected, (form, mode)


def test_every_cell_is_declared() -> None:
    """B: three forms, each plain, transactional, in batches and both, on three databases."""
    assert set(forms.CELLS) == set(itertools.product(Form, Mode))
    assert all(len(cells) == len(On) for cells in forms.CELLS.values())
    assert all(len(held) == len(Form) for held in forms.GUARANTEES.values())


def test_a_refusal_says_what_is_missing_where_and_the_way_out() -> None:
    """Text 11: whatever the mode, it is the database that cannot hold rows so."""
    for mode in Mode:
        said = said_of(Form.ROW_LOCK, mode, On.SQLITE)
        assert isinstance(said, Unsupported)
        assert str(said).endswith(
            '): SQLite cannot lock rows. Give it a lease column: Queue("q", id="id", locked_until="locked_until"), or use '
            'Queue.standard("q")'
        )


def test_readmes_table_is_what_the_code_declares() -> None:
    """B: it cannot drift; python -m scripts.guarantees writes it."""
    readme = guarantees.README.read_text()
    assert readme == guarantees.written(readme)
    with pytest.raises(ValueError, match="has no lines"):
        guarantees.written("nothing")


def claims_at_once(place: Place, form: Form, without: list[str]) -> int:
    """Say how many claims one subscription of a replica may have under way, whose pool has four connections."""
    roles = dict(ROLES[form])
    queue = usual(**{**roles, "without": [*roles.pop("without", []), *without]})
    subscribed = subscribe(queue, workers=8)
    settings = config.load({"dsn": place.dsn, "pool_size": 4, "processes": 2}, None, {}, ".")
    opened = boot.open_all(settings, registry.Declared([subscribed], ["q"], [queue], []))
    (service,) = boot._services(opened)
    return service.pacing.together


def test_claims_go_one_at_a_time_where_more_would_cost_or_break_an_order(place: Place) -> None:
    """C4: on SQLite, with a partition key, and leases on MySQL and MariaDB; elsewhere as many as there are connections (C2)."""
    place.create_usual()
    forms_here = [
        form for form in (Form.ROW_LOCK, Form.LEASE) if forms.cell(form, Mode.PLAIN, DIALECTS[place.dialect]).is_there
    ]
    with_keys = {form: claims_at_once(place, form, []) for form in forms_here}
    assert set(with_keys.values()) == {1}
    without = {form: claims_at_once(place, form, ["partition_key"]) for form in forms_here}
    expected = {
        "postgres": {Form.ROW_LOCK: 3, Form.LEASE: 3},
        "mariadb": {Form.ROW_LOCK: 3, Form.LEASE: 1},
        "sqlite": {Form.LEASE: 1},
    }
    assert without == expected[place.dialect]
