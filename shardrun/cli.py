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

SECTIONS = {"Run": ("start", "check"), "Tables and rows": ("ddl", "enqueue")}

EXAMPLE = """\b
Example: shardrun start handlers.py --connection-limit 12

\b
Signals: SIGTERM or SIGINT (Ctrl-C) drains, a second one ends at once;
SIGHUP replaces the children one by one with fresh code."""

HANDLERS = click.argument("handlers", nargs=-1, metavar="HANDLERS...")
DSN = click.option("--dsn", metavar="DSN", help="The database; else SHARDRUN_DSN, DATABASE_URL, sqlite:///shardrun.db.")
CONFIG = click.option("--config", metavar="FILE", help="Settings; default: shardrun.toml, pyproject.toml.")
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
    """Lists commands by what they are for, ends the help with the exit codes, and usage errors with one sentence."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; what cannot be understood is said as all else is (exit code 2)."""
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.UsageError as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
                click.echo(error.format_message(), err=True)
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


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(version("shardrun"), prog_name="shardrun", message="%(prog)s %(version)s")
def main() -> None:
    """Work off rows of your own SQL tables on all cores, in order per key.

    HANDLERS is a file (handlers.py), a folder (jobs/) or an import path (pkg.mod, pkg.mod:invoices). The database is --dsn,
    SHARDRUN_DSN or DATABASE_URL, else sqlite:///shardrun.db. Each option has a SHARDRUN_* variable and a key in
    shardrun.toml.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@main.command(epilog=EXAMPLE)
@options(
    HANDLERS,
    DSN,
    *RUNNING,
    click.option("--until-empty", is_flag=True, default=None, help="End when nothing is due and nothing is in work."),
    CONFIG,
)
def start(**flags: Any) -> None:
    """Run one replica: claim rows and hand them to the children."""
    opened = _open(flags)
    settings = opened.settings
    logs.configure(settings.log_level, settings.log_format)
    for line in screens.banner(opened, boot.replica_name()):
        if settings.log_format == "json":
            screens.log.info("%s", line.strip())
        else:
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
    """Print the CREATE statements; --apply runs what is missing.

    For every queue: its table, the index that its claim order needs, its dead letters. What exists is never altered.
    """
    settings = _settings(flags)
    declared = registry.load(settings.handlers, command="ddl", needs_handlers=False)
    statements = boot.ddl(settings, declared, apply)
    for statement in statements:
        _print(statement)
    if apply:
        count = len(statements)
        done = f"ran {count} {'statement' if count == 1 else 'statements'}" if count else "nothing is missing"
        click.echo(f"shardrun: {done}", err=True)


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
    """Insert rows, for trying things out.

    One row per JSON argument, or per line of stdin; all in one transaction.
    """
    settings = _settings({**flags, "handlers": (queue,)})
    chosen = _one_queue(queue)
    given = {"--key": ("partition_key", key), "--group": ("group", group), "--priority": ("priority", priority)}
    given["--after"] = ("retry_after", after)
    roles = {role: _for_role(chosen, flag, role, value) for flag, (role, value) in given.items() if value is not None}
    rows = [{"payload": _for_role(chosen, "JSON", "payload", body), **roles} for body in _bodies(payloads)]
    count = boot.enqueue(settings, chosen, rows)
    _print(f"{count} {'row' if count == 1 else 'rows'} enqueued into {chosen.table}")


def _for_role(queue: Queue[Any], flag: str, role: str, value: Any) -> Any:
    if role in queue.roles:
        return value
    where = f"queue {queue.name} ({os.path.basename(queue.source.file)}:{queue.source.line})"
    raise UsageProblem(
        f'{flag} goes to the {role} column, which {where} does not name. Add {role}="<column>" to Queue(...).'
    )


def _bodies(payloads: tuple[str, ...]) -> list[Any]:
    if payloads:
        return [_parsed(text, "") for text in payloads]
    if sys.stdin.isatty():
        click.echo("shardrun: reading JSON from the terminal, one row per line; Ctrl-D ends it", err=True)
    return [_parsed(line, f"line {number} of stdin, ") for number, line in enumerate(sys.stdin, 1) if line.strip()]


def _one_queue(source: str) -> Queue[Any]:
    queues = registry.load([source], command="enqueue", needs_handlers=False).queues
    if len(queues) != 1:
        names = ", ".join(f"{source}:{queue.name}" for queue in queues)
        raise UsageProblem(f"{source} declares {len(queues)} queues; name one of them: {names or 'none'}")
    return queues[0]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        shown = text.strip()[:80]
        raise UsageProblem(f"{where}{shown!r} is not JSON ({error}). Quote a string: '\"text\"'") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


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
