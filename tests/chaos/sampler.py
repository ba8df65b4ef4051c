"""Counts each replica's sessions as the server does, every 50 ms."""

from __future__ import annotations

import re
import threading
from collections import Counter

import psycopg
import pymysql

from shardrun.errors import ShardrunError
from tests.mariadb import Mariadb
from tests.process.site import Site

EVERY = 0.05
REPLICA = re.compile(r"shardrun (?:.*-)?(\d+)")


class Sampler:
    """A thread with a connection of its own, which it opens again whenever the server is back."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._most: Counter[str] = Counter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        if site.server is not None:
            self._thread.start()

    def close(self) -> dict[str, int]:
        """Stop; gives the most sessions that each replica had at once."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        return dict(self._most)

    def _sample(self) -> None:
        while not self._ending.wait(EVERY):
            try:
                self._look()
            except (ShardrunError, psycopg.Error, pymysql.Error, OSError):
                continue  # the server is away

    def _look(self) -> None:
        connection = self._site.another_connection()
        try:
            while not self._ending.wait(EVERY):
                cursor = connection.cursor()
                cursor.execute(SESSIONS[isinstance(self._site.server, Mariadb)])
                found = Counter(match[1] for (name,) in cursor.fetchall() if (match := REPLICA.match(name or "")))
                connection.rollback()
                self._most |= found
        finally:
            connection.close()


SESSIONS = {
    False: "select application_name from pg_stat_activity where datname = current_database() "
    "and backend_type = 'client backend'",
    True: "select a.attr_value from information_schema.processlist p join performance_schema.session_connect_attrs a "
    "on a.processlist_id = p.id and a.attr_name = 'program_name' where p.db = database()",
}
