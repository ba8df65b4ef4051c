"""The commands of operators: `shardrun plan`, `status` and `dead list|requeue|purge|park`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

from shardrun import listings, operate, registry
from shardrun.cli_frame import CONFIG, DSN, HANDLERS, QUEUE, RUNNING, one_queue, options, settings_of, show
from shardrun.errors import ShardrunError, UsageProblem
from shardrun.operate import Done, Home

IDS = click.argument("ids", nargs=-1, metavar="[IDS...]")
ALL = click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
ERROR = click.option("--error", metavar="TEXT", help="Those whose last_error contains TEXT, as it is written.")
DRY = click.option("--dry-run", "dry", is_flag=True, help="Say what would be done; change nothing.")


@click.command()
@options(
    HANDLERS,
    DSN,
    *RUNNING,
    click.option("--replicas", type=int, default=1, metavar="N", help="Replicas to reckon with; default 1."),
    CONFIG,
)
def plan(replicas: int, **flags: Any) -> None:
    """Show the connections that one or more replicas may open.

    Exit code 2 where they pass the connection limit, or what the server has left beside what others use now.
    """
    settings = settings_of(flags)
    declared = registry.load(settings.handlers, command="plan")
    planned = operate.plan(settings, declared, replicas)
    show(*listings.planned(planned))
    if planned.problem:
        raise planned.problem


@click.command()
@options(HANDLERS, DSN, click.option("--json", "as_json", is_flag=True, help="Print JSON."), CONFIG)
def status(as_json: bool, **flags: Any) -> None:
    """Show what is due, in work, later and dead.

    Counts stop at 100,000, and a + says that there may be more. Nothing is written, and no table is read in full.
    """
    settings = settings_of(flags)
    declared = registry.load(settings.handlers, command="status", needs_handlers=False)
    found = operate.status(settings, declared)
    show(*([listings.status_json(found)] if as_json else listings.status(found, _width())))


@click.group()
def dead() -> None:
    """List, requeue or purge dead letters, or park rows there.

    QUEUE alone will do where the configuration names the handlers.
    """


@dead.command("list")
@options(QUEUE, ERROR, DSN, CONFIG)
def list_(queue: str | None, error: str | None, **flags: Any) -> None:
    """List dead letters by error.

    The most frequent first. Times are UTC, and are those at which the rows were last due.
    """
    settings = settings_of(flags)
    with operate.homes(settings, one_queue(queue, "dead list", settings.handlers)) as homes:
        for home in homes:
            title = home.place if len(homes) > 1 else None
            show(*listings.failures(home.place, home.failures(error), title, _width()))


@dead.command()
@options(QUEUE, IDS, ALL, ERROR, DRY, DSN, CONFIG)
def requeue(**given: Any) -> None:
    """Put dead letters back into their queue.

    They keep id and last_error, have attempt 0 and are due at once. A row whose id is in the queue again is left.
    """
    _act("requeue", Home.requeue, **given)


@dead.command()
@options(QUEUE, IDS, ALL, ERROR, DRY, DSN, CONFIG)
def purge(**given: Any) -> None:
    """Delete dead letters for good."""
    _act("purge", Home.purge, **given)


@dead.command()
@options(
    QUEUE,
    IDS,
    click.option("--reason", metavar="TEXT", help=f"What their last_error shall say; default: {operate.PARKED}."),
    DRY,
    DSN,
    CONFIG,
)
def park(queue: str | None, ids: tuple[str, ...], reason: str | None, dry: bool, **flags: Any) -> None:
    """Move rows out of the way, to the dead letters.

    They are unfinished rows of the queue, such as one that shardrun status names since it blocks its group: the next row
    goes on. Rows in work are left. dead requeue puts them back.
    """
    if not ids:
        raise UsageProblem("dead park takes the ids of rows. Those that block others: shardrun status")
    settings = settings_of(flags)
    declared = one_queue(queue, "dead park", settings.handlers)
    with operate.homes(settings, declared, apart=True) as homes:
        asked = [[home.letters.id_of(text) for text in dict.fromkeys(ids)] for home in homes]
        did = [home.park(each, reason, dry) for home, each in zip(homes, asked, strict=True)]
        unknown = set.intersection(*(set(one.unknown) for one in did))
        show(*listings.parked(homes, did, dry))
        if said := [*listings.held(did), *listings.not_waiting(homes[0], unknown)]:
            raise ShardrunError(" ".join(said))


def _act(
    verb: str,
    act: Callable[..., Done],
    queue: str | None,
    ids: tuple[str, ...],
    everything: bool,
    error: str | None,
    dry: bool,
    **flags: Any,
) -> None:
    listing = f"shardrun dead list {queue or ''}".rstrip()
    if not (ids or everything or error):
        raise UsageProblem(
            f"dead {verb} takes the ids of rows, --error TEXT, or --all. To see what there is: {listing}"
        )
    if ids and everything:
        raise UsageProblem(f"dead {verb} takes ids or --all, not both.")
    settings = settings_of(flags)
    declared = one_queue(queue, f"dead {verb}", settings.handlers)
    if not ids:
        operate.check_alone(declared)
    unknown: set[Any] | None = None
    said: list[str] = []
    with operate.homes(settings, declared) as homes:
        for home in homes:
            chosen = [home.letters.id_of(text) for text in dict.fromkeys(ids)] if ids else None
            done = act(home, chosen, error, dry)
            unknown = set(done.unknown) if unknown is None else unknown & set(done.unknown)
            show(listings.done(verb, home, done, dry))
            said += listings.left(home, done, dry)
    if said or unknown:
        raise ShardrunError(" ".join([*said, *listings.unknown(homes, unknown or set(), error)]))


def _width() -> int | None:
    """Tell the terminal's columns; None where there is none, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
