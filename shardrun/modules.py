"""Import a user's module by path: one file is one module, however it is reached, and it takes no other module's name.

    file in no package     named by its stem, or by a name of its own where the stem is a standard or installed module's,
                           or the stem of a file in another handler folder
    file in a package      named from the outermost folder with an __init__.py, so that relative imports work
    import path            looked up as Python does, with the working directory last

Folders are added to the end of sys.path. What Python cannot give, two modules of one name for two folders, is refused
when it is asked for (`_Finder`), also by an import that a handler does later: never the other folder's code.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import ModuleType

from shardrun.errors import UsageProblem

INIT = "__init__.py"

LONGEST_LINE = 120
"""Characters of the user's line in a message. Larger: generated code floods it. Smaller: an import statement is cut."""

_LIBRARIES = [
    os.path.realpath(folder)
    for folder in (
        *(sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(__file__),
    )
]


def import_file(file: str) -> ModuleType:
    """Import a Python file, or return its module where it has been imported before under whatever name."""
    path = os.path.realpath(file)
    loaded = find_loaded(path)
    if loaded is not None:
        return loaded
    root, (first, *rest) = _home(path)
    add_root(root)
    top = os.path.join(root, first)
    name = first if _is_natural(first, root) else _own_name(top)
    if not rest:
        return _import_as(name, path)
    _import_as(name, os.path.join(top, INIT))
    for package in rest[:-1]:
        name = f"{name}.{package}"
        importlib.import_module(name)
    last = _own_name(path) if "." in rest[-1] else rest[-1]
    return _import_as(f"{name}.{last}", path)


def import_path(dotted: str) -> ModuleType | None:
    """Import a module by its dotted path, or return None where there is no such module."""
    add_root(os.getcwd())
    try:
        spec = importlib.util.find_spec(dotted)
    except ModuleNotFoundError as error:
        if error.name and f"{dotted}.".startswith(f"{error.name}."):
            return None
        raise
    if spec is None:
        return None
    loaded = find_loaded(os.path.realpath(spec.origin)) if spec.has_location and spec.origin else None
    return loaded or importlib.import_module(dotted)


def import_problem(shown: str, file: str | None, error: BaseException) -> UsageProblem:
    """Say why a module could not be imported, with the line of the user's own code that failed."""
    at = _failed_line(error)
    where = ""
    if at is not None:
        linecache.checkcache(at[0])
        line = linecache.getline(*at).strip()[:LONGEST_LINE]
        is_own = file is not None and os.path.realpath(at[0]) == os.path.realpath(file)
        where = f'{"" if is_own else f"{os.path.basename(at[0])}, "}line {at[1]}, "{line}": '
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    kind = type(error).__name__
    return UsageProblem(
        f"{shown} could not be imported: {where}{f'{kind}: {text}' if text else kind}".rstrip(".")
        + f".{_way_out(file, error)} Python is {sys.executable}."
    )


def _way_out(file: str | None, error: BaseException) -> str:
    """Name the way out of what beginners meet: importing in a circle, and from a package that there is none of."""
    if not isinstance(error, ImportError) or file is None:
        return ""
    name = os.path.basename(file)
    if "no known parent package" in str(error):
        return f" {name} is in no package: write import x in place of from . import x, or add an {INIT} to its folder."
    if str(error).startswith("cannot import name") and os.path.realpath(error.path or "") == os.path.realpath(file):
        return f" The import is circular: {name} is only half imported here. Import later, or inside the function."
    return ""


def users_traceback(error: BaseException) -> str:
    """Write the traceback of a failed import from the user's first own line on."""
    frames = error.__traceback__
    while frames is not None and _is_library(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _failed_line(error: BaseException) -> tuple[str, int] | None:
    """Find the file and line of the user's code that an import failed at: the innermost that is no library's."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno and not _is_library(error.filename):
        return error.filename, error.lineno
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((at for at in reversed(frames) if not _is_library(at[0])), None)


def _is_library(file: str) -> bool:
    path = os.path.realpath(file)
    return file.startswith("<") or any(path.startswith(folder + os.sep) for folder in _LIBRARIES)


def find_loaded(path: str) -> ModuleType | None:
    """Find the module that was imported from a file, given by its real path."""
    base = os.path.basename(path)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if isinstance(file, str) and os.path.basename(file) == base and os.path.realpath(file) == path:
            return module
    return None


def add_root(folder: str) -> None:
    """Make a folder's modules importable, after everything else, and watch for names that two such folders share."""
    folder = os.path.realpath(folder)
    add_path(folder)
    if folder not in _FINDER.roots:
        _FINDER.roots.append(folder)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def add_path(folder: str) -> None:
    """Make a folder's modules importable, after everything else."""
    if not any(os.path.realpath(entry) == os.path.realpath(folder) for entry in sys.path):
        sys.path.append(folder)
    importlib.invalidate_caches()


def home(file: str) -> str:
    """Return the folder whose modules are a file's siblings (that of its outermost package, where it is in one)."""
    return _home(os.path.realpath(file))[0]


class _Finder(importlib.abc.MetaPathFinder):
    """Comes before Python's finders, only to refuse an ambiguous name and to keep a file from being imported twice."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.names: dict[str, str] = {}  # real path of an imported file -> its module's name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            self._refuse_ambiguous(fullname)
            return None
        file = f"{fullname.rpartition('.')[2]}.py"
        if not any(known.endswith(os.sep + file) for known in self.names):
            return None
        for folder in path:
            name = self.names.get(os.path.realpath(os.path.join(folder, file)), fullname)
            if name != fullname and name in sys.modules:
                return ModuleSpec(fullname, _Alias(sys.modules[name]))
        return None

    def _refuse_ambiguous(self, name: str) -> None:
        files = self.files_of(name)
        if len(files) < 2 or _is_installed(name, self.roots):
            return
        raise ImportError(
            f"{name} is {' and '.join(files)}; in one process Python has one module of a name. Rename one of them, or make "
            f"their folders packages (add an {INIT}) and write: from . import {name}",
            name=name,
        )

    def files_of(self, name: str) -> list[str]:
        """List the files of handler folders that a top-level name could mean."""
        files = []
        for root in self.roots:
            candidates = (os.path.join(root, name, INIT), os.path.join(root, f"{name}.py"))
            files += [file for file in candidates if os.path.isfile(file)][:1]
        return files


class _Alias(importlib.abc.Loader):
    """Hands out a module that exists already, under a second name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


_FINDER = _Finder()


def _home(path: str) -> tuple[str, list[str]]:
    """Split a real path into the folder to import from and the names below it; `a/b/__init__.py` is the module a.b."""
    folder, file = os.path.split(path)
    parts = [] if file == INIT else [os.path.splitext(file)[0]]
    while os.path.isfile(os.path.join(folder, INIT)):
        above, name = os.path.split(folder)
        if not name:
            break
        folder = above
        parts.insert(0, name)
        if "." in name:  # no import statement can name it, so nothing above it is part of the name
            break
    return folder, parts


def _is_natural(name: str, root: str) -> bool:
    """Tell whether `import name` would find the root's own file, and no other folder's."""
    if "." in name or len(_FINDER.files_of(name)) > 1:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    return os.path.realpath(spec.origin) in (os.path.join(root, name, INIT), os.path.join(root, f"{name}.py"))


def _is_installed(name: str, roots: Sequence[str]) -> bool:
    """Tell whether a name is that of a standard or installed module."""
    elsewhere = [entry for entry in sys.path if os.path.realpath(entry) not in roots]
    finders = (BuiltinImporter.find_spec(name), FrozenImporter.find_spec(name), PathFinder.find_spec(name, elsewhere))
    return any(spec is not None and (spec.has_location or spec.origin) for spec in finders)


def _own_name(path: str) -> str:
    """Make a module name that nothing else has, the same in every process."""
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    return f"{stem}__{zlib.crc32(os.fsencode(path)):08x}"


def _import_as(name: str, path: str) -> ModuleType:
    """Import a file, or the package whose __init__.py it is, under a name."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    locations = [os.path.dirname(path)] if os.path.basename(path) == INIT else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _FINDER.names[path] = name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return sys.modules.get(name, module)
