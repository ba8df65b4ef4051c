"""Say what would work badly with a table of MySQL's or MariaDB's, though it fits the declaration."""

from __future__ import annotations

from collections.abc import Iterator

from shardrun.db.mysql import ddl
from shardrun.db.mysql.driver import Connection, naming_errors
from shardrun.db.table import Layout
from shardrun.queue import Form, Subscription

REFERRING = """\
select distinct if(table_schema = database(), table_name, concat(table_schema, '.', table_name)) as referring
  from information_schema.key_column_usage
 where referenced_table_schema = %s and referenced_table_name = %s
 order by referring"""


def warnings(connection: Connection, layout: Layout, subscription: Subscription) -> list[str]:
    """List what would work badly: no index for the claim, tokens that may meet, a handler that waits for itself."""
    said = [*_index(connection, layout), *_tokens(layout)]
    if layout.form is Form.ROW_LOCK and not subscription.transactional:
        said += _references(connection, layout)
    return [f"{subscription.queue.name}: {sentence}" for sentence in said]


def _index(connection: Connection, layout: Layout) -> Iterator[str]:
    if ddl.claim_index(layout) is not None:
        return
    said = "no index serves the claim."
    if long := ddl.unindexable(layout):
        column = long[0]
        change = f"alter table {_table(layout)} modify {ddl.quote(column.name)} varchar(255)"
        yield f"{said} Column {column.name} is {column.type}, which no index takes whole. {change}"
    else:
        yield f"{said} {ddl.index_of(layout, connection.on_mariadb)}"


def _tokens(layout: Layout) -> Iterator[str]:
    """Name a lease that is kept in whole seconds: an extension in doubt, and another replica's, may promise the same."""
    lock = layout.column("locked_until")
    if lock is None or lock.digits:
        return
    kind = "timestamp(6)" if lock.kind == "timestamptz" else "datetime(6)"
    yield (
        f"column {lock.name} (role locked_until) keeps whole seconds, so that replicas with different leases may take each "
        f"other's for theirs. alter table {_table(layout)} modify {ddl.quote(lock.name)} {kind} null"
    )


def _references(connection: Connection, layout: Layout) -> Iterator[str]:
    """Name tables that refer to the queue's: who inserts there locks the row, and a handler's own is locked already."""
    with naming_errors(connection):
        found = [name for (name,) in connection.execute(REFERRING, layout.table.parts).fetchall()]
    if found:
        yield (
            f"a foreign key refers to it from {', '.join(found)}: a handler that inserts there, for its own row, on a "
            f"connection of its own waits for the lock that its row is held by, which is its own. Hold the rows by a lease "
            f"(locked_until=), or use transactional=True and write through delivery.tx."
        )


def _table(layout: Layout) -> str:
    return ".".join(ddl.quote(part) for part in layout.table.parts)
