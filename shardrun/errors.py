"""Every failure that shardrun names: typed fields in, one readable sentence out.

Each class builds its own sentence (what, where, what to do), so that a message reads the same wherever it is raised.
`exit_code` is what the command line ends with: 1 failed while running, 2 usage, 3 no database, 4 the table does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence


class ShardrunError(Exception):
    """Base of all; `str()` is one sentence for a person."""

    exit_code = 1


class UsageProblem(ShardrunError):
    """Flags, configuration, connection limit, import or signature are wrong (exit code 2)."""

    exit_code = 2


class DatabaseUnreachable(ShardrunError):
    """The database did not answer, or the SQLite file is missing (exit code 3)."""

    exit_code = 3


class DeclarationProblem(ShardrunError):
    """The table or the declaration does not fit (exit code 4)."""

    exit_code = 4


class NotInThisVersion(UsageProblem):
    """Something of the contract that this version does not have yet: refused, never half done."""

    def __init__(self, where: str, what: str, way_out: str = "Leave it out.") -> None:
        super().__init__(f"{where}: {what} is not in this version of shardrun. {way_out}")


class Unsupported(DeclarationProblem):
    """A form that the database cannot give; carries the way out."""


class Problems(ShardrunError):
    """Several problems at once; the exit code is the smallest of theirs."""

    def __init__(self, problems: Sequence[ShardrunError]) -> None:
        self.problems = tuple(problems)
        self.exit_code = min(problem.exit_code for problem in problems)
        super().__init__("\n".join(str(problem) for problem in problems))


class ConnectionLost(ShardrunError):
    """The connection broke. What was under way may or may not have been committed: it is in doubt."""


class Conflict(ShardrunError):
    """The database refused for a passing reason (deadlock, serialisation, lock wait): nothing was done, try again."""


class StatementFailed(ShardrunError):
    """The database refused the statement itself (a constraint, a trigger, a value): nothing was done."""


class PoolTimeout(ShardrunError):
    """A handler waited too long for a connection of its child's pool."""

    def __init__(self, handler: str, queue: str, row: object, seconds: float, size: int) -> None:
        held = "holds it" if size == 1 else "holds them"
        super().__init__(
            f"{handler} (queue {queue}, row {row}) waited {seconds:g} s for a second connection; this child has {size} and the "
            f"same handler {held}. Use one block, or --child-pool-size {size + 1}."
        )
