"""Choose between PyMySQL and mysqlclient, and make connections of either that do what shardrun's code asks of them.

`mysql://` takes mysqlclient where it is installed and else PyMySQL, for the coordinator and for handlers alike: whoever
installed it wants it, and their placeholders and methods are the same. `mysql+pymysql://` and `mysql+mysqldb://` ask for one,
and get the other where only that is there. mysqlclient cannot name sessions (`status` does not know them as shardrun's), nor
say where a SELECT's columns come from, nor drop a timeout later, so that it has none: the system watches its socket.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any


class Executing:
    """A connection that runs a statement without being asked for a cursor, as psycopg's and sqlite3's do."""

    on_mariadb = False
    is_pymysql = True  # which also names sessions
    holds_rows = False  # by a transaction that a claim left open
    names_held: Mapping[Any, str] = {}  # of named locks, by the ids of rows; never changed in place

    def execute(self, text: str, values: Any = None) -> Any:
        """Run a statement and return its cursor; values as the driver's cursors take them."""
        cursor = self.cursor()  # type: ignore[attr-defined]
        cursor.execute(text, values)
        return cursor


@cache
def connection_class(asked: str, kind: Any = object) -> Any:
    """Make the class of our connections: the driver's own, that can also execute, and do what a `kind` adds.

    `asked` is the driver that the DSN names. Raises ImportError, of PyMySQL, where there is none.
    """
    first, second = (_pymysql, _mysqldb) if asked == "pymysql" else (_mysqldb, _pymysql)
    base = first() or second() or _neither()
    given = {
        "__module__": base.__name__,
        "default_cursor": _default_cursor(base),
        "is_pymysql": base.__name__.startswith("pymysql"),
    }
    kinds = () if kind is object else (kind,)
    return type("Connection", (*kinds, Executing, base.Connection), given)


def _default_cursor(base: Any) -> Any:
    """Find the class of cursors that a connection has unless it is told otherwise."""
    return base.Cursor if hasattr(base, "Cursor") else base.cursors.Cursor


def plain_cursor(connection: Any) -> Any:
    """Open a cursor of the driver's usual kind on anyone's connection, whatever kind it was set to give."""
    modules = (sys.modules.get(base.__module__) for base in type(connection).__mro__)
    return connection.cursor(next(_default_cursor(each) for each in modules if _is_drivers(each)))


def _is_drivers(module: Any) -> bool:
    return getattr(module, "__name__", None) in ("pymysql.connections", "MySQLdb.connections")


def _pymysql() -> Any:
    try:
        import pymysql.connections
    except ImportError:
        return None
    return pymysql.connections


def _mysqldb() -> Any:
    try:
        import MySQLdb.connections
    except ImportError:
        return None
    return MySQLdb.connections


def _neither() -> Any:
    raise ImportError("neither PyMySQL nor mysqlclient is installed", name="pymysql")
