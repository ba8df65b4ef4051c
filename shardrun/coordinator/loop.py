"""One replica, from its first claim to its end.

          coordinator (one OS process)                          child (one per core)
 database  -> claim -> lease book -> route -> [delivery ring] -> lane -> handler -> outcome
           <- settle <- lease book <-         [report ring]   <------------------------+

The coordinator claims rows, keeps their leases, routes them to lanes, settles them, and supervises the children.
What crosses a ring: rows and "close" to the child; outcomes, server sessions and log lines back.
A child decodes rows, runs handlers on its lanes, lends them connections, and reports each ending before it starts the next row.

This thread alone changes the replica's state. Threads that wait for the database run one statement and post an event;
doorbells, deaths, signals and timers are events too. Each wait blocks on file descriptors with a deadline.
"""

from __future__ import annotations

import signal
from functools import partial

from shardrun.coordinator import claim, clock, keeper, nothing_due, outage, pins, route, settle, supervisor
from shardrun.coordinator.child import State
from shardrun.coordinator.replica import PATIENCE, Life, Replica, log
from shardrun.coordinator.signals import watched
from shardrun.coordinator.until_empty import look_whether_empty
from shardrun.policy.leases import Stage


def run(replica: Replica) -> None:
    """Serve until a signal, a failure or an empty table ends it; on return no child is left and no row is held."""
    with watched(replica.events, partial(_on_signal, replica)):
        try:
            supervisor.start(replica)
            keeper.start(replica)
            pins.watch_long_ones(replica)
            while not replica.has_ended:
                outage.recover(replica)
                route.route(replica)  # before the next claims: what has come starts first
                claim.claim(replica)
                supervisor.look_at_quiet(replica)
                look_whether_empty(replica)
                nothing_due.explain(replica)
                _go_down(replica)
                settle.settle(replica)
                if replica.on_progress:
                    replica.on_progress(replica)
                replica.events.wait(0.0 if replica.has_ended else claim.next_claim(replica))
        finally:
            supervisor.reap_all(replica)
    if replica.failure:
        raise replica.failure


def stop(replica: Replica) -> None:
    """Drain: claim nothing, start nothing, give back what has not started, let what runs finish (H5). A second call ends it."""
    if replica.life in (Life.STARTING, Life.SERVING):
        starting = replica.life is Life.STARTING
        replica.life = Life.DRAINING
        replica.limit_patience()
        for child in replica.children:
            child.announce_draining()
        supervisor.recall(replica, replica.children)
        replica.stop_told = False
        replica.later(supervisor.SETTLED_WORDS, partial(_tell_stop, replica))
        if starting:
            interrupt(replica)
        else:
            replica.later(replica.drain_timeout, lambda: interrupt(replica))
    else:
        interrupt(replica)
        replica.limit_patience(PATIENCE)


def _tell_stop(replica: Replica) -> None:
    """Log what a stop found in hand: what runs is known once the recalled children have been looked at."""
    if replica.stop_told:
        return
    replica.stop_told = True
    _give_back(replica)
    running = sum(len(child.handed) for child in replica.children if child.state is not State.DEAD)
    log.info(
        "draining: %d in work, %d given back, no new claims%s",
        running,
        replica.given_back,
        f" ({replica.drain_timeout:g} s; Ctrl-C again ends them now)" if running else "",
        extra={"fields": {"in_work": running, "given_back": replica.given_back, "seconds": replica.drain_timeout}},
    )


def interrupt(replica: Replica) -> None:
    """End the handlers that still run; their rows go back with no attempt spent."""
    running = [child for child in replica.children if child.state is not State.DEAD]
    replica.interrupted = replica.interrupted or any(child.handed for child in running)
    for child in running:
        supervisor.kill(child)


def _on_signal(replica: Replica, number: signal.Signals) -> None:
    if number is signal.SIGHUP:
        supervisor.replace_all(replica)
    else:
        stop(replica)


def _go_down(replica: Replica) -> None:
    """Take the steps of a stop as their time comes: close idle children, give back, write what is left, end."""
    if replica.failure and replica.life is not Life.ENDING:
        replica.life = Life.ENDING
        supervisor.kill_all(replica)
    supervisor.close_idle(replica)
    if replica.life not in (Life.DRAINING, Life.ENDING):
        return
    _give_back(replica)
    impatient = clock.now() >= replica.patience_ends
    idle = not any(child.handed for child in replica.children)
    if replica.life is Life.DRAINING and idle and (impatient or not replica.burying):
        replica.life = Life.ENDING
        _tell_stop(replica)
        supervisor.close_all(replica)
    if replica.life is Life.ENDING and supervisor.all_dead(replica) and (impatient or not _awaits_database(replica)):
        _leave_behind(replica)
        replica.life = Life.ENDED


def _awaits_database(replica: Replica) -> bool:
    """Tell whether rows are in hand, or a claim is under way whose rows must go back."""
    return bool(replica.in_hand) or any(service.pacing.under_way for service in replica.services)


def _leave_behind(replica: Replica) -> None:
    """Say so when the database did not let the last rows be settled: they come back when nothing holds them any more."""
    if replica.in_hand:
        replica.interrupted = True
        log.warning(
            "%d rows could not be settled; they are due again when their leases or locks have ended", replica.in_hand
        )


def _give_back(replica: Replica) -> None:
    for service in replica.services:
        lines = (service.waiting, *(lane.waiting for lane in service.lanes))
        waiting = [held for line in lines for held in line if held.stage is Stage.WAITING]
        replica.given_back += len(waiting)
        settle.give_back(service, waiting)
