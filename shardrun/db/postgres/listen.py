"""Listen to PostgreSQL's NOTIFY in a session of its own, through libpq's calls that never wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
from psycopg.pq import ExecStatus

from shardrun.db.listening import Told
from shardrun.db.postgres.driver import Connection, name_error
from shardrun.errors import ConnectionLost, ShardrunError

REFUSED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)


class PostgresListening:
    """How one PostgreSQL database is listened to, given how it connects and what a pooler keeps from working."""

    def __init__(
        self, connect: Callable[[str], Connection], needs_session: Callable[[Connection, str, str], list[ShardrunError]]
    ) -> None:
        self._connect = connect
        self._needs_session = needs_session

    def problems(self, connection: Connection) -> list[ShardrunError]:
        """Refuse a pooler that would run LISTEN in a session that is another client's in a moment."""
        return self._needs_session(connection, "--listen-notify", "LISTEN")

    def open(self, part: str, channels: Sequence[str]) -> PostgresEar:
        """Connect and send LISTEN for each channel; raises `DatabaseUnreachable` or `ConnectionLost`."""
        connection = self._connect(part)
        try:
            return PostgresEar(connection, channels)
        except ConnectionLost:
            connection.close()
            raise


class PostgresEar:
    """A session that listens. Whoever uses it waits for its descriptor, or for a time of their own."""

    def __init__(self, connection: Connection, channels: Sequence[str]) -> None:
        self.awaits_answer = False
        self.descriptor = connection.fileno()  # libpq closes and forgets the socket when it finds it broken
        self._connection = connection
        self._send("; ".join(["set client_encoding = 'UTF8'", *(f"listen {_quoted(name)}" for name in channels)]))

    def ask(self) -> None:
        """Send an empty query, which the server answers at no cost; raises `ConnectionLost`."""
        self._send("")

    def heard(self) -> list[Told]:
        """Take what has come; raises `ConnectionLost`."""
        told: list[Told] = []
        with self._losing():
            libpq = self._connection.pgconn
            libpq.consume_input()
            self._take_answer()
            while (one := libpq.notifies()) is not None:
                told.append(Told(one.relname.decode(errors="replace"), one.extra.decode(errors="replace")))
        return told

    def close(self) -> None:
        """Close quietly, also when it is broken."""
        with suppress(psycopg.Error):
            self._connection.close()

    def _send(self, text: str) -> None:
        with self._losing():
            self._connection.pgconn.send_query(text.encode())
            self._connection.pgconn.flush()  # some bytes into an idle socket; what does not go is never answered
        self.awaits_answer = True

    def _take_answer(self) -> None:
        libpq = self._connection.pgconn
        while self.awaits_answer and not libpq.is_busy():
            answer = libpq.get_result()
            if answer is None:
                self.awaits_answer = False
            elif answer.status in REFUSED:
                said = answer.error_message.decode(errors="replace").strip().splitlines() or ["no reason given"]
                raise ConnectionLost(f"PostgreSQL does not let it listen: {said[0]}")

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Turn libpq's errors into `ConnectionLost`: nothing but a broken connection makes these calls fail."""
        try:
            yield
        except psycopg.Error as error:
            raise ConnectionLost(str(name_error(error, self._connection))) from error


def _quoted(channel: str) -> str:
    return '"' + channel.replace('"', '""') + '"'
