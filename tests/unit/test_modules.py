"""One file is one module, and it takes no other module's name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardrun import modules
from tests.unit.conftest import Write


@pytest.mark.parametrize(
    "name",
    [
        "handlers.py",
        "json.py",
        "queue.py",
        "select.py",
        "email.py",
        "sys.py",
        "psycopg.py",
        "pymysql.py",
        "shardrun.py",
        "my-handler.py",
        "handler v2.py",
        "fünf.py",
        "handlers.v2.py",
        "__main__.py",
        "2.py",
    ],
)
def test_a_file_of_any_name_is_imported_and_shadows_nothing(write: Write, name: str) -> None:
    """C38: it has its siblings, and the standard and installed modules stay what they are."""
    write("aside.py", "X = 1")
    file = write(name, "import json, queue, select, email, psycopg, pymysql, shardrun, aside\nX = aside.X")
    module = modules.import_file(name)
    assert (module.X, module.__file__) == (1, str(file))
    assert sys.modules[module.__name__] is module
    for real in ("json", "queue", "select", "email", "psycopg", "pymysql", "shardrun", "sys"):
        assert getattr(sys.modules[real], "__file__", None) != str(file)
        assert getattr(module, real, sys) is sys.modules[real]


def test_a_name_that_is_free_stays(write: Write) -> None:
    """Contract 1: siblings and pickles of user code know the module by its own name."""
    write("handlers.py")
    assert modules.import_file("handlers.py").__name__ == "handlers"


def test_a_file_is_one_module_however_it_is_reached(write: Write, tmp_path: Path) -> None:
    """Contract 1: relative, absolute, through a link, by import path, by a sibling."""
    write("jobs/handlers.py", "import aside")
    write("jobs/aside.py", "import handlers")
    (tmp_path / "link").symlink_to(tmp_path / "jobs")
    (tmp_path / "other.py").symlink_to(tmp_path / "jobs" / "handlers.py")
    module = modules.import_file("jobs/handlers.py")
    assert modules.import_file(str(tmp_path / "jobs" / "handlers.py")) is module
    assert modules.import_file("link/handlers.py") is module
    assert modules.import_file("other.py") is module
    assert modules.import_path("jobs.handlers") is module
    assert sys.modules["aside"].handlers is module


def test_an_import_statement_of_users_finds_the_same_module(write: Write) -> None:
    """Contract 1: `import jobs.handlers` from the working directory is jobs/handlers.py, which is running already."""
    write(
        "jobs/handlers.py",
        "import jobs.handlers as again\nimport sys\nSAME = again is sys.modules[__name__]\nname = __name__",
    )
    modules.add_path(".")
    module = modules.import_file("jobs/handlers.py")
    assert module.SAME
    assert module.__spec__ is not None
    assert (module.__name__, module.__spec__.name) == ("handlers", "handlers")


def test_an_import_path_may_come_first(write: Write) -> None:
    """Contract 1: the order of the command line changes nothing."""
    write("jobs/handlers.py")
    module = modules.import_path("jobs.handlers")
    assert module is not None
    assert modules.import_file("jobs/handlers.py") is module


def test_relative_imports_work_in_a_package(write: Write) -> None:
    """C38: `from . import util` and `from .sub.x import y`, in a package named after a standard one, too."""
    for package in ("pkg", "email", "with-dash", "with.dot"):
        write(f"{package}/__init__.py")
        write(f"{package}/util.py", "X = 1")
        write(f"{package}/sub/__init__.py")
        write(f"{package}/sub/x.py", "y = 2")
        write(f"{package}/handlers.py", "from . import util\nfrom .sub.x import y\nfound = (util.X, y)")
        write(f"{package}/handlers.v2.py", "from .handlers import found")
        assert modules.import_file(f"{package}/handlers.py").found == (1, 2)
        assert modules.import_file(f"{package}/handlers.v2.py").found == (1, 2)
        assert modules.import_file(f"{package}/sub/__init__.py").__name__.endswith(".sub")
    assert sys.modules["pkg.handlers"].__file__ == os.path.abspath("pkg/handlers.py")
    assert "pkg" not in str(sys.modules["email"].__file__)


def test_two_folders_siblings_of_one_name_are_refused(write: Write) -> None:
    """C38: never the other folder's code; the sentence names both files and the way out."""
    for folder, value in (("a", 1), ("b", 2)):
        write(f"{folder}/handlers.py", "import util\nX = util.X")
        write(f"{folder}/util.py", f"X = {value}")
        modules.add_root(folder)
    with pytest.raises(ImportError) as caught:
        modules.import_file("a/handlers.py")
    assert f"util is {os.path.abspath('a/util.py')} and {os.path.abspath('b/util.py')}" in str(caught.value)
    assert "from . import util" in str(caught.value)


def test_files_of_one_name_in_two_folders_are_two_modules(write: Write) -> None:
    """C38: where they import nothing ambiguous, both run, each with siblings of its own."""
    for folder in ("a", "b"):
        write(f"{folder}/handlers.py", f"import only_{folder} as own\nX = own.X")
        write(f"{folder}/only_{folder}.py", f"X = {folder!r}")
        modules.add_root(folder)
    assert [modules.import_file(f"{folder}/handlers.py").X for folder in ("a", "b")] == ["a", "b"]


def test_an_installed_module_is_not_ambiguous(write: Write) -> None:
    """C38: two folders may each have a file that no import can mean."""
    for folder in ("a", "b"):
        write(f"{folder}/json.py", "raise RuntimeError")
        write(f"{folder}/handlers_{folder}.py", "import json\nX = json.dumps")
        modules.add_root(folder)
    assert [modules.import_file(f"{folder}/handlers_{folder}.py").X for folder in ("a", "b")] == [
        json.dumps,
        json.dumps,
    ]


def test_folders_are_added_behind_everything_else(write: Write) -> None:
    """Contract 1: once each, at the end."""
    before = list(sys.path)
    write("a/handlers.py")
    write("b/other.py")
    for file in ("a/handlers.py", "b/other.py", "a/handlers.py"):
        modules.import_file(file)
    assert sys.path == [*before, os.path.abspath("a"), os.path.abspath("b")]


def test_a_module_that_fails_is_not_left_behind(write: Write) -> None:
    """C40: mended, it can be imported."""
    write("handlers.py", "import no_such_module")
    with pytest.raises(ModuleNotFoundError):
        modules.import_file("handlers.py")
    assert "handlers" not in sys.modules
    write("handlers.py", "X = 1")
    assert modules.import_file("handlers.py").X == 1


def test_an_import_path_that_leads_nowhere_is_none(write: Write) -> None:
    """Contract 1: a module that is not there is told from one that fails."""
    write("pkg/__init__.py")
    write("pkg/broken.py", "import no_such_module")
    assert modules.import_path("nowhere") is None
    assert modules.import_path("pkg.nowhere") is None
    assert modules.import_path("json.decoder.nowhere") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        modules.import_path("pkg.broken")


def test_names_are_the_same_in_another_process(write: Write) -> None:
    """Contract 1: a child imports the same files under the same names."""
    for name in ("json.py", "handlers.v2.py", "handlers.py"):
        write(name)
    here = [modules.import_file(name).__name__ for name in ("json.py", "handlers.v2.py", "handlers.py")]
    program = (
        "from shardrun import modules\n"
        "print([modules.import_file(n).__name__ for n in ('json.py', 'handlers.v2.py', 'handlers.py')])"
    )
    root = str(Path(modules.__file__).parents[1])
    there = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == str(here)
