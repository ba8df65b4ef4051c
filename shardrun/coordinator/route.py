"""Route: choose the lane for a row, and hand rows to the children, many at a time."""

from __future__ import annotations

from shardrun.coordinator.child import Child
from shardrun.coordinator.replica import Life, Replica
from shardrun.coordinator.service import Lane, Service, place
from shardrun.policy.leases import Held, Stage
from shardrun.policy.routing import lane_of
from shardrun.ring.wire import pack


def lane_for(service: Service, held: Held) -> Lane | None:
    """Name the lane that the row's key demands, or None where any lane will do (no key, or NULL)."""
    if held.row.lane_key is None or not service.subscription.by_key:
        return None
    return service.lanes[lane_of(held.row.lane_key, len(service.lanes))]


def has_free_lane(service: Service, lane: Lane | None) -> bool:
    """Tell whether a row would start at once in its lane, or in any where it has none."""
    if lane is not None:
        return lane.is_free
    return sum(each.is_free for each in service.lanes) > len(service.waiting)


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
    frames: dict[Child, bytearray] = {}
    for service in replica.services:
        most = 1 + service.ahead
        for lane in service.lanes:
            while lane.waiting and _may_take(lane, lane.waiting[0], most):
                _hand(replica, lane, lane.waiting.popleft(), frames)
        if service.waiting:
            _spread(replica, service, most, frames)
    for child, data in frames.items():
        child.send(bytes(data))


def _spread(replica: Replica, service: Service, most: int, frames: dict[Child, bytearray]) -> None:
    """Deal rows that any lane may take evenly, the emptiest lanes first."""
    lanes = sorted(service.lanes, key=lambda lane: lane.handed + len(lane.waiting))
    level = lanes[0].handed
    while service.waiting and lanes and level < most:
        lanes = [lane for lane in lanes if not lane.waiting and _may_take(lane, service.waiting[0], most)]
        level += 1
        for lane in lanes:
            if service.waiting and lane.handed < level and _may_take(lane, service.waiting[0], most):
                _hand(replica, lane, service.waiting.popleft(), frames)


def _may_take(lane: Lane, held: Held, most: int) -> bool:
    child = lane.child
    if not child.is_ready or lane.handed >= most or held.stage is not Stage.WAITING or child.alone is not None:
        return False
    return not (held.alone and child.handed)


def _hand(replica: Replica, lane: Lane, held: Held, frames: dict[Child, bytearray]) -> None:
    child = lane.child
    replica.next_no = no = replica.next_no + 1
    row = held.row
    frame = (no, lane.local, row.id, held.attempt, held.deadline, row.key, row.group, row.headers, row.body)
    data = frames.get(child)
    if data is None:
        data = frames[child] = bytearray()
    data += pack(frame)
    held.lane = lane
    lane.service.book.hand_out(held)
    lane.handed += 1
    child.handed[no] = held
    if held.alone:
        child.alone = held
