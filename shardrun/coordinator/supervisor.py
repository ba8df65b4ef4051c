"""Supervise: spawn children, notice their deaths at once, know exactly which row each one ran, and put new ones in place."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from functools import partial

from shardrun.coordinator import clock, reports, route, settle, timeouts, transactions
from shardrun.coordinator.child import Child, State, spawn
from shardrun.coordinator.replica import Life, Replica, log
from shardrun.coordinator.service import Ended, Lane, Service
from shardrun.db.store import Verb
from shardrun.errors import ConnectionLost, DatabaseUnreachable, ShardrunError, UsageProblem
from shardrun.policy import endings, restarts
from shardrun.policy.leases import Held
from shardrun.summary import counted

SETTLED_WORDS = 0.02
"""Seconds after which what a still child has written is seen by this process on every CPU (R7)."""

QUIET = 0.05
"""Seconds between looks at children that may have finished rows without ringing. Larger: an ack may wait longer behind a
slow row. Smaller: more wake-ups while there is work."""

CLOSE_WITHIN = 5.0
"""Seconds that a child with idle lanes has for its exit before it is killed."""


def start(replica: Replica) -> None:
    """Spawn every child and build the subscriptions' lanes on them."""
    for index in range(len(replica.spec.lanes)):
        replica.children.append(_spawn(replica, index))
        replica.fruitless.append(0)
    for index, child in enumerate(replica.children):
        for local, number in enumerate(replica.spec.lanes[index]):
            service = replica.services[number]
            lane = Lane(service, child, local)
            service.lanes.append(lane)
            child.lanes.append(lane)


def _spawn(replica: Replica, index: int) -> Child:
    child = spawn(index, replica.spec, f"{replica.spec.part} child {index + 1}", replica.events)
    replica.events.watch(child.reports.reader_doorbell, lambda: _reported(replica, child))
    replica.events.watch(child.pidfd, lambda: _died(replica, child))
    return child


def _reported(replica: Replica, child: Child) -> None:
    reports.take(replica, child, child.receive())
    if child.state is State.LOADED:
        _admit(replica, child)


def look_at_quiet(replica: Replica) -> None:
    """While rows are with children, read now and then what they have written without ringing, and end what is late (E4).

    A report may stand behind a row that runs for long. The mark is read at one look and the bytes at the next, so that
    every CPU has seen them.
    """
    if replica.looking or not any(child.handed for child in replica.children):
        return
    replica.looking = True
    replica.later(QUIET, lambda: _look(replica))


def _look(replica: Replica) -> None:
    replica.looking = False
    for child in replica.children:
        if child.state in (State.READY, State.RECALLED) and child.has_unpublished():
            reports.take(replica, child, child.receive_to_mark())
        if child.state is not State.DEAD and timeouts.is_late(child, clock.now()):
            kill(child)


def _admit(replica: Replica, child: Child) -> None:
    """Let a child take rows, once no session of the one before it counts against the connection limit."""
    if any(dead.index == child.index for dead in replica.burying):
        return
    child.state = State.READY
    if child is replica.incoming:
        _relieve(replica, replica.children[child.index], child)
    elif replica.life is Life.STARTING and all(each.is_ready for each in replica.children):
        replica.life = Life.SERVING
        replica.began = clock.now()
        seconds = replica.began - replica.made
        log.info("ready in %.1f s", seconds, extra={"fields": {"seconds": round(seconds, 3)}})
        replace_next(replica)  # where a SIGHUP came meanwhile
    elif replica.life is Life.SERVING:
        seconds = clock.now() - child.started_at
        where = {"child": child.index + 1, "pid": child.pid, "seconds": round(seconds, 3)}
        log.info("child %d goes on as pid %d (%.2f s)", child.index + 1, child.pid, seconds, extra={"fields": where})


def _relieve(replica: Replica, before: Child, child: Child) -> None:
    if before.state is State.DEAD:
        _succeed(replica, child)
    elif before.is_ready:
        recall(replica, [before])
    elif before.state is not State.RECALLED:
        kill(before)  # it came in place of one that had died, still loads, and has no row


def _died(replica: Replica, child: Child) -> None:
    """Drain what it had reported, then blame what it ran, or what it was ended for: the rest has not begun, or is not to
    blame (R7).
    """
    code = child.process.wait()
    closing = child.state is State.CLOSING
    reports.take(replica, child, child.receive_to_mark())
    is_ended = timeouts.has_ended(child, code)
    late = timeouts.late_rows(replica, child) if is_ended else []
    blamed = [] if is_ended else [child.handed[no] for no in child.running() if no in child.handed]
    child.state = State.DEAD
    cause = describe(code)
    if child.failure is not None or replica.life is Life.STARTING:
        _could_not_start(replica, child, cause)
    elif is_ended:
        timeouts.tell(replica, child, late)
    elif not closing and not replica.interrupted:
        _log_death(child, cause, blamed)
    _end_sessions(replica, child, lambda: _bury(replica, child, blamed, cause, late))
    _replace(replica, child, closing or is_ended)
    child.release()


