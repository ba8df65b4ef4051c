"""What the commands share: options, settings, how help looks, how errors end. Errors are sentences on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, NoReturn

import click

from shardrun import config, modules, registry
from shardrun.errors import Problems, ShardrunError, UsageProblem
from shardrun.registry import Declared
from shardrun.sources import near

EXIT_CODES = "Exit codes: 0 done, 1 failed while running, 2 usage or import, 3 no database, 4 the table does not fit."

SECTIONS = {"Run": ("start", "check", "plan"), "Tables and rows": ("ddl", "enqueue", "status", "dead")}

LEVELS = ("debug", "info", "warning", "error")

HANDLERS = click.argument("handlers", nargs=-1, metavar="HANDLERS...", type=click.Path())
QUEUE = click.argument("queue", metavar="HANDLERS:QUEUE", required=False)
DSN = click.option("--dsn", metavar="DSN", help="The database; else SHARDRUN_DSN, DATABASE_URL, sqlite:///shardrun.db.")
CONFIG = click.option(
    "--config", metavar="FILE", type=click.Path(), help="Settings; default: shardrun.toml, pyproject.toml."
)
RUNNING = [
    click.option("-p", "--processes", type=int, metavar="N", help="Children; default: the usable cores."),
    click.option(
        "--pool-size", type=int, metavar="N", help="The coordinator's connections; default 3, more for locks."
    ),
    click.option("--child-pool-size", type=int, metavar="N", help="Connections of each child; default 1."),
    click.option("--connection-limit", type=int, metavar="N", help="Never open more connections than this, in all."),
    click.option("--drain-timeout", type=float, metavar="S", help="Seconds that handlers have on a stop; default 25."),
    click.option(
        "--poll-interval", type=float, metavar="S", help="Seconds between looks at an empty table; default 1."
    ),
    click.option("--listen-notify/--no-listen-notify", default=None, help="Wake by PostgreSQL's NOTIFY, too."),
    click.option(
        "--log-level",
        metavar="L",
        shell_complete=lambda _context, _option, begun: [level for level in LEVELS if level.startswith(begun)],
        help="debug, info, warning or error; default info.",
    ),
    click.option("--log-format", type=click.Choice(["text", "json"]), help="Default text."),
]

Command = Callable[..., Any]


def options(*many: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Put several click decorators above a command, and end it by the rules of this program."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                command(*args, **kwargs)
            except UnicodeEncodeError as error:
                unspelt = error.object[error.start : error.end]
                fail(UsageProblem(f"this locale cannot spell {unspelt!r}. Set one that can: LC_ALL=C.UTF-8"))
            except ShardrunError as error:
                level = kwargs.get("log_level") or os.environ.get(f"{config.PREFIX}LOG_LEVEL") or ""
                fail(error, with_traces=level.lower() == "debug")

        wrapped: Command = guarded
        for option in reversed(many):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def fail(error: ShardrunError, with_traces: bool = False) -> NoReturn:
    """Print what is wrong, all of it, and end with its exit code; `with_traces` adds where users' own imports failed."""
    problems = error.problems if isinstance(error, Problems) else (error,)
    for problem in problems:
        if with_traces and isinstance(problem, UsageProblem) and problem.__cause__ is not None:
            tell(modules.users_traceback(problem.__cause__).rstrip())
    if len(problems) == 1:
        tell(f"shardrun: {problems[0]}")
    else:
        tell(f"shardrun: {len(problems)} problems, nothing was started")
        for number, problem in enumerate(problems, 1):
            tell(f"  {number}. {problem}")
    sys.exit(error.exit_code)


class Program(click.Group):
    """Lists commands by what they are for, ends the help with the exit codes, and usage errors with one sentence."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; what cannot be understood is said as all else is (exit code 2)."""
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.UsageError as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
                tell(error.format_message())
                sys.exit(error.exit_code)
            path = error.ctx.command_path if error.ctx else "shardrun"
            fail(UsageProblem(f"{error.format_message().rstrip('.')}. Try: {path} --help"))
        except click.Abort:
            sys.exit(1)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(100)) for name in names])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the options."""
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)


def settings_of(flags: dict[str, Any]) -> config.Settings:
    """Merge what was given on the command line with variables and file."""
    file = flags.pop("config", None)
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return config.load(given, file, os.environ, os.getcwd())


def one_queue(given: str | None, command: str, configured: Sequence[str]) -> Declared:
    """Load the queue that an argument names: a source that declares one, or one handler of it; or the queue's name alone.

    A name, `invoices` or `:invoices`, is looked for in the configured handlers, and only then among modules and folders.
    Without an argument it is the only queue that they declare.
    """
    name = (given or "").removeprefix(":")
    if not given or given.startswith(":") or (configured and _may_be_name(given)):
        declared = registry.load(configured, command=command, needs_handlers=False)
        chosen = _named(declared, name) if name else declared
        if chosen.queues:
            return _only(chosen, " ".join(configured), "")
        if not given or given.startswith(":"):
            raise _no_queue(name, declared, configured)
        try:
            chosen = registry.load([given], command=command, needs_handlers=False)
        except UsageProblem as problem:
            if problem.__cause__ is not None:  # there is such a module, and it fails
                raise
        if not chosen.queues:
            raise _no_queue(name, declared, configured)
        return _only(chosen, given, f"{given}:")
    return _only(registry.load([given], command=command, needs_handlers=False), given, f"{given}:")


def _may_be_name(given: str) -> bool:
    """Tell what may stand for a queue's name: no path, and what is none is said so as such (JSON, a row's id)."""
    return given.isidentifier() or given[0] in '{["-0123456789'


def _named(declared: Declared, name: str) -> Declared:
    """Keep the queues of a name, else the queues of the handlers of that name."""
    queues = [queue for queue in declared.queues if queue.name == name]
    pairs = list(zip(declared.subscriptions, declared.labels, strict=True))
    kept = [pair for pair in pairs if (pair[0].queue in queues if queues else pair[0].name == name)]
    found = queues or list({id(each.queue): each.queue for each, _ in kept}.values())
    return Declared([each for each, _ in kept], [label for _, label in kept], found, declared.sources)


def _only(declared: Declared, shown: str, prefix: str) -> Declared:
    if len(declared.queues) == 1:
        return declared
    names = [f"{prefix}{queue.name}" for queue in declared.queues]
    if len(set(names)) < len(names):
        names = [f"{os.path.relpath(queue.source.file)}:{queue.name}" for queue in declared.queues]
    listed = ", ".join(names) or "none"
    raise UsageProblem(f"{shown} declares {len(declared.queues)} queues; name one of them: {listed}")


def _no_queue(name: str, declared: Declared, configured: Sequence[str]) -> UsageProblem:
    where, known = " ".join(configured), [queue.name for queue in declared.queues]
    if not known:
        return UsageProblem(f"{where} declares no queue.")
    has = near(name, known) or f" It has: {', '.join(known)}"
    return UsageProblem(f"{where} has no queue {name}.{has}")


def show(*lines: str, colourful: bool = False) -> None:
    """Print to stdout; a reader that went away is no failure of ours, a full disk is one."""
    try:
        for line in lines:
            click.echo(line, color=colourful)
    except OSError as error:
        sys.stdout = None  # so that Python does not try again at its end
        if not isinstance(error, BrokenPipeError):
            raise ShardrunError(f"stdout could not be written: {error.strerror}.") from error


def tell(*lines: str, colourful: bool = False) -> None:
    """Print to stderr; where nobody can read it, there is nowhere left to say so."""
    with suppress(OSError):
        for line in lines:
            click.echo(line, err=True, color=colourful)
