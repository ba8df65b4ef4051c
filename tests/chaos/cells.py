"""The cells of the kill matrix: how a row is held, on which database, in which mode, and the order that is promised there."""

from __future__ import annotations

from dataclasses import dataclass

ROW_LOCK, LEASE, ADVISORY = "row lock", "lease", "advisory lock"
EVERYWHERE, ONE_AT_A_TIME, IN_A_REPLICA = "over all replicas", "one at a time everywhere", "in a replica"


@dataclass(frozen=True)
class Cell:
    """A form and a mode on one database; `fifo` keeps groups in order over all replicas."""

    dialect: str
    form: str
    transactional: bool = False
    fifo: bool = False

    @property
    def name(self) -> str:
        """Name it, as reports and `--cell` do."""
        mode = "transactional" if self.transactional else "fifo" if self.fifo else "plain"
        return f"{self.dialect} {self.form} {mode}"

    @property
    def order(self) -> str:
        """Say what is promised of the rows of one key: under leases this is `key_scope="cluster"`."""
        if self.fifo or self.form == LEASE:
            return EVERYWHERE
        return ONE_AT_A_TIME if self.form == ADVISORY else IN_A_REPLICA

    @property
    def is_on_server(self) -> bool:
        """Tell whether there is a server that can be killed, and a network."""
        return self.dialect != "sqlite"

    @property
    def may_share(self) -> bool:
        """Tell whether a second replica may serve the same table."""
        return self.is_on_server or self.form == LEASE

    @property
    def survives_its_connection(self) -> bool:
        """Tell whether rows in work are still held when the connections break: by a lease, and with no transaction open."""
        return self.form == LEASE and not self.transactional

    @property
    def has_timeout(self) -> bool:
        """Tell whether a handler is ended in any case: on SQLite a transaction holds up all other writers."""
        return self.transactional and not self.is_on_server


SERVERS = ("postgres", "mariadb")
CELLS = [
    *(
        Cell(dialect, form, mode)
        for form in (ROW_LOCK, LEASE, ADVISORY)
        for dialect in SERVERS
        for mode in (False, True)
    ),
    *(Cell("sqlite", form, mode) for form in (LEASE, ADVISORY) for mode in (False, True)),
    *(Cell(dialect, ROW_LOCK, fifo=True) for dialect in SERVERS),
]
