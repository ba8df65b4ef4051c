"""Take what the children report: outcomes, and what they have to say about themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from shardrun.coordinator import route, settle, transactions
from shardrun.coordinator.child import Child, State
from shardrun.coordinator.replica import Replica, log
from shardrun.coordinator.service import Ended, Service
from shardrun.coordinator.wake import wake
from shardrun.db.store import Verb
from shardrun.policy import endings
from shardrun.policy.leases import Held, Hold, Stage
from shardrun.policy.pacing import smoothed
from shardrun.ring import words
from shardrun.ring.wire import Report, pack

USER_LOG = logging.getLogger("shardrun.handlers")


def take(replica: Replica, child: Child, frames: Iterable[Any]) -> None:
    """Note what a child has written, in its order."""
    for frame in _apart(child, frames) if child.batches else frames:
        no = frame[0]
        if no < 0:
            _take_notice(replica, child, frame)
            continue
        held = child.handed.pop(no, None)
        if held is None:
            continue  # recalled: it was given back when the child was told to start no more rows
        lane = held.lane
        service: Service = lane.service
        lane.handed -= 1
        if child.alone is held:
            child.alone = None
        code = frame[1]
        if service.is_clustered and (code not in words.FINAL or held.hold is Hold.LOST):
            lane.refused = True  # it stops by itself
        if code == words.UNSTARTED:
            lane.refused = True
            unstarted(service, held)
            continue
        if code in (words.MISSED, words.LOST):
            (transactions.missed if code == words.MISSED else transactions.lost)(replica, service, held, frame[4])
            continue
        child.finished += 1
        service.timed_rows += 1
        service.timed_micros += frame[2]
        if code != words.ACK:
            _take_outcome(replica, service, held, Report(*frame))
        elif held.stage is Stage.TAKEN:
            transactions.end(replica, service, Ended(held, Verb.ACK))
        else:
            settle.acknowledge(service, held)
    for lane in child.lanes:
        if lane.refused and not lane.handed:
            lane.refused = False
            child.send(pack((words.RESUME, lane.local)))
    for service in {lane.service for lane in child.lanes}:
        _follow(service)


def _apart(child: Child, frames: Iterable[Any]) -> Iterator[Any]:
    """Take reports of batches apart, into those of their rows."""
    for frame in frames:
        numbers = child.batches.pop(frame[0], None)
        if numbers is None:
            yield frame
        elif frame[1] == words.EACH:
            yield from frame[3]
        else:
            share = frame[2] // len(numbers)
            yield from ((no, frame[1], share, *frame[3:]) for no in numbers)


def _follow(service: Service) -> None:
    """Learn from the reports just taken how long the handler takes, and whether a lane has room again."""
    if service.timed_rows:
        service.average = smoothed(service.average, service.timed_micros / service.timed_rows / 1e6)
        service.timed_rows = service.timed_micros = 0
    if service.full_lanes:
        service.look_for_room()


def unstarted(service: Service, held: Held) -> None:
    """Put a row that has not begun back in front of its lane, unless one before it has gone back (R6)."""
    if held.row.lane_key in service.turned_back:
        settle.release(service, held)
    elif service.book.put_back(held):
        route.put_back(service, held)
    else:
        service.counts.lost += 1


def _take_outcome(replica: Replica, service: Service, held: Held, report: Report) -> None:
    decided, held.attempt = endings.with_charge(
        service.subscription, held.attempt, held.charged, report.code, report.seconds, report.reason
    )
    held.charged = held.charged and report.code in (words.FAILED, words.UNDECODABLE)
    ended = Ended(held, *decided)
    if report.verb is not None:  # as its child has settled it
        ended = Ended(held, Verb(report.verb), report.delay, report.reason)
    if report.trace or report.code in (words.FAILED, words.UNDECODABLE):
        _log_failure(service, held, report, ended)
    if report.verb is None:
        settle.end(service, ended)
    else:
        transactions.end(replica, service, ended)


def _log_failure(service: Service, held: Held, report: Report, ended: Ended) -> None:
    where = {"queue": service.name, "row": str(held.id), "attempt": held.attempt}
    log.error(
        "%s row %s attempt %d: %s. %s",
        service.name,
        held.id,
        held.attempt,
        (report.reason or "").rstrip("."),
        what_follows(service, ended),
        extra={"fields": where, "trace": report.trace},
    )


def what_follows(service: Service, ended: Ended) -> str:
    """Say what becomes of a row whose attempt has failed."""
    match ended.verb:
        case Verb.BURY:
            place = service.subscription.dead_letter or f"group {service.subscription.dead_letter_group}"
            return f"Moved to {place}."
        case Verb.DROP:
            return "Dropped."
        case _:
            return _again(ended.delay or 0.0)


def _again(delay: float) -> str:
    if delay < 0.05:
        return "Again at once."
    return f"Again in {delay:.1f} s." if delay < 10 else f"Again in {delay:.0f} s."


def _take_notice(replica: Replica, child: Child, frame: Any) -> None:
    match frame[0]:
        case words.READY:
            if child.state is State.STARTING:
                child.state = State.LOADED
        case words.SESSION:
            child.sessions.append(frame[1])
        case words.CLOSED if frame[1] in child.sessions:
            child.sessions.remove(frame[1])
        case words.LOG:
            _, level, name, text, no = frame
            held = child.handed.get(no)
            if held is None:
                USER_LOG.log(level, "%s: %s", name, text)
            else:
                queue = held.lane.service.name
                where = {"queue": queue, "row": str(held.id), "attempt": held.attempt}
                about = f"{queue} row {held.id} attempt {held.attempt}"
                USER_LOG.log(level, "%s: %s: %s", about, name, text, extra={"fields": where})
        case words.WAKE:
            wake(replica.services, frame[1])
        case words.BROKEN:
            child.failure = frame[1]
