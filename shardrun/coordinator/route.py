"""Route: choose the lane for a row, and hand rows to the children, many at a time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from shardrun.coordinator import clock, one_writer, settle
from shardrun.coordinator.child import Child, State
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Ended, Lane, Service, place
from shardrun.db.store import Claimed
from shardrun.policy import endings
from shardrun.policy.leases import Held, Hold, Stage
from shardrun.policy.routing import lane_of
from shardrun.ring.wire import CannotCross, Frame, pack, pack_all

Frames = defaultdict[Child, list[Frame]]
Cleared = dict[Child, Lane]


def lane_for(service: Service, held: Held) -> Lane | None:
    """Name the lane that the row's key demands, or None where any lane will do (no key, or NULL)."""
    lane_key = held.row.lane_key
    return None if lane_key is None else service.lanes[lane_of(lane_key, len(service.lanes))]


def has_free_lane(service: Service, lane: Lane | None, held: Held) -> bool:
    """Tell whether a row would start at once in its lane, or in any where it has none."""
    line = service.waiting if lane is None else lane.waiting
    pinned = service.holding.pins  # a batch has rows of one connection
    batches = len({each.pin for each in line} - {held.pin}) if pinned else len(line) // service.batch
    if lane is not None:
        return not lane.handed and not batches
    return sum(each.is_free for each in service.lanes) > batches


def one_lanes_rows(service: Service) -> Callable[[list[Claimed]], list[Claimed]]:
    """Choose, of rows that one connection has locked, those of one lane: the first that is free; called beside the loop."""
    free = {number for number, lane in enumerate(service.lanes) if lane.is_free}
    count = len(service.lanes)

    def choose(rows: list[Claimed]) -> list[Claimed]:
        lanes = [None if row.lane_key is None else lane_of(row.lane_key, count) for row in rows]
        wanted = next((lane for lane in lanes if lane is None or lane in free), lanes[0] if lanes else None)
        return [row for row, lane in zip(rows, lanes, strict=True) if lane == wanted]

    return choose


def put(service: Service, lane: Lane | None, held: Held) -> None:
    """Put a row at the end of its waiting line."""
    held.lane = lane
    (service.waiting if lane is None else lane.waiting).append(held)


def put_back(service: Service, held: Held) -> None:
    """Put a row that came back from a child where claim order wants it."""
    lane = lane_for(service, held)
    held.lane = lane
    place(service.waiting if lane is None else lane.waiting, held)


def route(replica: Replica) -> None:
    """Hand waiting rows to the lanes that have room, and publish them, one write per child."""
    if replica.life is not Life.SERVING:
        return
    frames: Frames = defaultdict(list)
    now = clock.now()
    cleared = _cleared(replica)
    for service in replica.services:
        most = service.batch if service.subscription.transactional else service.per_lane_ahead
        for lane in service.lanes:
            if lane.waiting and _has_room(lane, most) and cleared.get(lane.child, lane) is lane:
                _feed(replica, lane, most, frames[lane.child], now)
        if service.waiting:
            _spread(replica, service, most, frames, now, cleared)
    for child, deliveries in frames.items():
        if deliveries:
            _publish(child, deliveries)


def _cleared(replica: Replica) -> Cleared:
    """Map children that must get nothing until they are idle to the lane where a row is to run there alone (R7).

    For a row that any lane may take that is the child that will be idle first, by what it has in hand.
    """
    lanes = (lane for service in replica.services for lane in service.lanes)
    cleared = {lane.child: lane for lane in lanes if lane.waiting and lane.waiting[0].alone}
    for service in replica.services:
        if service.waiting and service.waiting[0].alone:
            able = [lane for lane in service.lanes if not lane.waiting and lane.child.is_ready]
            able = [lane for lane in able if lane.child not in cleared]
            if able:
                chosen = min(able, key=lambda lane: len(lane.child.handed))
                cleared[chosen.child] = chosen
    return cleared


def _feed(replica: Replica, lane: Lane, most: int, frames: list[Frame], now: float) -> None:
    """Hand a lane the rows that wait for it alone, in order."""
    waiting = lane.waiting
    if lane.service.subscription.batch is not None:
        while _hand_batch(replica, lane, waiting, most, frames, now):
            pass
        return
    while waiting and lane.handed < most and _may_start(replica, lane, waiting[0], now):
        _hand(replica, lane, waiting.popleft(), frames)


def _spread(replica: Replica, service: Service, most: int, frames: Frames, now: float, cleared: Cleared) -> None:
    """Deal rows that any lane may take, each to the lane that has the fewest."""
    open_lanes = [
        lane
        for lane in service.lanes
        if not lane.waiting and _has_room(lane, most) and cleared.get(lane.child, lane) is lane
    ]
    waiting = service.waiting
    if service.subscription.batch is not None:
        _spread_batches(replica, open_lanes, waiting, most, frames, now)
        return
    lanes = sorted(open_lanes, key=lambda lane: lane.handed)
    while waiting and lanes and (level := lanes[0].handed) < most:
        handed = 0
        for lane in lanes:
            if lane.handed > level or not waiting:
                break
            if _may_start(replica, lane, waiting[0], now):
                _hand(replica, lane, waiting.popleft(), frames[lane.child])
                handed += 1
        if not handed:
            return


