"""A TCP proxy between a client and a server that breaks in the ways that networks do.

It runs on an event loop in a thread of its own. Its methods may be called from any other thread, and return when what
they ask for is in force.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

CHUNK = 65536

Answered = Callable[[bytes], bool]
"""Tells from the bytes that the server has sent since a request whether that was the whole answer."""


def postgres_is_idle(answer: bytes) -> bool:
    """Tell that PostgreSQL has answered and that no transaction is open."""
    return answer.endswith(b"Z\x00\x00\x00\x05I")


@dataclass(eq=False)
class Cut:
    """A request to be cut off: the next one that contains `match`."""

    match: bytes
    answered: Answered | None  # None: the request itself is lost
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float = 10.0) -> None:
        """Wait until a request has been cut off; fail when none comes."""
        assert self.done.wait(seconds), f"no request with {self.match!r} within {seconds:g} s"


@dataclass(eq=False)
class Link:
    """One client's connection, the one to the server made for it, and the cut that has caught it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    caught: Cut | None = None
    answer: bytes = b""

    def abort(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to a server; use it in a `with` block."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = 0
        self._links: list[Link] = []
        self._cuts: list[Cut] = []
        self._delay = 0.0
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @classmethod
    def of(cls, dsn: str) -> Proxy:
        """Stand before the server that a DSN names."""
        parts = urlsplit(dsn)
        return cls(parts.hostname or "127.0.0.1", parts.port or 5432)

    def dsn(self, dsn: str) -> str:
        """Lead a DSN through this proxy."""
        parts = urlsplit(dsn)
        who = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{who}@127.0.0.1:{self.port}").geturl()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._connected, "127.0.0.1", 0, limit=CHUNK))
        self.port = self._server.sockets[0].getsockname()[1]
        self._flowing = self._call(_set_event())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What tests ask for.

    def swallow(self) -> None:
        """Go silent: bytes are taken and not passed on, connections stay open. `flow` passes them on, late."""
        self._do(lambda: self._flowing.clear())

    def flow(self) -> None:
        """Pass bytes and connections on again, at once."""
        self._do(self._pass_on)

    def delay(self, seconds: float) -> None:
        """Hold each chunk back for so long, in both directions."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def refuse(self) -> None:
        """Close new connections as soon as they are made."""
        self._do(lambda: setattr(self, "_refusing", True))

    def cut(self) -> None:
        """Break all connections at once; what was swallowed is lost."""
        self._do(self._abort_all)

    def cut_after_request(self, match: bytes, answered: Answered = bool) -> Cut:
        """Pass on the next request that contains `match`, and break the connection when the server has answered."""
        return self._add(Cut(match, answered))

    def cut_at_request(self, match: bytes) -> Cut:
        """Break the connection of the next request that contains `match`, which never reaches the server."""
        return self._add(Cut(match, None))

    def forget(self, cut: Cut) -> None:
        """Cut off no request for this any more."""
        self._do(lambda: self._cuts.remove(cut) if cut in self._cuts else None)

    @property
    def connections(self) -> int:
        """How many connections pass through now."""
        return len(self._links)

    # On the loop.

    async def _connected(self, client_in: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refusing:
            client.transport.abort()
            return
        try:
            server_in, server = await asyncio.open_connection(*self.target, limit=CHUNK)
        except OSError:
            client.transport.abort()
            return
        link = Link(client, server)
        self._links.append(link)
        try:
            await asyncio.gather(self._requests(link, client_in), self._answers(link, server_in))
        except (OSError, asyncio.CancelledError):
            pass  # one side broke, or we did it
        finally:
            link.abort()
            self._links.remove(link)

    async def _requests(self, link: Link, source: asyncio.StreamReader) -> None:
        before = b""
        while chunk := await source.read(CHUNK):
            await self._hold_back()
            cut = next((cut for cut in self._cuts if cut.match in before + chunk), None)
            if cut is not None:
                self._cuts.remove(cut)
                link.caught = cut
                if cut.answered is None:
                    self._cut_off(link, cut)
                    return
            before = (before + chunk)[-1024:]  # a match may lie across chunks
            link.server.write(chunk)
            await link.server.drain()
        link.server.write_eof()

    async def _answers(self, link: Link, source: asyncio.StreamReader) -> None:
        while chunk := await source.read(CHUNK):
            await self._hold_back()
            if (cut := link.caught) is not None and cut.answered is not None:
                link.answer += chunk
                if cut.answered(link.answer):
                    self._cut_off(link, cut)
                    return
                continue
            link.client.write(chunk)
            await link.client.drain()
        link.client.write_eof()

    def _cut_off(self, link: Link, cut: Cut) -> None:
        link.abort()
        cut.done.set()

    async def _hold_back(self) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._flowing.wait()

    def _pass_on(self) -> None:
        self._refusing = False
        self._delay = 0.0
        self._flowing.set()

    def _abort_all(self) -> None:
        for link in self._links:
            link.abort()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # From the other threads to the loop.

    def _add(self, cut: Cut) -> Cut:
        self._do(lambda: self._cuts.append(cut))
        return cut

    def _do(self, act: Callable[[], Any]) -> None:
        async def do() -> None:
            act()

        self._call(do())

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)


async def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
