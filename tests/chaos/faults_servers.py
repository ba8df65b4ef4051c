"""The faults of servers and networks: a killed server, ended sessions, and a proxy that does what networks do."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, ClassVar

import pymysql

from tests.chaos.cells import ROW_LOCK, Cell
from tests.chaos.faults import Fault
from tests.chaos.field import Field
from tests.chaos.history import CONNECTION
from tests.proxy import Proxy, postgres_is_idle

WINDOW = 0.5
"""Seconds over which a rate is taken. Smaller: chance passes for recovery; larger: recoveries look slower than they are."""

ENOUGH = 0.95


class Outage(Fault):
    """What breaks connections: well again when as many rows a second end as before."""

    recovery, bound = "all well again to 95 % of the rate before", 10.0
    hits = 2

    def fits(self, cell: Cell) -> bool:
        """Tell whether there is a server."""
        return cell.is_on_server

    def hit(self, field: Field) -> None:
        """Measure the rate before, and note when connections were broken."""
        field.flows()
        field.pause(1 + field.chance.uniform(0, 0.3))
        begin = time.monotonic()
        self.rate = field.ended(begin - 1, begin)
        self.inject(field)
        self.heal(field)
        self.healed = time.monotonic()
        seconds = self.recovered(field)
        field.mark(CONNECTION, begin)
        if seconds is not None:
            field.past.recoveries.append(seconds)

    def recovered(self, field: Field) -> float | None:
        """Wait until the rate of some time is what it was."""
        wanted = ENOUGH * self.rate * WINDOW / field.patience  # where others use the machine rates change by themselves

        def look() -> float | None:
            now = time.monotonic()
            return now if field.ended(max(self.healed, now - WINDOW), now) >= wanted else None

        at: float = field.until(look, 40)
        return max(0.0, at - WINDOW - self.healed)


class ServerKilled(Outage):
    """SIGKILL for the server and all its processes, and a new start a moment later."""

    name = "server killed and restarted"

    def inject(self, field: Field) -> None:
        """Kill it, and leave it away for as long as two leases at most."""
        server: Any = field.site.server
        field.feeding = False
        field.site.disconnect()
        server.kill()
        field.pause(field.chance.uniform(0, 2))

    def heal(self, field: Field) -> None:
        """Start it again."""
        server: Any = field.site.server
        server.start()
        field.site.connect()
        field.feeding = True


class SessionsEnded(Outage):
    """Random sessions of shardrun's ended every 200 ms."""

    name = "sessions ended every 200 ms"
    hits = 1
    seconds: ClassVar[float] = 3.0

    def inject(self, field: Field) -> None:
        """End some, again and again."""
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            sessions = [session for (session,) in field.site.run(SESSIONS[field.cell.dialect])]
            for session in field.chance.sample(sessions, field.chance.randint(0, len(sessions))):
                with suppress(pymysql.err.OperationalError):  # it may have gone by itself
                    field.site.run(END_IT[field.cell.dialect], session)
            field.pause(0.2)


SESSIONS = {
    "postgres": "select pid from pg_stat_activity where datname = current_database() and application_name like 'shardrun %'",
    "mariadb": "select p.id from information_schema.processlist p join performance_schema.session_connect_attrs a "
    "on a.processlist_id = p.id and a.attr_name = 'program_name' "
    "where p.db = database() and a.attr_value like 'shardrun %'",
}
END_IT = {"postgres": "select pg_terminate_backend(?)", "mariadb": "kill connection ?"}


class Network(Outage):
    """A proxy between the replica and its server."""

    through_proxy = True

    def proxy(self, field: Field) -> Proxy:
        """Name the proxy."""
        found: Proxy = field.settings["proxy"]
        return found

    def heal(self, field: Field) -> None:
        """Let all pass again."""
        self.proxy(field).flow()


class Resets(Network):
    """All connections reset at once."""

    name = "network resets"

    def inject(self, field: Field) -> None:
        """Reset them twice within a moment."""
        for _ in range(2):
            self.proxy(field).cut()
            field.pause(field.chance.uniform(0, 0.2))


class Swallows(Network):
    """Bytes taken and not passed on for longer than a lease, both ways; then all that was silent is reset."""

    name = "network swallows"
    hits = 1

    def inject(self, field: Field) -> None:
        """Go silent."""
        self.proxy(field).swallow()
        field.pause(field.chance.uniform(1, 2))
        self.proxy(field).cut()


class Delays(Network):
    """Each chunk held back, both ways."""

    name = "network delays"
    hits = 1

    def inject(self, field: Field) -> None:
        """Hold them back by up to 50 ms for two seconds."""
        self.proxy(field).delay(field.chance.uniform(0.01, 0.05))
        field.pause(2)


class CutsBeforeReplies(Network):
    """The connection cut between COMMIT, or what else settles a row, and the reply."""

    name = "cut between COMMIT and its reply"
    hits = 3

    def inject(self, field: Field) -> None:
        """Cut off the next one. Fresh connections send it as text, those that have prepared it by its name only."""
        proxy, cell = self.proxy(field), field.cell
        matches: tuple[bytes, ...] = (b"commit", b"COMMIT")
        if cell.dialect == "postgres" and not cell.transactional and cell.form != ROW_LOCK:
            matches = (b"delete from ",)  # commits by itself
        answered = postgres_is_idle if cell.dialect == "postgres" else bool
        proxy.cut()
        cuts = [proxy.cut_after_request(match, answered) for match in matches]
        field.until(lambda: any(cut.done.is_set() for cut in cuts))
        for cut in cuts:
            proxy.forget(cut)


SERVER_FAULTS: list[type[Fault]] = [ServerKilled, SessionsEnded, Resets, Swallows, Delays, CutsBeforeReplies]
