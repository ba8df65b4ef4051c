"""Settings are merged by presence, checked all at once, and never show a password."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from shardrun import config
from shardrun.config import Settings, hide_password
from shardrun.cores import usable_cores
from shardrun.errors import Problems, ShardrunError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shardrun.toml").write_text(
        'handlers = ["a.py", "b.py"]\nprocesses = 3\npool_size = 4\ndsn = "sqlite:///file.db"\nuntil_empty = true\n'
    )
    return tmp_path


def load(
    folder: Path, flags: Mapping[str, object] | None = None, file: str | None = None, /, **environ: str
) -> Settings:
    return config.load(flags or {}, file, environ, str(folder))


def refusals(
    folder: Path, flags: Mapping[str, object] | None = None, file: str | None = None, /, **environ: str
) -> list[str]:
    with pytest.raises(ShardrunError) as caught:
        load(folder, flags, file, **environ)
    assert caught.value.exit_code == 2
    problems = caught.value.problems if isinstance(caught.value, Problems) else (caught.value,)
    return [str(each) for each in problems]


def test_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    """Contract 2: nothing given, nothing in the folder."""
    assert load(tmp_path) == Settings(
        handlers=(),
        dsn="sqlite:///shardrun.db",
        dsn_source="default",
        processes=usable_cores(),
        pool_size=None,
        child_pool_size=1,
        connection_limit=None,
        until_empty=False,
        drain_timeout=25.0,
        poll_interval=1.0,
        listen_notify=False,
        log_level="INFO",
        log_format="text",
    )


def test_a_flag_beats_a_variable_beats_the_file(folder: Path) -> None:
    """Contract 2."""
    assert load(folder).processes == 3
    assert load(folder, SHARDRUN_PROCESSES="5").processes == 5
    assert load(folder, {"processes": 7}, SHARDRUN_PROCESSES="5").processes == 7
    assert load(folder).handlers == ("a.py", "b.py")
    assert load(folder, SHARDRUN_HANDLERS="c.py d.py").handlers == ("c.py", "d.py")
    assert load(folder, {"handlers": ("e.py",)}).handlers == ("e.py",)


def test_presence_counts_not_truth(folder: Path) -> None:
    """Contract 2: a false flag beats a true file; a flag that was not given and an empty variable do not."""
    assert load(folder, {"until_empty": False}).until_empty is False
    assert load(folder, SHARDRUN_UNTIL_EMPTY="0").until_empty is False
    assert load(folder, {"until_empty": None}, SHARDRUN_UNTIL_EMPTY="").until_empty is True
    assert load(folder, {"drain_timeout": 0}).drain_timeout == 0


@pytest.mark.parametrize(
    ("flags", "environ", "dsn", "source"),
    [
        ({"dsn": "a://"}, {"SHARDRUN_DSN": "b://", "DATABASE_URL": "c://"}, "a://", "--dsn"),
        ({}, {"SHARDRUN_DSN": "b://", "DATABASE_URL": "c://"}, "b://", "SHARDRUN_DSN"),
        ({}, {"DATABASE_URL": "c://"}, "c://", "DATABASE_URL"),
        ({}, {}, "sqlite:///file.db", "dsn in shardrun.toml"),
    ],
)
def test_the_dsn_knows_where_it_came_from(
    folder: Path, flags: dict[str, object], environ: dict[str, str], dsn: str, source: str
) -> None:
    """Texts 5 and 8: messages name the source."""
    settings = load(folder, flags, **environ)
    assert (settings.dsn, settings.dsn_source) == (dsn, source)


def test_variables_are_read_as_their_keys_type(tmp_path: Path) -> None:
    """Contract 2: every flag has a SHARDRUN_* variable."""
    settings = load(
        tmp_path,
        SHARDRUN_CONNECTION_LIMIT="12",
        SHARDRUN_DRAIN_TIMEOUT="2.5",
        SHARDRUN_LISTEN_NOTIFY="true",
        SHARDRUN_LOG_LEVEL="debug",
        SHARDRUN_LOG_FORMAT="json",
        SHARDRUN_TEST_POSTGRES="is no setting",
    )
    assert (settings.connection_limit, settings.drain_timeout, settings.listen_notify) == (12, 2.5, True)
    assert (settings.log_level, settings.log_format) == ("DEBUG", "json")


def test_pyproject_serves_where_there_is_no_shardrun_toml(tmp_path: Path) -> None:
    """Contract 2: [tool.shardrun]."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.other]\nx = 1\n[tool.shardrun]\npool_size = 6\ndsn = "sqlite:///p.db"'
    )
    assert load(tmp_path).pool_size == 6
    assert load(tmp_path).dsn_source == "dsn in pyproject.toml [tool.shardrun]"
    (tmp_path / "shardrun.toml").write_text("pool_size = 5")
    assert load(tmp_path).pool_size == 5


def test_config_names_another_file(folder: Path) -> None:
    """Contract 2: --config, or SHARDRUN_CONFIG."""
    (folder / "other.toml").write_text("pool_size = 9")
    assert load(folder, {}, "other.toml").pool_size == 9
    assert load(folder, SHARDRUN_CONFIG="other.toml").pool_size == 9
    assert refusals(folder, {}, "missing.toml") == [f"missing.toml (--config) does not exist in {folder}."]


