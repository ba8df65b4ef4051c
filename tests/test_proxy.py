"""The proxy between tests and servers: it breaks where it is told to, and nowhere else."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.proxy import Proxy, postgres_is_idle
from tests.servers import Postgres
from tests.waiting import eventually


class EchoServer(socketserver.ThreadingTCPServer):
    """Answers each line with itself, and remembers what it got."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.lines: list[bytes] = []
        self.ended = threading.Semaphore(0)


class EchoHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, EchoServer)
        with contextlib.suppress(OSError):
            for line in self.rfile:
                self.server.lines.append(line)
                self.wfile.write(line)
        self.server.ended.release()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.server_address[1]) as proxy:
        yield proxy


class Client:
    """A client of the echo server, through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, line: bytes) -> bytes:
        self.socket.sendall(line)
        return self.answer(len(line))

    def answer(self, size: int) -> bytes:
        """Read `size` bytes; fewer when the connection ends."""
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while len(got) < size and (chunk := self.socket.recv(size - len(got))):
                got += chunk
        return got


def test_bytes_pass_in_both_directions_and_in_any_size(proxy: Proxy) -> None:
    """Proxy: passes."""
    with Client(proxy) as one, Client(proxy) as other:
        assert one.ask(b"a\n") == b"a\n"
        long = b"x" * 1_000_000 + b"\n"
        sender = threading.Thread(target=other.socket.sendall, args=(long,))
        sender.start()
        assert other.answer(len(long)) == long
        sender.join()
        assert proxy.connections == 2
    assert eventually(lambda: proxy.connections == 0)


def test_the_end_of_one_side_reaches_the_other(proxy: Proxy, echo: EchoServer) -> None:
    """Proxy: passes an end of file after all bytes."""
    with Client(proxy) as client:
        client.socket.sendall(b"last\n")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.answer(100) == b"last\n"
    assert echo.ended.acquire(timeout=10)


def test_a_cut_breaks_what_is_open_and_nothing_later(proxy: Proxy) -> None:
    """Proxy: cuts."""
    with Client(proxy) as client:
        assert client.ask(b"a\n") == b"a\n"
        proxy.cut()
        assert client.answer(1) == b""
    with Client(proxy) as client:
        assert client.ask(b"b\n") == b"b\n"


def test_swallowed_bytes_arrive_when_it_flows_again(proxy: Proxy, echo: EchoServer) -> None:
    """Proxy: swallows; the connection stays open."""
    with Client(proxy) as client:
        assert client.ask(b"a\n") == b"a\n"
        proxy.swallow()
        client.socket.sendall(b"b\n")
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        assert echo.lines == [b"a\n"]
        client.socket.settimeout(10)
        proxy.flow()
        assert client.answer(2) == b"b\n"


def test_swallowed_bytes_are_lost_in_a_cut(proxy: Proxy, echo: EchoServer) -> None:
    """Proxy: swallows, then cuts: the request never arrives."""
    with Client(proxy) as client:
        assert client.ask(b"a\n") == b"a\n"
        proxy.swallow()
        client.socket.sendall(b"b\n")
        proxy.cut()
        assert client.answer(1) == b""
    assert echo.ended.acquire(timeout=10)
    assert echo.lines == [b"a\n"]


def test_a_delay_holds_each_way_back(proxy: Proxy) -> None:
    """Proxy: delays."""
    proxy.delay(0.1)
    with Client(proxy) as client:
        began = time.monotonic()
        assert client.ask(b"a\n") == b"a\n"
        assert time.monotonic() - began >= 0.2


def test_refused_connections_end_at_once_until_it_flows_again(proxy: Proxy) -> None:
    """Proxy: refuses."""
    proxy.refuse()
    with Client(proxy) as client:
        assert client.answer(1) == b""
    proxy.flow()
    with Client(proxy) as client:
        assert client.ask(b"a\n") == b"a\n"


def test_a_request_arrives_and_its_answer_does_not(proxy: Proxy, echo: EchoServer) -> None:
    """Proxy: cuts between a request and its answer, once, though the match lies across two chunks."""
    cut = proxy.cut_after_request(b"MIT\nCOM")
    with Client(proxy) as client:
        assert client.ask(b"COMMIT\n") == b"COMMIT\n"
        client.socket.sendall(b"COMMIT\n")
        assert client.answer(1) == b""
    cut.wait()
    assert echo.ended.acquire(timeout=10)
    assert echo.lines == [b"COMMIT\n", b"COMMIT\n"]
    with Client(proxy) as client:
        assert client.ask(b"COMMIT\nCOMMIT\n") == b"COMMIT\nCOMMIT\n"


def test_a_request_is_lost(proxy: Proxy, echo: EchoServer) -> None:
    """Proxy: cuts so that the request never reaches the server, once."""
    cut = proxy.cut_at_request(b"COMMIT")
    with Client(proxy) as client:
        assert client.ask(b"a\n") == b"a\n"
        client.socket.sendall(b"COMMIT\n")
        assert client.answer(1) == b""
    cut.wait()
    assert echo.ended.acquire(timeout=10)
    assert echo.lines == [b"a\n"]
    with Client(proxy) as client:
        assert client.ask(b"COMMIT\n") == b"COMMIT\n"


def test_a_target_that_is_gone_ends_the_client(echo: EchoServer) -> None:
    """Proxy: a server that does not answer ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Proxy("127.0.0.1", port) as proxy, Client(proxy) as client:
        assert client.answer(1) == b""


def test_a_commit_takes_effect_though_its_answer_is_lost(postgres: Postgres) -> None:
    """Proxy: the doubt about a commit, on a real server, either way."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t (id int)")
    with Proxy.of(dsn) as proxy:
        answered = proxy.cut_after_request(b"COMMIT", postgres_is_idle)
        commit_and_fail(proxy.dsn(dsn), 1)
        answered.wait()
        lost = proxy.cut_at_request(b"COMMIT")
        commit_and_fail(proxy.dsn(dsn), 2)
        lost.wait()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT array_agg(id) FROM t").fetchone() == ([1],)


def commit_and_fail(dsn: str, number: int) -> None:
    """Insert a number, and lose the connection in the commit."""
    with contextlib.closing(psycopg.connect(dsn)) as connection:
        connection.execute("INSERT INTO t VALUES (%s)", (number,))
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
