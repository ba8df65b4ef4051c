"""Sources are told apart before anything is imported."""

from __future__ import annotations

import os

import pytest

from shardrun.errors import UsageProblem
from shardrun.sources import Source, files_of, locate
from tests.unit.conftest import Write


def test_files_folders_and_import_paths_are_told_apart(write: Write) -> None:
    """Contract 1: each with `:attribute` or without; what exists is taken as it is."""
    write("handlers.py")
    write("a:b.py")
    write("pkg/__init__.py")
    here = os.getcwd()
    assert locate("handlers.py") == Source("handlers.py", f"{here}/handlers.py", True, None)
    assert locate("handlers.py:queues.mail") == Source("handlers.py", f"{here}/handlers.py", True, "queues.mail")
    assert locate("a:b.py") == Source("a:b.py", f"{here}/a:b.py", True, None)
    assert locate("pkg.mod:attr") == Source("pkg.mod", "pkg.mod", False, "attr")
    assert locate("pkg").is_path
    assert locate("handlers.py:mail").absolute == f"{here}/handlers.py:mail"


def test_a_folder_names_its_files_and_a_package_itself(write: Write) -> None:
    """Contract 1."""
    for name in ("jobs/b.py", "jobs/a.py", "jobs/_c.py", "jobs/d.txt", "jobs/sub/e.py", "pkg/__init__.py", "pkg/x.py"):
        write(name)
    here = os.getcwd()
    assert files_of(locate("jobs/")) == [f"{here}/jobs/a.py", f"{here}/jobs/b.py"]
    assert files_of(locate("pkg")) == [f"{here}/pkg/__init__.py"]
    assert files_of(locate("pkg.x")) == []


@pytest.mark.parametrize("source", ["", ".hidden.mod", "a..b", "no-such-module", "handlers.py:12", "nowhere/"])
def test_what_cannot_be_a_module_does_not_exist(write: Write, source: str) -> None:
    """Text 2."""
    write("handlers.txt")
    with pytest.raises(UsageProblem, match="does not exist in"):
        locate(source)