def test_unknown_keys_are_errors_that_name_what_is_near(tmp_path: Path) -> None:
    """Contract 2: in files of both kinds, and from Python."""
    (tmp_path / "shardrun.toml").write_text("proceses = 2\npool-size = 3\nxyz = 1")
    first, second, third = refusals(tmp_path)
    assert first == "shardrun.toml: there is no setting proceses. Near it: processes"
    assert second == "shardrun.toml: there is no setting pool-size. Near it: pool_size, child_pool_size"
    assert third.startswith("shardrun.toml: there is no setting xyz. There are: handlers, dsn, processes, ")
    assert refusals(tmp_path, {"poll_intervall": 1})[-1] == "there is no setting poll_intervall. Near it: poll_interval"


def test_all_problems_come_at_once_each_with_its_source(tmp_path: Path) -> None:
    """A5: flag, variable and file."""
    (tmp_path / "shardrun.toml").write_text('child_pool_size = "1"\nlog_format = "xml"\nhandlers = [1]')
    assert refusals(tmp_path, {"processes": 0}, SHARDRUN_POOL_SIZE="many", SHARDRUN_POLL_INTERVAL="0") == [
        "child_pool_size in shardrun.toml: expected a whole number, 1 or more, got '1'.",
        "log_format in shardrun.toml: expected text or json, got 'xml'.",
        "handlers in shardrun.toml: expected a list of handler modules, got [1].",
        "SHARDRUN_POOL_SIZE: expected a whole number, 1 or more, got many.",
        "SHARDRUN_POLL_INTERVAL: expected seconds, more than 0, got 0.",
        "--processes: expected a whole number, 1 or more, got 0.",
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {"SHARDRUN_DRAIN_TIMEOUT": "nan"},
        {"SHARDRUN_DRAIN_TIMEOUT": "inf"},
        {"SHARDRUN_DRAIN_TIMEOUT": "-1"},
        {"SHARDRUN_PROCESSES": "1.5"},
        {"SHARDRUN_UNTIL_EMPTY": "maybe"},
        {"SHARDRUN_LOG_LEVEL": "loud"},
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """Contract 2."""
    (name, value), *_ = environ.items()
    (problem,) = refusals(tmp_path, **environ)
    assert problem.startswith(f"{name}: expected ")
    assert problem.endswith(f", got {value}.")


def test_a_file_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    """Contract 2: the line of the mistake."""
    (tmp_path / "shardrun.toml").write_text("processes = \n")
    (problem,) = refusals(tmp_path)
    assert problem.startswith("shardrun.toml cannot be read: Invalid value (at line 1, column 13")
    (tmp_path / "shardrun.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool]\nshardrun = 5")
    assert refusals(tmp_path) == ["pyproject.toml [tool.shardrun] is not a table."]


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://app:secret@db:5432/app", "postgresql://app:***@db:5432/app"),
        ("postgresql://app:se:c@r/et@db/app", "postgresql://app:***@db/app"),
        ("mysql+pymysql://app:secret@db/app", "mysql+pymysql://app:***@db/app"),
        ("postgresql://:secret@db/app", "postgresql://:***@db/app"),
        (
            "postgresql://app@db/app?password=secret&sslmode=require",
            "postgresql://app@db/app?password=***&sslmode=require",
        ),
        ("host=db password='sec ret' user=app", "host=db password=*** user=app"),
        ("host=db PASSWORD = secret", "host=db PASSWORD = ***"),
        ("postgresql://app@db/app", "postgresql://app@db/app"),
        ("sqlite:////srv/app.db", "sqlite:////srv/app.db"),
    ],
)
def test_a_dsn_never_shows_its_password(tmp_path: Path, dsn: str, shown: str) -> None:
    """Contract 2: in no message and no repr."""
    assert hide_password(dsn) == shown
    assert repr(shown) in repr(load(tmp_path, {"dsn": dsn}))
    assert "secret" not in repr(load(tmp_path, {"dsn": dsn}))


def test_a_dsn_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    """Contract 2."""
    assert "secret" not in refusals(tmp_path, {"dsn": ["secret"]})[0]


def group(tmp_path: Path, line: str, **files: str) -> int:
    """Count the cores under a made-up hierarchy of control groups."""
    tmp_path.mkdir()
    (tmp_path / "cgroup").write_text(f"{line}\n")
    for name, text in files.items():
        path = tmp_path / "mount" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores(str(tmp_path / "cgroup"), str(tmp_path / "mount"), affinity=8)


def test_a_quota_bounds_the_usable_cores(tmp_path: Path) -> None:
    """Contract 2: processes = usable cores, by affinity and cgroup quota (v2, v1, of any group above)."""
    assert group(tmp_path / "1", "0::/a/b") == 8
    assert group(tmp_path / "2", "0::/a/b", a__b__cpu_DOT_max="max 100000") == 8
    assert group(tmp_path / "3", "0::/a/b", a__b__cpu_DOT_max="150000 100000") == 2
    assert group(tmp_path / "4", "0::/a/b", a__b__cpu_DOT_max="max 100000", a__cpu_DOT_max="300000 100000") == 3
    assert group(tmp_path / "5", "0::/", cpu_DOT_max="50000 100000") == 1
    v1 = {"cpu,cpuacct__x__cpu_DOT_cfs_quota_us": "250000", "cpu,cpuacct__x__cpu_DOT_cfs_period_us": "100000"}
    assert group(tmp_path / "6", "4:cpu,cpuacct:/x", **v1) == 3
    unlimited = {"cpu__x__cpu_DOT_cfs_quota_us": "-1", "cpu__x__cpu_DOT_cfs_period_us": "100000"}
    assert group(tmp_path / "7", "4:cpu,cpuacct:/x", **unlimited) == 8
    assert group(tmp_path / "8", "0::/a", a__cpu_DOT_max="1600000 100000") == 8
    assert usable_cores(str(tmp_path / "missing"), affinity=4) == 4
    assert usable_cores() >= 1
