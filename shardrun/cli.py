"""The command line: `shardrun start`, `check`, `ddl`, `enqueue`. Errors are sentences on stderr, never a traceback of ours."""

from __future__ import annotations

import json
import os
import signal
import sys
from io import TextIOWrapper
from logging import INFO
from typing import Any, NoReturn

import click

from shardrun import __version__, boot, logs, registry, screens
from shardrun.child.guard import fill_standard_descriptors
from shardrun.cli_frame import (
    CONFIG,
    DSN,
    HANDLERS,
    QUEUE,
    RUNNING,
    Program,
    fail,
    one_queue,
    options,
    settings_of,
    show,
    tell,
)
from shardrun.cli_operate import dead, plan, status
from shardrun.errors import UsageProblem
from shardrun.queue import Queue
from shardrun.terminal import BOLD, GREEN, YELLOW, fold, is_colourful, paint, width

EXAMPLE = """\b
Example: shardrun start handlers.py --connection-limit 12

\b
Signals: SIGTERM or SIGINT (Ctrl-C) drains, a second one ends at once;
SIGHUP replaces the children one by one with fresh code."""


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="shardrun", message="%(prog)s %(version)s")
def main() -> None:
    """Work off rows of your own SQL tables on all cores, in order per key.

    HANDLERS is a file (handlers.py), a folder (jobs/) or an import path (pkg.mod, pkg.mod:invoices). The database is --dsn,
    SHARDRUN_DSN or DATABASE_URL, else sqlite:///shardrun.db. Each option has a SHARDRUN_* variable and a key in
    shardrun.toml.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    fill_standard_descriptors()  # lest a connection gets the number of a closed stream
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot spell ends no command
    try:
        os.getcwd()
    except FileNotFoundError:
        fail(UsageProblem("the working directory is gone. Go to one that is there: cd"))


for command in (plan, status, dead):
    main.add_command(command)


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
    _greet(screens.banner(opened, boot.replica_name()), settings.log_format)
    summary = boot.start(opened, screens.Ticker().tick)
    done = settings.until_empty and not summary.interrupted
    if not done or settings.log_format == "json":
        screens.say_stopped(summary)
    if done:
        show(str(summary))
    sys.exit(1 if summary.interrupted else 0)


def _greet(lines: list[screens.Line], form: str) -> None:
    """Write the banner: whatever the log level, as text; as records where the log is JSON."""
    if form == "json":
        for line in lines:
            screens.log.log(line.level, "%s", line.text.strip(), extra={"fields": line.fields})
        return
    colourful, columns = is_colourful(sys.stderr), width(sys.stderr)
    for number, line in enumerate(lines):
        style = YELLOW if line.level > INFO else BOLD if not number else None
        for part in fold(line.text, columns):
            tell(paint(part, style, colourful) if style else part, colourful=colourful)


@main.command()
@options(HANDLERS, DSN, *RUNNING, CONFIG)
def check(**flags: Any) -> None:
    """Say what would keep HANDLERS from starting; change nothing."""
    opened = _open(flags)
    colourful = is_colourful(sys.stdout)
    for how, sentence in screens.checked(opened):
        style = YELLOW if how == "warn" else GREEN
        first, *more = fold(f"{how:6}{sentence}" if how else sentence, width(sys.stdout), indent=6)
        show(paint(how, style, colourful) + first[len(how) :], *more, colourful=colourful)


@main.command()
@options(HANDLERS, DSN, click.option("--apply", is_flag=True, help="Create what is missing."), CONFIG)
def ddl(apply: bool, **flags: Any) -> None:
    """Print the CREATE statements; --apply runs what is missing.

    For every queue: its table, the index that its claim order needs, its dead letters. What exists is never altered.
    """
    settings = settings_of(flags)
    declared = registry.load(settings.handlers, command="ddl", needs_handlers=False)
    statements = boot.ddl(settings, declared, apply)
    for statement in statements:
        show(statement)
    if apply:
        count = len(statements)
        done = f"ran {count} {'statement' if count == 1 else 'statements'}" if count else "nothing is missing"
        tell(f"shardrun: {done}")


@main.command()
@options(
    QUEUE,
    click.argument("payloads", nargs=-1, metavar="JSON..."),
    DSN,
    click.option("--key", help="The partition key."),
    click.option("--group", help="The group."),
    click.option("--priority", type=int, metavar="N", help="Smaller runs first."),
    click.option("--after", type=float, metavar="S", help="Due after S seconds."),
    CONFIG,
)
def enqueue(
    queue: str | None, payloads: tuple[str, ...], key: Any, group: Any, priority: Any, after: Any, **flags: Any
) -> None:
    """Insert rows, for trying things out.

    One row per JSON argument, or per line of stdin; all in one transaction. QUEUE alone will do where the configuration
    names the handlers.
    """
    settings = settings_of(flags)
    (chosen,) = one_queue(queue, "enqueue", settings.handlers).queues
    given = {"--key": ("partition_key", key), "--group": ("group", group), "--priority": ("priority", priority)}
    given["--after"] = ("retry_after", after)
    roles = {role: _for_role(chosen, flag, role, value) for flag, (role, value) in given.items() if value is not None}
    rows = [{"payload": _for_role(chosen, "JSON", "payload", body), **roles} for body in _bodies(payloads)]
    count = boot.enqueue(settings, chosen, rows)
    show(f"{count} {'row' if count == 1 else 'rows'} enqueued into {chosen.table}")


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
        tell("shardrun: reading JSON from the terminal, one row per line; Ctrl-D ends it")
    return [_parsed(line, f"line {number} of stdin, ") for number, line in enumerate(sys.stdin, 1) if line.strip()]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        shown = text.strip()[:80]
        raise UsageProblem(f"{where}{shown!r} is not JSON ({error}). Quote a string: '\"text\"'") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _open(flags: dict[str, Any]) -> boot.Opened:
    settings = settings_of(flags)
    return boot.open_all(settings, registry.load(settings.handlers))
