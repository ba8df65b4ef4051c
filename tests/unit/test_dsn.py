"""DSNs that cannot be read as they were meant."""

from __future__ import annotations

import pytest

from shardrun.db.connect import database
from shardrun.errors import UsageProblem


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "mariadb+pymysql"])
def test_a_password_with_a_bare_slash_is_refused_and_never_shown(scheme: str) -> None:
    """Contract 2: what stands behind the slash would be taken for the database's name, and be shown as that."""
    with pytest.raises(UsageProblem, match=r"\(from DATABASE_URL\) has an @ behind .* as %2F and @ as %40") as caught:
        database(f"{scheme}://app:123/secret@127.0.0.1/app", "DATABASE_URL")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("rest", ["app:123/p?secret@127.0.0.1/app", "app:123/p?secret=1@127.0.0.1/app"])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_password_with_a_bare_slash_and_a_question_mark_is_never_shown(scheme: str, rest: str) -> None:
    """Contract 2: what stands behind both would be taken for a setting, whose name is shown."""
    with pytest.raises(UsageProblem, match=r"\(from DATABASE_URL\) cannot be read") as caught:
        database(f"{scheme}://{rest}", "DATABASE_URL")
    assert "secret" not in str(caught.value)
