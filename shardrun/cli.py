"""The command line: `shardrun start`, `check`, `ddl`, `enqueue`. Errors are sentences on stderr, never a traceback of ours."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.metadata import version
from typing import Any, NoReturn

import click

from shardrun import boot, config, logs, registry, screens
from shardrun.errors import Problems, ShardrunError, UsageProblem
from shardrun.queue import Queue

EXIT_CODES = "Exit codes: 0 done, 1 failed while running, 2 usage or import, 3 no database, 4 the table does not fit."

HANDLERS = click.argument("handlers", nargs=-1)
DSN = click.option("--dsn", metavar="DSN", help="The database; else SHARDRUN_DSN, DATABASE_URL, sqlite:///shardrun.db.")
CONFIG = click.option("--config", metavar="FILE", help="A shardrun.toml.")
RUNNING = [
    click.option("-p", "--processes", type=int, metavar="N", help="Children; default: the usable cores."),
    click.option("--pool-size", type=int, metavar="N", help="The coordinator's connections; default 3."),
    click.option("--child-pool-size", type=int, metavar="N", help="Connections of each child; default 1."),
    click.option("--connection-limit", type=int, metavar="N", help="Never open more connections than this, in all."),
    click.option("--drain-timeout", type=float, metavar="S", help="Seconds that handlers have on a stop; default 25."),
    click.option(
        "--poll-interval", type=float, metavar="S", help="Seconds between looks at an empty table; default 1."
    ),
    click.option("--listen-notify/--no-listen-notify", default=None, hidden=True),  # known, to be refused by name
    click.option("--log-level", metavar="L", help="debug, info, warning or error; default info."),
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
            except ShardrunError as error:
                fail(error)

        wrapped: Command = guarded
        for option in reversed(many):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def fail(error: ShardrunError) -> NoReturn:
    """Print what is wrong, all of it, and end with its exit code."""
    problems = error.problems if isinstance(error, Problems) else (error,)
    if len(problems) == 1:
        click.echo(f"shardrun: {problems[0]}", err=True)
    else:
        click.echo(f"shardrun: {len(problems)} problems, nothing was started", err=True)
        for number, problem in enumerate(problems, 1):
            click.echo(f"  {number}. {problem}", err=True)
    sys.exit(error.exit_code)


class Group(click.Group):
    """Ends the help with the exit codes, and usage errors with one sentence."""

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the commands."""
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("shardrun"), prog_name="shardrun")
def main() -> None:
    """Work off rows of your own SQL tables on all cores, in order per key.

    HANDLERS is a file (handlers.py), a folder (jobs/) or an import path (pkg.mod, pkg.mod:invoices). The database is --dsn,
    SHARDRUN_DSN or DATABASE_URL, else sqlite:///shardrun.db. Each option has a SHARDRUN_* variable and a key in
    shardrun.toml.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@main.command()
@options(
    HANDLERS,
    DSN,
    *RUNNING,
    click.option("--until-empty", is_flag=True, default=None, help="End when nothing is due and nothing is in work."),
    CONFIG,
)
def start(**flags: Any) -> None:
    """Run one replica: claim rows and hand them to the children.

    \b
    Example: shardrun start handlers.py --connection-limit 12
    Signals: SIGTERM or SIGINT drains, a second one ends at once; SIGHUP replaces the children with fresh code.
    """
    opened = _open(flags)
    settings = opened.settings
    logs.configure(settings.log_level, settings.log_format)
    for line in screens.banner(opened, boot.replica_name()):
        click.echo(line, err=True)
    summary = boot.start(opened, screens.Ticker().tick)
    if settings.until_empty and not summary.interrupted:
        _print(str(summary))
    else:
        screens.log.info("stopped: %s", summary)
    sys.exit(1 if summary.interrupted else 0)


@main.command()
@options(HANDLERS, DSN, *RUNNING, CONFIG)
def check(**flags: Any) -> None:
    """Say what would keep HANDLERS from starting; change nothing."""
    opened = _open(flags)
    for line in screens.checked(opened):
        _print(line)


@main.command()
@options(HANDLERS, DSN, click.option("--apply", is_flag=True, help="Create what is missing."), CONFIG)
def ddl(apply: bool, **flags: Any) -> None:
    """Print the CREATE statements; --apply runs what is missing and never alters what exists."""
    settings = _settings(flags)
    declared = registry.load(settings.handlers, command="ddl", needs_handlers=False)
    for statement in boot.ddl(settings, declared, apply):
        _print(statement)


@main.command()
@options(
    click.argument("queue", metavar="HANDLERS:QUEUE"),
    click.argument("payloads", nargs=-1, metavar="JSON..."),
    DSN,
    click.option("--key", help="The partition key."),
    click.option("--group", help="The group."),
    click.option("--priority", type=int, metavar="N", help="Smaller runs first."),
    click.option("--after", type=float, metavar="S", help="Due after S seconds."),
    CONFIG,
)
def enqueue(
    queue: str, payloads: tuple[str, ...], key: Any, group: Any, priority: Any, after: Any, **flags: Any
) -> None:
    """Insert rows, for trying things out: one per JSON argument, or one per line of stdin."""
    settings = _settings({**flags, "handlers": (queue,)})
    chosen = _one_queue(queue)
    roles = {"partition_key": key, "group": group, "priority": priority, "retry_after": after}
    given = {role: value for role, value in roles.items() if value is not None}
    lines = payloads or [line for line in sys.stdin if line.strip()]
    count = boot.enqueue(settings, chosen, [{"payload": _parsed(line), **given} for line in lines])
    _print(f"{count} {'row' if count == 1 else 'rows'} enqueued into {chosen.table}")


def _one_queue(source: str) -> Queue[Any]:
    queues = registry.load([source], command="enqueue", needs_handlers=False).queues
    if len(queues) != 1:
        names = ", ".join(f"{source}:{queue.name}" for queue in queues)
        raise UsageProblem(f"{source} declares {len(queues)} queues; name one of them: {names or 'none'}")
    return queues[0]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UsageProblem(f"{line.strip()[:80]!r} is not JSON ({error}). Quote a string: '\"text\"'") from error


def _settings(flags: dict[str, Any]) -> config.Settings:
    file = flags.pop("config", None)
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return config.load(given, file, os.environ, os.getcwd())


def _open(flags: dict[str, Any]) -> boot.Opened:
    settings = _settings(flags)
    return boot.open_all(settings, registry.load(settings.handlers))


def _print(*lines: str | Iterable[str]) -> None:
    """Print to stdout; a reader that went away is no failure of ours."""
    try:
        for line in lines:
            click.echo(line)
    except BrokenPipeError:
        sys.stdout = None
