"""Writers that die at each single instruction of the ring's own code, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from shardrun.ring import Ring, wire
from tests.ring.rings import KINDS, Create, pair

pytestmark = pytest.mark.parametrize("create", KINDS.values(), ids=KINDS.keys())


class Death(BaseException):
    """Stands for SIGKILL: nothing of the ring's runs after it."""


def dies(instruction: int, act: Callable[[], None]) -> bool:
    """Run `act` and let it die before that instruction of shardrun/ring; False when it has fewer."""
    left = instruction

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if "shardrun/ring/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Death
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Death:
        return True
    finally:
        sys.settrace(before)
    return False


def fill(writer: Ring, done: list[wire.Frame]) -> None:
    """Write small frames around the end of a ring of 100 bytes, and publish every second one."""
    for no in range(3):
        frame = (no, b"x" * 25)
        data = wire.pack(frame)
        assert writer.write(data) == len(data)
        done.append(frame)
        if no % 2:
            writer.publish()


def test_death_at_any_instruction_leaves_a_prefix_of_whole_frames(create: Create) -> None:
    """C15, R7: no instruction of a write or a publish is one that a writer may not die at."""
    instruction = 0
    alive = False
    while not alive:
        done: list[wire.Frame] = []
        frames = wire.Frames()
        with pair(create, 100) as (writer, reader):
            writer.write(b"\xc0" * 40)
            writer.publish()
            assert len(reader.read()) == 40
            alive = not dies(instruction, lambda ring=writer, done=done: fill(ring, done))  # type: ignore[misc]
            arrived = frames.feed(reader.read()) + frames.feed(reader.read_to_mark())
        assert arrived == [(no, b"x" * 25) for no in range(len(arrived))]
        assert len(arrived) in (len(done), len(done) + 1)
        instruction += 1
    assert instruction > 50
