"""Read what the command line names as handler modules: files, folders and import paths, with `:attribute` or without."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shardrun.errors import UsageProblem

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Source:
    """One source: as the user wrote it, the absolute file or folder (or else the import path), and an attribute."""

    shown: str
    target: str
    is_path: bool
    attribute: str | None

    @property
    def absolute(self) -> str:
        """Write the source so that it means the same from every working directory."""
        return self.target if self.attribute is None else f"{self.target}:{self.attribute}"


def locate(source: str) -> Source:
    """Find out what a source means; raises `UsageProblem` where it cannot be a handler module."""
    target, attribute = _split(source)
    path = os.path.abspath(target)
    if (target and os.path.isdir(path)) or (os.path.isfile(path) and target.endswith(".py")):
        return Source(target, path, True, attribute)
    if target and os.path.exists(path):
        raise UsageProblem(
            f"{target} is not a Python file: a handler module is a file that ends with .py, or a folder."
        )
    if os.sep not in target and not target.endswith(".py") and _DOTTED.fullmatch(target):
        return Source(target, target, False, attribute)
    raise UsageProblem(f"{target or repr(source)} does not exist in {os.getcwd()}.{near(target, _neighbours(target))}")


def files_of(source: Source) -> list[str]:
    """List the files that a source names: a package's own, or a folder's that do not begin with `_`."""
    if not source.is_path:
        return []
    if not os.path.isdir(source.target):
        return [source.target]
    init = os.path.join(source.target, "__init__.py")
    return [init] if os.path.isfile(init) else members(source.target)


def members(folder: str) -> list[str]:
    """List a folder's modules, in order of their names."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py") and not name.startswith("_"))
    return [os.path.join(folder, name) for name in names]


def no_such_module(dotted: str) -> UsageProblem:
    """Say that an import path leads nowhere, with what lies near it."""
    *parents, _ = dotted.split(".")
    folder = os.path.join(os.getcwd(), *parents)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    stems = [os.path.splitext(name)[0] for name in names if name.endswith(".py") or "." not in name]
    return UsageProblem(
        f"{dotted} does not exist: Python finds no such module in {os.getcwd()} or elsewhere on its path."
        f"{near(dotted, ['.'.join([*parents, stem]) for stem in stems])}"
    )


def near(name: str, known: Iterable[str]) -> str:
    """Name what was probably meant, as a sentence to append; empty where nothing is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" Near it: {', '.join(matches)}" if matches else ""


def _split(source: str) -> tuple[str, str | None]:
    target, colon, attribute = source.rpartition(":")
    if colon and not os.path.exists(source) and _DOTTED.fullmatch(attribute):
        return target, attribute
    return source, None


def _neighbours(target: str) -> list[str]:
    folder = os.path.dirname(target)
    if not os.path.isdir(folder or "."):
        return []
    names = os.listdir(folder or ".")
    return [os.path.join(folder, name) for name in names if name.endswith(".py") or "." not in name]
