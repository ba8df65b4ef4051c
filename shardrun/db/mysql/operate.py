"""Count a queue's rows on MySQL and MariaDB, and act on its dead letters: rows in and out of `status` and `dead`."""

from __future__ import annotations

from shardrun.db.mysql import driver
from shardrun.db.mysql.driver import Connection
from shardrun.db.operate import Counts, Sessions
from shardrun.db.table import Layout

LIMITS = """\
select @@global.max_connections, @@session.max_user_connections,
       (select count(*) from information_schema.processlist where user = substring_index(user(), '@', 1))"""

IN_USE = "show global status like 'Threads_connected'"

NAMED = """\
select a.attr_value, coalesce(p.db = database(), false)
  from performance_schema.session_account_connect_attrs a
  join information_schema.processlist p on p.id = a.processlist_id
 where a.attr_name = 'program_name' and a.attr_value like 'shardrun %' and p.id <> connection_id()"""


def counts(connection: Connection, layout: Layout) -> Counts:
    """Count what a queue holds for one subscription, within bounds."""
    raise NotImplementedError


def sessions(connection: Connection) -> Sessions:
    """Read the limit of connections, the server's or the user's own where that is nearer, and who uses them.

    Names are known where the server keeps a performance schema (MariaDB does not unless it is told to).
    """
    with driver.naming_errors(connection):
        limit, of_user, mine = (int(value) for value in connection.execute(LIMITS).fetchall()[0])
        in_use = int(connection.execute(IN_USE).fetchall()[0][1])
        named = connection.execute(NAMED).fetchall()
    if of_user and of_user - mine < limit - in_use:
        limit, in_use = of_user, mine
    return Sessions(limit, in_use - 1, [row[0] for row in named], [row[0] for row in named if row[1]])


class MysqlDeadLetters:
    """The dead letters of one subscription: its statements, built once; holds no state of its own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