def _log_death(child: Child, cause: str, blamed: list[Held]) -> None:
    who = {"child": child.index + 1, "pid": child.pid, "cause": cause}
    unstarted = len(child.handed) - len(blamed)
    others = (
        f"; {counted(unstarted, 'row')} {'goes' if unstarted == 1 else 'go'} on in a new child" if unstarted else ""
    )
    for held in blamed:
        service: Service = held.lane.service
        row = {"queue": service.name, "row": str(held.id), "attempt": held.attempt}
        log.error(
            "child %d (pid %d) died: %s. Row %s of %s %s%s",
            child.index + 1, child.pid, cause, held.id, service.name, _fate(service, held, len(blamed) == 1), others,
            extra={"fields": who | row},
        )  # fmt: skip
    if not blamed:
        fields = {"fields": who}
        log.error("child %d (pid %d) died: %s. It ran no row", child.index + 1, child.pid, cause, extra=fields)


def _fate(service: Service, held: Held, is_only_one: bool) -> str:
    most = service.subscription.max_attempts
    spends = f"spends attempt {held.attempt}" + (f" of {most}" if most else "")
    if service.subscription.transactional:
        return f"{spends}, unless its transaction had committed"
    if most is None or held.attempt < most:
        return spends
    if not is_only_one:  # see `_spend`
        return "was at its last attempt, and runs again by itself"
    return f"{spends}. {reports.what_follows(service, Ended(held, Verb.BURY))}".rstrip(".")


def _could_not_start(replica: Replica, child: Child, cause: str) -> None:
    reason = child.failure or f"child {child.index + 1} died while it loaded the handlers: {cause}"
    if replica.life is Life.STARTING:
        replica.failure = replica.failure or UsageProblem(reason)
    else:
        log.error("child %d could not load the handlers: %s", child.index + 1, reason)


def _end_sessions(replica: Replica, child: Child, then: Callable[[], None]) -> None:
    """End the SQL that outlives the child, and wait until it is gone, before its rows run again (R4)."""
    if not child.sessions:
        then()
        return
    replica.burying.add(child)

    def done(result: ShardrunError | None) -> None:
        if isinstance(result, ShardrunError):
            if isinstance(result, ConnectionLost | DatabaseUnreachable):
                replica.connection_lost(result)
            else:
                number = child.index + 1
                replica.complain(
                    f"sessions {child.pid}", "the sessions of child %d are not ended yet: %s", number, result
                )
            replica.later(restarts.FIRST, lambda: replica.threads.submit(work, done, urgent=True))
            return
        replica.burying.discard(child)
        then()
        successor = replica.children[child.index]
        _pass_lanes_on(child, successor)
        for waiting in (successor, replica.incoming):
            if waiting is not None and waiting.index == child.index and waiting.state is State.LOADED:
                _admit(replica, waiting)

    def work(connection: object) -> None:
        replica.database.end_sessions(connection, child.sessions, child.part)

    replica.threads.submit(work, done, urgent=True)


def _bury(replica: Replica, child: Child, blamed: list[Held], cause: str, late: list[Ended]) -> None:
    """Put the dead child's rows back in front of their lanes, in order; what it ran spends an attempt first."""
    handed, child.handed = child.handed, {}
    child.alone = None
    for lane in child.lanes:
        lane.handed, lane.refused = 0, False
    for ended in late:
        transactions.look_first(replica, ended.held, partial(settle.end, ended.held.lane.service, ended))
    for held in handed.values():
        if held in blamed:
            held.alone = held.alone or len(blamed) > 1
            spend = partial(_spend, replica, held.lane.service, held, cause, is_only_one=len(blamed) == 1)
            transactions.look_first(replica, held, spend)
        else:  # a lane beside the one that was late may have committed its row just before
            transactions.look_first(replica, held, partial(reports.unstarted, held.lane.service, held))


def _spend(replica: Replica, service: Service, held: Held, cause: str, is_only_one: bool) -> None:
    """Let a row that a child died of spend its attempt; ending handlers on a stop spends none.

    One of several is never buried for it: it runs alone first, and only if that kills its child was the last attempt its own.
    """
    ended = Ended(held, *endings.crashed(service.subscription, held.attempt, cause))
    is_counted = service.subscription.queue.attempt is not None
    spends = is_counted if ended.verb is Verb.RECOUNT else is_only_one
    if replica.interrupted or not spends:
        reports.unstarted(service, held)
        return
    held.charged = not is_only_one
    if ended.verb is Verb.RECOUNT:
        route.put_back(service, held)  # at the head of its line, which goes on when the attempt is written
    settle.end(service, ended)


