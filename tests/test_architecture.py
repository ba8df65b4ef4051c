"""The rules of how shardrun is built, checked on every file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from scripts.contracts import OnlyIn

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shardrun"
MODULES = sorted(PACKAGE.rglob("*.py"))
README = ROOT / "README.md"

LONGEST_FILE = 400
LONGEST_FUNCTION = 50

PROVED_ELSEWHERE = {
    "shardrun.__main__": "tests/process",
    "shardrun.boot": "tests/process",
    "shardrun.child.batch": "tests/child/test_batches.py",
    "shardrun.cli_frame": "tests/cli",
    "shardrun.cli_operate": "tests/cli",
    "shardrun.coordinator.offers": "tests/process/test_transactions.py",
    "shardrun.coordinator.transactions": "tests/coordinator/test_transactions.py",
    "shardrun.db.buried": "tests/store/test_requeue.py",
    "shardrun.db.caller": "tests/store/test_insert.py",
    "shardrun.db.check": "tests/store/test_start.py",
    "shardrun.db.fetched": "tests/payloads",
    "shardrun.db.fitting": "tests/store/test_start.py",
    "shardrun.db.mysql.advice": "tests/store/test_mariadb_advice.py",
    "shardrun.db.mysql.candidates": "tests/store/test_mariadb_claims.py",
    "shardrun.db.mysql.catalogue": "tests/store",
    "shardrun.db.mysql.claims": "tests/store/test_mariadb_claims.py",
    "shardrun.db.mysql.ddl": "tests/store/test_ddl.py",
    "shardrun.db.mysql.dead": "tests/store/test_requeue.py",
    "shardrun.db.mysql.fetch": "tests/store/test_fetch.py",
    "shardrun.db.mysql.lists": "tests/store/test_mariadb_claims.py",
    "shardrun.db.mysql.locks": "tests/store/test_mariadb_locks.py",
    "shardrun.db.mysql.offers": "tests/store/test_offers.py",
    "shardrun.db.mysql.offers_sql": "tests/child/test_transactions.py",
    "shardrun.db.mysql.operate": "tests/store/test_requeue.py",
    "shardrun.db.mysql.parts": "tests/sql",
    "shardrun.db.mysql.status": "tests/store/test_counts.py",
    "shardrun.db.mysql.store": "tests/store",
    "shardrun.db.mysql.strand_looks": "tests/store/test_strands_mariadb.py",
    "shardrun.db.mysql.strands": "tests/store/test_strands_mariadb.py",
    "shardrun.db.mysql.taking": "tests/child/test_transactions.py",
    "shardrun.db.mysql.taking_offered": "tests/child/test_transactions.py",
    "shardrun.db.needed": "tests/store/test_ddl.py",
    "shardrun.db.offers": "tests/store/test_offers.py",
    "shardrun.db.postgres.apart": "tests/hostile",
    "shardrun.db.postgres.around": "tests/hostile",
    "shardrun.db.postgres.catalogue": "tests/store",
    "shardrun.db.postgres.ddl": "tests/store/test_ddl.py",
    "shardrun.db.postgres.driver": "tests/store",
    "shardrun.db.postgres.fetch": "tests/payloads",
    "shardrun.db.postgres.insert": "tests/store/test_insert.py",
    "shardrun.db.postgres.listen": "tests/store/test_listening.py",
    "shardrun.db.postgres.locks": "tests/store/test_locks.py",
    "shardrun.db.postgres.offers": "tests/store/test_offers.py",
    "shardrun.db.postgres.offers_sql": "tests/child/test_transactions.py",
    "shardrun.db.postgres.operate": "tests/store/test_requeue.py",
    "shardrun.db.postgres.parts": "tests/sql",
    "shardrun.db.postgres.server": "tests/store",
    "shardrun.db.postgres.store": "tests/store",
    "shardrun.db.postgres.strands": "tests/store/test_strands.py",
    "shardrun.db.postgres.taking": "tests/child/test_transactions.py",
    "shardrun.db.postgres.taking_offered": "tests/child/test_transactions.py",
    "shardrun.db.settling": "tests/store/test_settle.py",
    "shardrun.db.speaking": "tests/store/test_start.py",
    "shardrun.db.sqlite.catalogue": "tests/store",
    "shardrun.db.sqlite.ddl": "tests/store/test_ddl.py",
    "shardrun.db.sqlite.driver": "tests/store",
    "shardrun.db.sqlite.fetch": "tests/payloads",
    "shardrun.db.sqlite.insert": "tests/store/test_insert.py",
    "shardrun.db.sqlite.lists": "tests/store",
    "shardrun.db.sqlite.locks": "tests/store/test_locks_of_a_file.py",
    "shardrun.db.sqlite.offers": "tests/store/test_offers.py",
    "shardrun.db.sqlite.operate": "tests/store/test_requeue.py",
    "shardrun.db.sqlite.server": "tests/store",
    "shardrun.db.sqlite.spelling": "tests/hostile/test_spelt_times.py",
    "shardrun.db.sqlite.strands": "tests/store/test_strands_sqlite.py",
    "shardrun.db.sqlite.taking": "tests/child/test_transactions.py",
    "shardrun.db.sqlite.taking_offered": "tests/child/test_transactions.py",
    "shardrun.db.sqlite.times": "tests/hostile",
    "shardrun.lock_key": "tests/unit/test_handler.py",
}
"""Modules that no test imports, and the test module or folder that runs them all the same."""

FORBIDDEN_WORDS = re.compile(
    r"\b(jobs?|worker process(es)?|dequeues?d?|heartbeats?|visibility timeouts?|prefetch(es|ed)?|envelopes?|receipts?"
    r"|watchdogs?|masters?|actors?|routing keys?|failed queues?|graceful(ly)?|throttles?d?|sagas?|hot[- ]swap)\b",
    re.IGNORECASE,
)
"""Words that the glossary has another word for."""

OTHERS_NAMES = re.compile(r"\binvoice_jobs\b|\bjobs/|\bsqlite_master\b")
"""Names that users gave in examples, or that a database gives."""

TASK = re.compile(r"\btasks?\b", re.IGNORECASE)
SPEAKS_OF_ASYNCIO = re.compile(r"asyncio|event loop|async def")

DIALECT = re.compile(r"postgres|psycopg|sqlite|mysql|mariadb", re.IGNORECASE)
MAY_NAME_DIALECTS = ("db/", "demo/", "contrib/", "cli.py", "cli_frame.py", "boot.py", "config.py", "screens.py")

HOSTS = re.compile(
    "|".join(re.escape(host.replace("_", ".")) for host in ("pypi_org", "pythonhosted_org", "debian_org"))
)
ONE_MACHINE = re.compile(r"(?<![\w./$}])/(work|root|home|Users|opt/pypi)/")

USERS_OWN = ("draw", "ready", "send", "customers", "fetch")
"""Functions that README's snippets call and leave to the reader."""


