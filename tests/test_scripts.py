"""What sets up a clone: it says what it does, and what to install where it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import servers

ROOT = Path(__file__).parent.parent


def missing() -> Path | None:
    return None


def test_an_old_python_is_named_with_the_way_out() -> None:
    """Contract 3: Python 3.11 or newer is all that has to be there."""
    result = subprocess.run(["scripts/venv", "dev", "false"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout.startswith("setting up .venv ...")
    assert "shardrun needs Python 3.11 or newer; false is not one." in result.stderr


def test_a_server_that_is_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Architecture 10: nothing is installed where the programs are on the machine."""
    assert servers.Server("PostgreSQL", "SHARDRUN_NO_SUCH", lambda: tmp_path, "postgresql", None).ensure()
    assert capsys.readouterr().out == f"PostgreSQL: {tmp_path}\n"


def test_a_server_that_a_variable_names_is_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architecture 10: a DSN comes first."""
    monkeypatch.setenv("SHARDRUN_TEST_POSTGRES", "postgresql://host/db")
    assert servers.Server("PostgreSQL", "SHARDRUN_TEST_POSTGRES", missing, "postgresql", None).ensure()
    assert capsys.readouterr().out == "PostgreSQL: the one that SHARDRUN_TEST_POSTGRES names\n"


def test_a_server_that_cannot_be_had_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architecture 10: a failure says what to install, and ends `make test`."""
    monkeypatch.setattr(servers, "may_install", lambda: None)
    monkeypatch.setattr(
        servers, "SERVERS", [servers.Server("MariaDB", "SHARDRUN_NO_SUCH", missing, "mariadb-server", None)]
    )
    monkeypatch.delenv("SHARDRUN_TEST_ALLOW_SKIP", raising=False)
    assert servers.main() == 1
    assert "Install your system's package (Debian: mariadb-server), or set SHARDRUN_NO_SUCH" in capsys.readouterr().err
    monkeypatch.setenv("SHARDRUN_TEST_ALLOW_SKIP", "1")
    assert servers.main() == 0
