"""Rows that the database does not let be claimed: what is remembered of them has a bound."""

from __future__ import annotations

import logging

import pytest

from shardrun.db import avoided
from shardrun.db.avoided import Avoided


def test_a_row_is_named_once_and_again_only_when_many_others_were(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C95: a row that cannot be claimed is in the log, which does not drown in it, and neither does the memory."""
    monkeypatch.setattr(avoided, "MOST_NAMED", 2)
    rows = Avoided("invoices")
    with caplog.at_level(logging.ERROR):
        for row in (1, 1, 2, 1, 3, 1):
            rows.add(row, "a trigger said no")
    named = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert named == [1, 2, 3, 1]