def name(path: Path) -> str:
    """Name a module as imports do."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def docstring(node: ast.AST) -> ast.Expr | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def imported(tree: ast.Module) -> set[str]:
    """List what a module imports: modules, and names that may be modules."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / file for file in listing.split("\0") if file and (ROOT / file).is_file()]


def settings() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"])


def test_imports_go_down_only_and_drivers_stay_in_their_dialects() -> None:
    """Architecture 3: the import contracts hold."""
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    result = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_contracts_leave_no_module_and_no_import_out() -> None:
    """Architecture 3: every module has its layer, and no contract has exceptions."""
    contracts = settings()["contracts"]
    assert isinstance(contracts, list)
    assert [contract["name"] for contract in contracts if "ignore_imports" in contract] == []
    layers = [layer.strip() for line in contracts[0]["layers"] for layer in line.split("|")]
    children = {name(path) for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__init__.py")]} - {"shardrun"}
    assert children - set(layers) == set()


def test_an_import_outside_a_packages_home_breaks_its_contract() -> None:
    """Architecture 3: the contract for drivers finds what it is for."""
    graph = grimp.ImportGraph()
    graph.add_module("psycopg", is_squashed=True)
    for module in ("shardrun.db.postgres.server", "shardrun.db.postgresql", "shardrun.boot"):
        graph.add_module(module)
        graph.add_import(importer=module, imported="psycopg")
    options = {"name": "n", "package": "psycopg", "homes": ["shardrun.db.postgres"]}
    check = OnlyIn("n", {}, options).check(graph, verbose=False)
    assert not check.kept
    assert check.metadata["strangers"] == ["shardrun.boot", "shardrun.db.postgresql"]
    assert OnlyIn("n", {}, {**options, "package": "pymysql"}).check(graph, verbose=False).kept


def test_every_module_is_tested() -> None:
    """Architecture 11: a test imports each module, or the map names the tests that run it."""
    seen: set[str] = set()
    for test in (ROOT / "tests").rglob("*.py"):
        seen |= imported(parsed(test))
    untested = {name(path) for path in MODULES if not docstring_only(path)} - seen - set(PROVED_ELSEWHERE)
    assert untested == set()
    assert [tests for tests in PROVED_ELSEWHERE.values() if not (ROOT / tests).exists()] == []


def docstring_only(path: Path) -> bool:
    tree = parsed(path)
    return len(tree.body) == (1 if docstring(tree) else 0)


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_a_module_is_short_and_so_are_its_functions(path: Path) -> None:
    """Architecture 11: no file over 400 lines, no function over 50, its docstring not counted."""
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    assert [f"{node.name} {length(node)}" for node in functions(parsed(path)) if length(node) > LONGEST_FUNCTION] == []


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    first = docstring(function)
    described = 0 if first is None or first.end_lineno is None else first.end_lineno - first.lineno + 1
    return function.end_lineno - function.lineno + 1 - described


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_a_module_uses_the_glossarys_words(path: Path) -> None:
    """Glossary: one word for each thing, in names, messages and comments."""
    lines = OTHERS_NAMES.sub("", path.read_text()).replace("_", " ").splitlines()
    speaks_of_asyncio = bool(SPEAKS_OF_ASYNCIO.search(path.read_text()))
    wrong = [line for line in lines if FORBIDDEN_WORDS.search(line) or (TASK.search(line) and not speaks_of_asyncio)]
    assert wrong == []


@pytest.mark.parametrize("path", [path for path in MODULES if not short(path).startswith(MAY_NAME_DIALECTS)], ids=short)
def test_code_outside_db_names_no_dialect(path: Path) -> None:
    """Architecture 3: what knows one database from another is in db/; docstrings may say why."""
    tree = parsed(path)
    described = {id(expression.value) for node in ast.walk(tree) if (expression := docstring(node)) is not None}
    words = [word for node in ast.walk(tree) if id(node) not in described for word in spelled(node)]
    assert [word for word in words if DIALECT.search(word)] == []


def spelled(node: ast.AST) -> list[str]:
    """List the names and texts that a node of code spells itself."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [
        value
        for field in ("id", "attr", "name", "arg", "module")
        if isinstance(value := getattr(node, field, None), str)
    ]


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    """Architecture 5: frames are msgpack; no text becomes code."""
    tree = parsed(path)
    assert imported(tree) & {"pickle", "marshal", "shelve", "dill"} == set()
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & {"eval", "exec", "compile"} == set()


def test_no_tracked_file_names_a_registry_or_one_machines_paths() -> None:
    """Brief: whoever clones it may use another index and another folder."""
    found = []
    for path in tracked():
        text = path.read_text(errors="replace")
        found += [f"{path.name}: {match.group()}" for match in [*HOSTS.finditer(text), *ONE_MACHINE.finditer(text)]]
    assert found == []


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_alone_prints_every_target() -> None:
    """Contract 3: `make` says what there is."""
    result = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(re.findall(r"^  ([a-z]+) ", result.stdout, re.MULTILINE)) == targets()


def test_readme_names_the_two_commands_and_only_targets_that_exist() -> None:
    """Contract 3: `make demo` and `make test`."""
    named = set(re.findall(r"(?:^|`|\$ |    )make ([a-z]+)", README.read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named - targets() == set()


def test_readmes_python_is_right_as_it_stands(tmp_path: Path) -> None:
    """Contract 4: README's snippets compile, and mypy --strict accepts them."""
    snippets = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert snippets
    left_to_the_reader = "".join(f"\n\ndef {own}(*_: Any) -> Any: ...\n" for own in USERS_OWN)
    files = []
    for number, snippet in enumerate(snippets):
        compile(snippet, f"README.md, snippet {number + 1}", "exec")
        files.append(tmp_path / f"snippet_{number + 1}.py")
        files[-1].write_text(f"{snippet}\n\nfrom typing import Any\n{left_to_the_reader}")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), *map(str, files)]
    result = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
