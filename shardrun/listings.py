"""What `plan`, `status` and `dead` print: tables that fit a terminal, and are whole in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from shardrun.db.buried import ERROR_LENGTH
from shardrun.db.operate import LOOKED, Blocked, Blocking, Count, Failures
from shardrun.operate import CHOSEN, Done, Home, Plan, QueueStatus, Status
from shardrun.summary import duration

GAP = "  "
"""Between two columns."""

SHORTEST = 12
"""Characters that a cut column keeps. Smaller: a table fits narrower terminals, and its names tell less."""

NAMED = 10
"""Ids that a sentence names."""


def planned(plan: Plan) -> list[str]:
    """Say how many connections each part may open, and what several replicas come to beside the server's own limit."""
    one = plan.budget
    rows = [("part", "connections", ""), ("coordinator", str(one.coordinator), "")]
    rows.append(("children", f"{one.children} x {one.each}", ""))
    if one.listener:
        rows.append(("listener", str(one.listener), ""))
    rows.append(("one replica", str(one.total), f"limit {plan.limit}" if plan.limit else "no limit"))
    server = ""
    if plan.sessions is not None and plan.left is not None:
        left = f"{plan.left} left" if plan.left >= 0 else f"{-plan.left} too many"
        server = f"server {plan.sessions.limit}, others use {plan.others} now, {left}"
    if plan.replicas > 1 or server:
        rows.append((_many(plan.replicas, "replica"), f"{plan.replicas * one.total:,}", server))
    first = max(len(row[0]) for row in rows)
    lines = [f"{name:<{first}}{GAP}{count:>11}   {note}".rstrip() for name, count, note in rows]
    return [*lines, *([plan.unknown] if plan.unknown else [])]


def status(found: Status, width: int | None) -> list[str]:
    """Say what each queue holds, one line each, and who is connected."""
    grouped = any(each.group is not None for each in found.queues)
    heads = ["queue", *(["group"] if grouped else []), "table", "due", "in work", "later", "dead", "oldest due"]
    rows = [_queue(each, grouped) for each in found.queues]
    lines = _table(heads, rows, left=2 + grouped, cut=1 + grouped, width=width)
    replicas = "-" if found.replicas is None else ", ".join(found.replicas) or "none is connected"
    lines.append(f"replicas     {replicas}")
    if found.sessions is None:
        lines.append("connections  -")
    else:
        limit, in_use, ours, _ = found.sessions
        if ours is None:
            lines.append(f"connections  {in_use} of the server's {limit} are in use; whose they are is not known")
        else:
            lines.append(f"connections  {len(ours)} of the server's {limit} are shardrun's, {in_use} in use in all")
    lines += [
        f"{each.queue}: no index serves the claim, so that only {LOOKED:,} rows at one end of {each.table} were looked at; "
        f"shardrun check prints the index"
        for each in found.queues
        if not each.counts.indexed
    ]
    for each in found.queues:
        lines += _blocked(each, width)
    return lines


def _blocked(each: QueueStatus, width: int | None) -> list[str]:
    """Name the groups, or keys, that a failed row keeps waiting, those of the most failures first."""
    blocked = each.counts.blocked
    if blocked is None or not (blocked.number or blocked.more):
        return []
    year = str(datetime.now(UTC).year)
    said = [f"{each.order} {_line(one.strand)}, {_blocking(one, year)}" for one in blocked.listed]
    if (others := blocked.number - len(blocked.listed)) or blocked.more:
        said.append(f"+{others:,} more{', and not all of the table was looked at' if blocked.more else ''}")
    first = f"blocked {each.ordered}s ({each.queue}): "
    heads = [first, *[" " * len(first)] * len(said)]
    lines = [head + text for head, text in zip(heads, said, strict=False)]
    return lines if width is None else [_cut(line, max(width, len(first) + SHORTEST)) for line in lines]


def _blocking(one: Blocking, year: str) -> str:
    """Say what a row that blocks others is up to."""
    times = "once" if one.attempt == 1 else f"{one.attempt:,} times"
    tried = f", last tried {_time(one.tried, year)}" if one.tried else ""
    error = f": {_line(one.error.partition(chr(10))[0][:ERROR_LENGTH])}" if one.error else ""
    return f"row {one.id} failed {times}{tried}, next try in {duration(max(one.seconds, 0.0))}{error}"


def _queue(each: QueueStatus, grouped: bool) -> list[str]:
    counts = each.counts
    numbers = [counts.due, counts.in_work, counts.later, counts.dead]
    oldest = "-" if counts.oldest is None else duration(max(counts.oldest, 0.0))
    group = [each.group or "-"] if grouped else []
    return [each.queue, *group, each.table, *(_count(number) for number in numbers), oldest]


