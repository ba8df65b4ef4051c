"""Merge the settings of one replica, by presence: a flag beats a SHARDRUN_* variable, which beats the file.

The file is --config, else shardrun.toml, else `[tool.shardrun]` of pyproject.toml, in the working directory. An empty variable
counts as unset. All problems are found at once.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

from shardrun.cores import usable_cores
from shardrun.errors import Problems, ShardrunError, UsageProblem

DEFAULT_DSN = "sqlite:///shardrun.db"

FILE = "shardrun.toml"
PYPROJECT = "pyproject.toml"
PREFIX = "SHARDRUN_"

Count = Annotated[int, msgspec.Meta(ge=1)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Interval = Annotated[float, msgspec.Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What `shardrun start` was told, or its defaults; times in seconds.

    `dsn_source` says where the DSN came from: a flag's or variable's name, the file, or "default".
    """

    handlers: tuple[str, ...] = ()
    dsn: str = DEFAULT_DSN
    dsn_source: str = "default"
    processes: Count = 1
    pool_size: Count | None = None
    child_pool_size: Count = 1
    connection_limit: Count | None = None
    until_empty: bool = False
    drain_timeout: Time = 25.0
    poll_interval: Interval = 1.0
    listen_notify: bool = False
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"

    def __repr__(self) -> str:
        """Write the settings without the DSN's password."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__} | {"dsn": hide_password(self.dsn)}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class _Given(NamedTuple):
    """A value and where it was given; text from a variable is read as the key's type, all else must have it."""

    value: Any
    where: str
    is_text: bool = False


_EXPECTED = {
    "handlers": "a list of handler modules",
    "dsn": "a DSN, such as postgresql://user@host/database",
    "processes": "a whole number, 1 or more",
    "pool_size": "a whole number, 1 or more",
    "child_pool_size": "a whole number, 1 or more",
    "connection_limit": "a whole number, 1 or more",
    "until_empty": "true or false",
    "drain_timeout": "seconds, 0 or more",
    "poll_interval": "seconds, more than 0",
    "listen_notify": "true or false",
    "log_level": "debug, info, warning or error",
    "log_format": "text or json",
}

KEYS = {name: kind for name, kind in get_type_hints(Settings, include_extras=True).items() if name != "dsn_source"}


def load(flags: Mapping[str, object], config_file: str | None, environ: Mapping[str, str], cwd: str) -> Settings:
    """Merge flags, variables and file; raises `UsageProblem`, or `Problems` for several.

    `flags` holds what was given on the command line, by key; a None counts as not given.
    """
    problems: list[ShardrunError] = []
    given = _from_file(config_file or environ.get(f"{PREFIX}CONFIG") or None, cwd, problems)
    given |= _from_variables(environ)
    given |= _from_flags(flags, problems)
    values: dict[str, Any] = {}
    for key, each in given.items():
        try:
            values[key] = _converted(key, each)
        except UsageProblem as problem:
            problems.append(problem)
    if problems:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    if "dsn" in given:
        values["dsn_source"] = given["dsn"].where
    values.setdefault("processes", usable_cores())
    return Settings(**values)


def hide_password(dsn: str) -> str:
    """Write a DSN as it may be shown: `postgresql://app:***@db/app`."""
    shown = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:/@?]*):.*@", r"\1:***@", dsn, flags=re.DOTALL)
    return re.sub(r"(?i)((?:password|passwd|passphrase|secret)\s*=\s*)('[^']*'|[^&\s]*)", r"\1***", shown)


def _from_file(config_file: str | None, cwd: str, problems: list[ShardrunError]) -> dict[str, _Given]:
    if config_file is not None:
        path = os.path.join(cwd, config_file)
        if not os.path.isfile(path):
            problems.append(UsageProblem(f"{config_file} (--config) does not exist in {cwd}."))
            return {}
        return _read(path, config_file, problems)
    for name in (FILE, PYPROJECT):
        path = os.path.join(cwd, name)
        if os.path.isfile(path) and (found := _read(path, name, problems)):
            return found
    return {}


def _read(path: str, shown: str, problems: list[ShardrunError]) -> dict[str, _Given]:
    try:
        with open(path, "rb") as file:
            table: Any = tomllib.load(file)
    except (OSError, ValueError) as error:
        problems.append(UsageProblem(f"{shown} cannot be read: {error}."))
        return {}
    if os.path.basename(path) == PYPROJECT:
        shown = f"{shown} [tool.shardrun]"
        table = table.get("tool", {}).get("shardrun", {})
    if not isinstance(table, dict):
        problems.append(UsageProblem(f"{shown} is not a table."))
        return {}
    unknown = [key for key in table if key not in KEYS]
    problems += [UsageProblem(f"{shown}: there is no setting {key}.{_near(key)}") for key in unknown]
    return {key: _Given(value, f"{key} in {shown}") for key, value in table.items() if key in KEYS}


def _from_variables(environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for key in KEYS:
        name = f"{PREFIX}{key.upper()}"
        if environ.get(name):
            given[key] = _Given(environ[name], name, is_text=True)
    if "dsn" not in given and environ.get("DATABASE_URL"):
        given["dsn"] = _Given(environ["DATABASE_URL"], "DATABASE_URL", is_text=True)
    return given


def _from_flags(flags: Mapping[str, object], problems: list[ShardrunError]) -> dict[str, _Given]:
    given = {}
    for key, value in flags.items():
        if key not in KEYS:
            problems.append(UsageProblem(f"there is no setting {key}.{_near(key)}"))
        elif value is not None:
            given[key] = _Given(value, "HANDLERS" if key == "handlers" else f"--{key.replace('_', '-')}")
    return given


def _converted(key: str, given: _Given) -> Any:
    value = given.value
    if key == "handlers" and isinstance(value, str):
        value = value.split()
    if key == "log_level" and isinstance(value, str):
        value = value.upper()
    try:
        converted = msgspec.convert(value, KEYS[key], strict=not given.is_text)
    except msgspec.ValidationError:
        converted = math.nan
    if isinstance(converted, float) and not math.isfinite(converted):
        got = "" if key == "dsn" else f", got {(given.value if given.is_text else repr(given.value))[:80]}"
        raise UsageProblem(f"{given.where}: expected {_EXPECTED[key]}{got}.")
    return converted


def _near(key: str) -> str:
    matches = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=3)
    return f" Near it: {', '.join(matches)}" if matches else f" There are: {', '.join(KEYS)}"
