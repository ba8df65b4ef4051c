"""Load handler modules by path, and list what they declare: queues, and subscriptions under labels that children find again.

All problems are raised at once. Loading the same sources again gives the same labels, in this process and in a child.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from shardrun import modules
from shardrun.errors import Problems, ShardrunError, UsageProblem
from shardrun.queue import Queue, Subscription
from shardrun.signature import place
from shardrun.sources import Source, files_of, locate, members, near, no_such_module

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Declared:
    """What the sources declare, in their order; `sources` are absolute, to load the same again in a child.

    `labels` name the subscriptions, `invoices/render`: the queue's module variable and the handler's function. Those that
    would be equal are numbered, `invoices/render#2`.
    """

    subscriptions: list[Subscription]
    labels: list[str]
    queues: list[Queue[Any]]
    sources: list[str]


@dataclass(frozen=True, slots=True)
class _Variable:
    """A queue and the module variable that it goes by."""

    queue: Queue[Any]
    module: ModuleType
    name: str


def load(sources: Sequence[str], *, command: str = "start", needs_handlers: bool = True) -> Declared:
    """Import the sources and return what they declare; names every queue after its module variable.

    `command` is the one that messages suggest; `needs_handlers` refuses a source without any. Raises `UsageProblem`, or
    `Problems` for several; the `__cause__` of one is the user's own exception.
    """
    if not sources:
        raise UsageProblem(
            f"no handler module was named. Try: shardrun {command} handlers.py "
            '(or put handlers = ["handlers.py"] into shardrun.toml)'
        )
    located = _each(locate, sources)
    for source in located:
        for file in files_of(source):
            modules.add_root(modules.home(file))
    imported = _each(lambda source: (source, _import(source)), located)
    modules.add_path(os.getcwd())
    variables = name_queues()
    selected = _each(lambda pair: _select(*pair, variables, needs_handlers), imported)
    subscriptions = _unique(each for _, chosen in selected for each in chosen)
    _each(_check_named, subscriptions)
    queues = _unique(queue for chosen, _ in selected for queue in chosen)
    return Declared(subscriptions, _labels(subscriptions), queues, [source.absolute for source in located])


def name_queues() -> list[_Variable]:
    """Name every queue after its variable in the module that declares it, else in the first that has it."""
    found: dict[int, _Variable] = {}
    for module in [each for each in sys.modules.values() if isinstance(each, ModuleType)]:
        for name, queue in _queues_in(module):
            known = found.get(id(queue))
            if known is None or (_declares(module, queue) and not _declares(known.module, queue)):
                found[id(queue)] = _Variable(queue, module, name)
    for variable in found.values():
        variable.queue.name = variable.name
    return list(found.values())


def _import(source: Source) -> list[ModuleType]:
    """Import a source's modules; a package whose own code binds no handler is asked for its files as well."""
    if source.is_path:
        files = files_of(source)
        if not files:
            raise UsageProblem(f"{source.shown} has no .py file (those that begin with _ are left out).")
        found = _each(lambda file: _import_file(source, file), files)
    else:
        found = [_import_path(source)]
    folders = getattr(found[0], "__path__", ())
    if len(found) > 1 or any(_handlers_in(module) for module in found) or source.attribute is not None:
        return found
    return found + _each(lambda file: _import_file(source, file), [file for each in folders for file in members(each)])


def _import_file(source: Source, file: str) -> ModuleType:
    shown = source.shown if file == source.target else os.path.join(source.shown, os.path.basename(file))
    try:
        return modules.import_file(file)
    except (
        Exception,
        SystemExit,
    ) as error:  # the user's own code: nothing was started, the sentence says where it failed
        raise modules.import_problem(shown, file, error) from error


def _import_path(source: Source) -> ModuleType:
    try:
        module = modules.import_path(source.target)
    except (Exception, SystemExit) as error:  # as above
        raise modules.import_problem(source.shown, None, error) from error
    if module is None:
        raise no_such_module(source.target)
    return module


def _select(
    source: Source, found: Sequence[ModuleType], variables: Sequence[_Variable], needs_handlers: bool
) -> tuple[list[Queue[Any]], list[Subscription]]:
    """Choose what a source declares: the queues and subscriptions of its modules, or those of its attribute."""
    if source.attribute is None:
        queues = [queue for module in found for _, queue in _queues_in(module)]
        elsewhere = [each.queue for each in variables if each.queue not in queues]
        chosen = [each for queue in queues for each in queue.subscriptions]
        chosen += [each for module in found for queue in elsewhere for each in _bound_in(module, queue)]
    else:
        value = _attribute(source, found)
        queues = [value] if isinstance(value, Queue) else []
        known = [each.queue for each in variables]
        chosen = [each for queue in queues or known for each in queue.subscriptions if queues or each.function is value]
        if not queues and not chosen:
            raise UsageProblem(
                f"{source.shown}:{source.attribute} is {_kind(value)}, neither a queue nor a handler of one."
            )
    if needs_handlers and not chosen:
        raise _nothing_to_run(source.shown, queues)
    return _unique([*queues, *(each.queue for each in chosen)]), chosen


def _attribute(source: Source, found: Sequence[ModuleType]) -> Any:
    read = attrgetter(source.attribute or "")
    for module in found:
        try:
            return read(module)
        except AttributeError:
            continue
    names = [name for module in found for name, _ in _queues_in(module)]
    names += [each.name for module in found for each in _handlers_in(module)]
    has = f" It has: {', '.join(names)}" if names else ""
    raise UsageProblem(f"{source.shown} has no {source.attribute}.{near(source.attribute or '', names) or has}")


