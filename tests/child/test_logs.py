"""What handlers print and log."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

from shardrun.child import guard, logs
from shardrun.ring import words
from tests.child.conftest import Spawn


def test_logging_is_forwarded_with_the_row_that_it_belongs_to(spawn: Spawn) -> None:
    """K2: level, logger, text and the delivery's number cross; what lies under the level does not."""
    child = spawn(
        """
        import logging
        log = logging.getLogger("app.mail")
        log.warning("imported")
        @queue.handler(workers=1)
        def work(body):
            log.debug("too fine")
            try:
                raise ValueError("boom")
            except ValueError:
                log.exception("row %s", body)
        """
    )
    child.run("seven", no=5)
    assert child.logged("imported") == (words.LOG, logging.WARNING, "app.mail", "imported", 0)
    _, level, logger, text, no = child.logged("row seven")
    assert (level, logger, no) == (logging.ERROR, "app.mail", 5)
    assert text.endswith("ValueError: boom")
    assert not any(notice[0] == words.LOG and "too fine" in notice[3] for notice in child.notices)


def test_lines_of_rows_side_by_side_carry_their_own_numbers(spawn: Spawn) -> None:
    """K2: threads of lanes and tasks of the loop each log under their row; asyncio.to_thread keeps it."""
    child = spawn(
        """
        import asyncio, logging
        loop = Queue("v", id="id", payload="payload", locked_until="locked_until")
        met = threading.Barrier(4)
        def say(body):
            met.wait(20)
            logging.info("said %s", body)
        @queue.handler(workers=2)
        def work(body): say(body)
        @loop.handler(workers=2)
        async def coroutine(body): await asyncio.to_thread(say, body)
        """,
        subscriptions=["queue/work", "loop/coroutine"],
        lanes=[0, 0, 1, 1],
    )
    for lane in range(4):
        child.give(lane + 1, lane + 1, lane=lane)
    for no in range(1, 5):
        assert child.logged(f"said {no}")[4] == no


def test_a_finalizer_that_logs_while_a_report_is_written_blocks_nothing(spawn: Spawn) -> None:
    """H7: a line that comes from inside the child's own writing waits for it and is not lost."""
    child = spawn(
        """
        import logging
        from shardrun.child import reports
        class Noisy:
            def __del__(self): logging.warning("collected")
        pack = reports.pack
        def packing(frame):
            if frame[0] > 0:
                Noisy()
            return pack(frame)
        @queue.handler(workers=1)
        def work(body):
            reports.pack = packing
        """
    )
    assert child.run(no=1).code == words.ACK
    assert child.run(no=2).code == words.ACK
    child.until(lambda: [notice[3] for notice in child.notices if notice[0] == words.LOG] == ["collected"] * 2)


def test_prints_pass_through_untouched(spawn: Spawn, tmp_path: Path) -> None:
    """H7, C32: print and raw writes go where the coordinator's output goes, also many megabytes, also after a swap."""
    with open(tmp_path / "out", "wb") as out:
        child = spawn(
            """
            import io
            @queue.handler(workers=1)
            def work(body):
                if body == "swap":
                    sys.stdout = io.StringIO()
                print("x" * body if isinstance(body, int) else body)
                os.write(1, b"raw\\n")
            """,
            stdout=out,
        )
        for no, body in enumerate(("hello", 5_000_000, "swap"), 1):
            assert child.run(body, no=no).code == words.ACK
        assert child.close() == 0
    text = (tmp_path / "out").read_bytes()
    assert text.count(b"raw\n") == 3
    assert text.count(b"x") == 5_000_000
    assert b"hello\n" in text


def test_a_child_without_standard_streams_serves_all_the_same(spawn: Spawn) -> None:
    """C32: closed descriptors are filled with /dev/null, so that nothing else gets their numbers."""
    child = spawn(
        """
        @queue.handler(workers=1)
        def work(body):
            print("into the void")
            print("into the void", file=sys.stderr)
            if body == "close":
                os.close(1); os.close(2); sys.stdout = sys.stderr = None
            return Drop(str(os.open("/dev/null", os.O_RDONLY)))
        """,
        before=close_standard_streams,
    )
    assert int(child.run(no=1).reason or 0) > 2
    assert child.run("close", no=2).code == words.DROP
    assert child.run(no=3).code == words.DROP
    assert child.close() == 0


def close_standard_streams() -> None:
    os.closerange(0, 3)


def test_output_that_nobody_takes_any_more_does_not_spoil_the_exit_code(spawn: Spawn) -> None:
    """C32: what is left to flush when the reader is gone is dropped."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    source = "@queue.handler(workers=1)\ndef work(body): print('x')"
    child = spawn(source, stdout=subprocess.PIPE, environment=buffered)
    assert child.process.stdout is not None
    child.process.stdout.close()
    assert child.run().code == words.ACK
    assert child.close() == 0


def test_a_record_that_does_not_format_is_left_to_logging() -> None:
    """H7: logging prints why, and nothing is forwarded."""
    said: list[object] = []
    handler = logs.Forward(said.append)
    kept, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        handler.emit(logging.LogRecord("app", logging.INFO, "f.py", 1, "%d", ("x",), None))
    finally:
        logging.raiseExceptions = kept
    assert said == []
    assert guard.is_fork is False