def _replace(replica: Replica, child: Child, was_ended: bool) -> None:
    if child is replica.incoming:
        replica.incoming = None
        replica.to_replace.clear()
        return
    if replica.life not in (Life.STARTING, Life.SERVING) or replica.failure:
        return
    if replica.incoming is not None and replica.incoming.index == child.index:
        _succeed(replica, replica.incoming)
        return
    fruitless = restarts.fruitless(replica.fruitless[child.index], child.finished, was_ended)
    replica.fruitless[child.index] = fruitless
    replica.later(restarts.delay(fruitless), lambda: _respawn(replica, child.index))


def _succeed(replica: Replica, child: Child) -> None:
    _put_in_place(replica, child)
    replica.incoming = None
    replace_next(replica)


def _respawn(replica: Replica, index: int) -> None:
    if replica.life is not Life.SERVING or replica.children[index].state is not State.DEAD:
        return
    try:
        child = _spawn(replica, index)
    except OSError as error:
        replica.fruitless[index] += 1
        wait = restarts.delay(replica.fruitless[index] + 1)
        log.error("child %d could not be started: %s. Again in %.1f s", index + 1, error, wait)
        replica.later(wait, lambda: _respawn(replica, index))
    else:
        _put_in_place(replica, child)


def _put_in_place(replica: Replica, child: Child) -> None:
    before = replica.children[child.index]
    replica.children[child.index] = child
    if before not in replica.burying:
        _pass_lanes_on(before, child)
    if child.state is State.LOADED:
        _admit(replica, child)


def _pass_lanes_on(before: Child, child: Child) -> None:
    """Let a child take rows for the lanes of a dead one, whose own rows are in front of them again."""
    if before is not child:
        child.lanes, before.lanes = before.lanes, []
        for lane in child.lanes:
            lane.child = child


def replace_all(replica: Replica) -> None:
    """Replace the children one by one with fresh code (SIGHUP); each new one imports before the old one is recalled."""
    replica.to_replace = list(range(len(replica.children)))
    log.info("replacing %d children one by one", len(replica.to_replace))
    if replica.incoming is None:
        replace_next(replica)


def replace_next(replica: Replica) -> None:
    """Start the next replacement, if one is wanted."""
    if replica.to_replace and replica.life is Life.SERVING:
        index = replica.to_replace.pop(0)
        try:
            replica.incoming = _spawn(replica, index)
        except OSError as error:
            replica.to_replace.clear()
            log.error("child %d could not be replaced: %s. The children go on as they are", index + 1, error)


def recall(replica: Replica, children: Iterable[Child]) -> None:
    """Let children start no more rows, and take back what they have not started."""
    for child in [child for child in children if child.is_ready]:
        child.recall()
        replica.later(SETTLED_WORDS, partial(_take_back, replica, child))


def _take_back(replica: Replica, child: Child) -> None:
    """Take back what a recalled child has not started: it looks at the stop word after it has named the row it starts."""
    if child.state is not State.RECALLED:
        return
    running = set(child.running())  # read before the reports: a row that has ended since is among them
    reports.take(replica, child, child.receive_to_mark())
    unstarted = [no for no in child.handed if no not in running]
    for no in unstarted:
        held = child.handed.pop(no)
        held.lane.handed -= 1
        reports.unstarted(held.lane.service, held)
    if unstarted and replica.life is Life.SERVING:
        log.info(
            "child %d: %s taken back, %d still run", child.index + 1, counted(len(unstarted), "row"), len(child.handed)
        )


def close_idle(replica: Replica) -> None:
    """Ask recalled children whose rows have ended to exit."""
    for child in replica.children:
        if child.state is State.RECALLED and not child.handed:
            close(replica, child)


def close(replica: Replica, child: Child) -> None:
    """Ask a child to exit, and kill it when it does not."""
    child.ask_to_close()
    replica.later(CLOSE_WITHIN, lambda: kill(child))


def close_all(replica: Replica) -> None:
    """Ask every child to exit; those that still import are ended."""
    for child in _living(replica):
        if child.state is State.STARTING:
            kill(child)
        elif child.state is not State.CLOSING:
            close(replica, child)


def kill(child: Child) -> None:
    """End a child at once; its death is noticed like any other."""
    if child.state is not State.DEAD:
        child.process.kill()


def kill_all(replica: Replica) -> None:
    """End every child at once."""
    for child in _living(replica):
        kill(child)


def reap_all(replica: Replica) -> None:
    """End and collect whatever child is left, when the loop has ended by a failure of its own."""
    for child in _living(replica):
        child.process.kill()
        child.process.wait()


def all_dead(replica: Replica) -> bool:
    """Tell whether no child is left."""
    return not _living(replica)


def _living(replica: Replica) -> list[Child]:
    children = [*replica.children, replica.incoming] if replica.incoming else replica.children
    return [child for child in children if child.state is not State.DEAD]


def describe(code: int) -> str:
    """Say how a process ended: `killed by signal 9 (SIGKILL), likely out of memory`, `exit code 3`."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
    hint = ", likely out of memory" if -code == signal.SIGKILL else ""
    return f"killed by signal {-code} ({name}){hint}"