def status_json(found: Status) -> str:
    """Write the same for programs; null is what cannot be known, `more` names the counts that stopped at a bound."""
    queues = []
    for each in found.queues:
        counts = each.counts
        numbers = {"due": counts.due, "in_work": counts.in_work, "later": counts.later, "dead": counts.dead}
        queues.append(
            {
                "queue": each.queue,
                "handler": each.handler,
                "table": each.table,
                "group": each.group,
                "form": each.form,
                **{name: count and count.number for name, count in numbers.items()},
                "more": [name for name, count in numbers.items() if count and count.more],
                "oldest_due_seconds": None if counts.oldest is None else round(max(counts.oldest, 0.0), 3),
                "indexed": counts.indexed,
                "blocked": counts.blocked and _blocked_json(counts.blocked),
            }
        )
    sessions = found.sessions
    ours = None if sessions is None or sessions.ours is None else len(sessions.ours)
    connections = sessions and {"shardrun": ours, "in_use": sessions.in_use, "limit": sessions.limit}
    document = {
        "database": found.database,
        "queues": queues,
        "replicas": found.replicas,
        "connections": connections,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _blocked_json(blocked: Blocked) -> dict[str, Any]:
    return {
        "number": blocked.number,
        "more": blocked.more,
        "listed": [
            {
                "value": one.strand,
                "row": str(one.id),
                "attempts": one.attempt,
                "last_tried": one.tried,
                "next_try_seconds": round(max(one.seconds, 0.0), 3),
                "last_error": one.error,
            }
            for one in blocked.listed
        ],
    }


def failures(place: str, found: Failures, title: str | None, width: int | None) -> list[str]:
    """List dead letters by error: how many, the first and last of their due times, and one of their ids."""
    if not found.rows:
        return [f"no dead letters in {place}"]
    year = str(datetime.now(UTC).year)
    rows = [
        [f"{each.rows:,}", _time(each.first, year), _time(each.last, year), str(each.example), _line(each.error)]
        for each in found.listed
    ]
    lines = _table(["rows", "first due", "last due", "a row", "error"], rows, left=0, cut=4, width=width)
    shown = sum(each.rows for each in found.listed)
    if found.errors > len(found.listed):
        lines.append(f"and {found.errors - len(found.listed):,} more errors in {found.rows - shown:,} rows")
    if found.more:
        lines.append(f"only {LOOKED:,} dead letters were looked at; there are more")
    return [*([f"{title}:"] if title else []), *lines]


def done(verb: str, home: Home, did: Done, dry: bool) -> str:
    """Say what was done."""
    rows = _many(did.rows, "row")
    keys = f" of {_many(len(did.keys), 'key')}" if did.keys else ""
    attempts = ", attempts set to 0" if verb == "requeue" and home.subscription.queue.attempt and not dry else ""
    more = f"; there are more than {CHOSEN:,}: run it again for the rest" if did.more else ""
    return f"{f'would {verb}' if dry else f'{verb}d'} {rows}{keys}{attempts}{more}"


def parked(homes: Sequence[Home], did: Sequence[Done], dry: bool) -> list[str]:
    """Say which rows were moved to which dead letters."""
    said = [
        f"{'would park' if dry else 'parked'} {_many(one.rows, 'row')} in {home.place}"
        for home, one in zip(homes, did, strict=True)
        if one.rows
    ]
    return said or [f"{'would park' if dry else 'parked'} no row"]


def held(did: Sequence[Done]) -> list[str]:
    """Say which rows stay in the queue, since they are in work."""
    left = [each for one in did for each in one.left]
    if not left:
        return []
    was, it_is = ("was", "it is") if len(left) == 1 else ("were", "they are")
    return [f"{_many(len(left), 'row')} {was} left, since {it_is} in work: {_some(left)}."]


def not_waiting(home: Home, ids: Iterable[Any]) -> list[str]:
    """Say which ids that were asked for are of no row that waits."""
    listed = sorted(ids, key=str)
    if not listed:
        return []
    queue = home.subscription.queue
    return [
        f"There is no unfinished row in {queue.table} with the {'id' if len(listed) == 1 else 'ids'} {_some(listed)}."
    ]


def left(home: Home, did: Done, dry: bool) -> list[str]:
    """Say which dead letters stay where they are, and why."""
    if not did.left:
        return []
    one = len(did.left) == 1
    verb = ("would be" if dry else "was" if one else "were") + " left"
    if home.subscription.dead_letter is None:
        why = f"a handler of {home.place} holds {'it' if one else 'them'}"
    else:
        why = f"{home.subscription.queue.table} has {'its id' if one else 'their ids'} (or another unique value) again"
    return [f"{_many(len(did.left), 'row')} {verb}, since {why}: {_some(did.left)}."]


def unknown(homes: Sequence[Home], ids: Iterable[Any], error: str | None) -> list[str]:
    """Say which ids that were asked for are no dead letters."""
    listed = sorted(ids, key=str)
    if not listed:
        return []
    places = " or ".join(home.place for home in homes)
    with_error = f" with {error!r} in its error" if error else ""
    return [f"There is no row{with_error} in {places} with the {'id' if len(listed) == 1 else 'ids'} {_some(listed)}."]


def _table(heads: list[str], rows: list[list[str]], left: int, cut: int, width: int | None) -> list[str]:
    """Lay out columns, the first `left` and a last one that is text to the left; column `cut` gives way to the width."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    over = 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width
    if over > 0:
        widths[cut] = max(min(widths[cut], SHORTEST), widths[cut] - over)
    lines = []
    for row in [heads, *rows]:
        cells = [
            _cut(text, size) if number == cut else text
            for number, (text, size) in enumerate(zip(row, widths, strict=True))
        ]
        laid = [
            f"{text:<{size}}" if number < left or number == cut else f"{text:>{size}}"
            for number, (text, size) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(GAP.join(laid).rstrip())
    return lines


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _count(count: Count | None) -> str:
    return "-" if count is None else f"{count.number:,}{'+' if count.more else ''}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _some(ids: Sequence[Any]) -> str:
    more = f" and {len(ids) - NAMED:,} more" if len(ids) > NAMED else ""
    return ", ".join(str(each) for each in ids[:NAMED]) + more


def _time(text: str | None, year: str) -> str:
    """Shorten a time: month and day where it is of this year, else the date."""
    if not text:
        return "-"
    return text[5:19] if text.startswith(year) else text[:10]


def _line(error: str | None) -> str:
    """Fit an error into a line of a terminal, whatever characters it holds."""
    if error is None:
        return "(none was recorded)"
    return "".join(char if char.isprintable() else " " for char in error)
