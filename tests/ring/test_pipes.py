"""What only the pipes need to prove."""

from __future__ import annotations

import pytest

from shardrun.ring import pipes
from shardrun.ring.doorbell import wait
from tests.ring.rings import pair


def test_space_freed_while_the_bell_is_silenced_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a writer that was cut short never sleeps on an empty pipe, whenever the reader frees it."""
    pull = pipes._pull
    with pair(pipes.PipeRing.create) as (writer, reader):
        while writer.write(b"x" * 4096):
            pass

        def read_first(end: int, most: int) -> bytes:
            if end == writer.writer_doorbell:
                monkeypatch.setattr(pipes, "_pull", pull)
                reader.read()
            return pull(end, most)

        monkeypatch.setattr(pipes, "_pull", read_first)
        taken = writer.write(b"x" * 4096)
        assert taken or wait([writer.writer_doorbell], 0)