def _spread_batches(
    replica: Replica, lanes: list[Lane], waiting: deque[Held], most: int, frames: Frames, now: float
) -> None:
    """Deal rows that any lane may take, a batch to whichever has the fewest."""
    while waiting and lanes:
        lane = min(lanes, key=lambda lane: lane.handed)
        if not _hand_batch(replica, lane, waiting, most, frames[lane.child], now):
            lanes.remove(lane)


def _hand_batch(replica: Replica, lane: Lane, waiting: deque[Held], most: int, frames: list[Frame], now: float) -> bool:
    """Hand a lane the next batch of a waiting line, if it may have one now: a busy lane gets none that could still fill."""
    service: Service = lane.service
    if lane.handed and (len(waiting) < service.batch or lane.handed + service.batch > most):
        return False
    rows: list[Held] = []
    keys: set[Any] = set()
    for held in waiting:
        if held.row.lane_key in keys:
            continue
        if not _may_start(replica, lane, held, now) or (rows and (held.alone or held.pin is not rows[0].pin)):
            break
        rows.append(held)
        if held.alone or len(rows) == service.batch:
            break
        if service.is_clustered and held.row.lane_key is not None:
            keys.add(held.row.lane_key)  # the next one of its key must not pass it: another batch
    if not rows or (lane.handed and len(rows) < service.batch):
        return False
    delivered: list[Frame] = []
    for held in rows:
        waiting.remove(held)
        _hand(replica, lane, held, delivered)
    no = delivered[0][0]
    lane.child.batches[no] = [each[0] for each in delivered]
    frames.append((no, lane.local, delivered, 0, min(held.deadline for held in rows)))
    return True


def _has_room(lane: Lane, most: int) -> bool:
    child = lane.child
    return lane.handed < most and child.state is State.READY and child.alone is None and not lane.refused


def _may_start(replica: Replica, lane: Lane, held: Held, now: float) -> bool:
    if held.stage is not Stage.WAITING or held.deadline < now:
        return False
    if lane.service.subscription.transactional and not _may_take(replica, held):
        return False
    child = lane.child
    return child.alone is None and not (held.alone and child.handed)


def _may_take(replica: Replica, held: Held) -> bool:
    """Tell whether a child could take a row in a transaction: its token is known, and nothing else keeps it from writing."""
    return held.hold is Hold.SURE and replica.outage is None and one_writer.may_begin(replica)


def _hand(replica: Replica, lane: Lane, held: Held, frames: list[Frame]) -> None:
    child = lane.child
    id, _, _, _, key, _, group, headers, body = held.row
    replica.next_no = no = replica.next_no + 1
    frame: Frame = (no, lane.local, id, held.attempt, held.deadline, key, group, headers, body)
    held.lane = lane
    if lane.service.subscription.transactional:
        frame += (held.token, held.charged)
        lane.service.book.hand_over(held)
    else:
        held.stage = Stage.RUNNING
    frames.append(frame)
    lane.handed += 1
    child.handed[no] = held
    if held.alone:
        child.alone = held


def _publish(child: Child, deliveries: list[Frame]) -> None:
    """Send deliveries; of those that cannot be sent together each by itself, so that no row suffers for another."""
    try:
        child.send(pack_all(deliveries))
    except CannotCross:
        for delivery in deliveries:
            if delivery[0] in child.batches:
                _publish_batch(child, *delivery)
            elif _can_cross(child, delivery):
                child.send(pack(delivery))


def _publish_batch(child: Child, no: int, lane: int, rows: list[Frame], *more: Any) -> None:
    crossing = [row for row in rows if _can_cross(child, row)]
    child.batches[no] = [row[0] for row in crossing]
    if crossing:
        child.send(pack((no, lane, crossing, *more)))
    else:
        del child.batches[no]


def _can_cross(child: Child, row: Frame) -> bool:
    """Tell whether a row can be sent: a value that cannot is a failed attempt, and takes along what keeps its order behind it."""
    held = child.handed[row[0]]
    service: Service = held.lane.service
    try:
        pack(row)
        if held.row.lane_key not in service.turned_back:
            return True
        reason = None
    except CannotCross as error:
        reason = str(error)
    del child.handed[row[0]]
    held.lane.handed -= 1
    if child.alone is held:
        child.alone = None
    if reason is None:
        settle.release(service, held)
    else:
        settle.end(service, Ended(held, *endings.failed(service.subscription, held.attempt, 60.0, reason)))
    return False