def _labels(subscriptions: Sequence[Subscription]) -> list[str]:
    seen: dict[str, int] = {}
    labels = []
    for each in subscriptions:
        label = f"{each.queue.name}/{each.name}"
        seen[label] = seen.get(label, 0) + 1
        labels.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return labels


def _check_named(subscription: Subscription) -> None:
    """Refuse a class, a partial and other callables that are no functions: nothing could call or name them."""
    function = subscription.function
    if isinstance(function, type) or not isinstance(getattr(function, "__name__", None), str):
        raise UsageProblem(
            f"queue {subscription.queue.name} ({place(subscription.source)}): its handler is {_kind(function)}. "
            f"Put @{subscription.queue.name}.handler() above a function."
        )


def _nothing_to_run(shown: str, queues: Sequence[Queue[Any]]) -> UsageProblem:
    if not queues:
        return UsageProblem(
            f"{shown} declares nothing to run. It has no queue: declare one at module level, "
            'invoices = Queue("invoice_jobs", id="id", payload="payload", locked_until="locked_until"), '
            "and put @invoices.handler() above a function."
        )
    listed = " and ".join(f"{queue.name} (line {queue.source.line})" for queue in queues)
    noun = f"a queue, {listed}," if len(queues) == 1 else f"{len(queues)} queues, {listed},"
    return UsageProblem(
        f"{shown} declares nothing to run. It has {noun} without a handler: put @{queues[0].name}.handler() above a function."
    )


def from_objects(objects: Iterable[object]) -> Declared:
    """Find what `shardrun.run` was given (queues, handlers, modules, sources) again as sources that a child can load."""
    variables = name_queues()
    sources: list[str] = []
    wanted: set[int] = set()
    for each in objects:
        if isinstance(each, str | os.PathLike):
            declared = load([os.fspath(each)])
            sources += declared.sources
            wanted |= {id(subscription) for subscription in declared.subscriptions}
            continue
        chosen = _of_object(each, variables)
        wanted |= {id(subscription) for subscription in chosen}
        sources += [_source_of(module) for subscription in chosen for module in _modules_of(subscription, variables)]
    whole = load(list(dict.fromkeys(sources)), needs_handlers=False)
    kept = [(each, label) for each, label in zip(whole.subscriptions, whole.labels, strict=True) if id(each) in wanted]
    subscriptions = [each for each, _ in kept]
    return Declared(
        subscriptions, [label for _, label in kept], _unique(each.queue for each in subscriptions), whole.sources
    )


def _of_object(value: object, variables: Sequence[_Variable]) -> list[Subscription]:
    queues = [value] if isinstance(value, Queue) else []
    if isinstance(value, ModuleType):
        chosen = _handlers_in(value)
        queues = [queue for _, queue in _queues_in(value)]
    elif queues:
        chosen = [each for queue in queues for each in queue.subscriptions]
    else:
        chosen = [each for variable in variables for each in variable.queue.subscriptions if each.function is value]
        if not chosen:
            raise UsageProblem(
                f"shardrun.run takes queues, handlers, modules and paths; {_kind(value)} is none of them."
            )
    if not chosen:
        raise _nothing_to_run(queues[0].name if len(queues) == 1 else str(getattr(value, "__name__", "")), queues)
    return chosen


def _modules_of(subscription: Subscription, variables: Sequence[_Variable]) -> list[ModuleType]:
    """List the modules that a child must import to find a subscription: its queue's, and its function's."""
    homes = [variable.module for variable in variables if variable.queue is subscription.queue]
    if not homes:
        raise UsageProblem(
            f"queue {subscription.queue.name} ({place(subscription.queue.source)}) is no variable of a module: children find "
            "it by that name. Declare it at module level."
        )
    function_home = sys.modules.get(getattr(subscription.function, "__module__", None) or "")
    return _unique([*homes, *([function_home] if function_home else [])])


def _source_of(module: ModuleType) -> str:
    """Name a module so that a child can import it: its file, or its import path where it has none."""
    file: str | None = getattr(module, "__file__", None)
    if file and os.path.isfile(file):
        return os.path.realpath(file)
    if module.__name__ == "__main__":
        raise UsageProblem(
            "shardrun.run needs handlers in a file: children import it. Write them to handlers.py and run: "
            "shardrun start handlers.py"
        )
    return module.__name__


def _handlers_in(module: ModuleType) -> list[Subscription]:
    return [each for _, queue in _queues_in(module) for each in queue.subscriptions]


def _bound_in(module: ModuleType, queue: Queue[Any]) -> list[Subscription]:
    """List a queue's handlers that a module defines, though the queue is another module's variable."""
    return [each for each in queue.subscriptions if getattr(each.function, "__module__", None) == module.__name__]


def _queues_in(module: ModuleType) -> Iterator[tuple[str, Queue[Any]]]:
    for name, value in list(vars(module).items()):
        if issubclass(
            type(value), Queue
        ):  # not isinstance: proxies in other modules run code when asked for their class
            yield name, value


def _declares(module: ModuleType, queue: Queue[Any]) -> bool:
    return os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(queue.source.file)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _each(make: Callable[[Given], Made], given: Iterable[Given]) -> list[Made]:
    """Make something of each, and raise the problems of all of them at once."""
    made: list[Made] = []
    problems: list[ShardrunError] = []
    for each in given:
        try:
            made.append(make(each))
        except Problems as several:
            problems += several.problems
        except ShardrunError as problem:
            problems.append(problem)
    if problems:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    return made


def _unique(given: Iterable[Made]) -> list[Made]:
    return list({id(each): each for each in given}.values())
