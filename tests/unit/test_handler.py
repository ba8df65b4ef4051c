"""What a declaration gets wrong is listed at once, with its place and the way out, before a database is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from shardrun import handler
from shardrun.errors import DeclarationProblem, ShardrunError, UsageProblem
from shardrun.registry import load

Handlers = Callable[[str], Path]

QUEUE = """
    invoices = Queue(
        "billing.invoice_jobs", id="id", payload="payload", locked_until="locked_until", attempt="attempt",
        retry_after="due_at", partition_key="customer_id", group="kind",
    )
"""


def found(handlers: Handlers, text: str) -> list[ShardrunError]:
    """Load a module afresh and list its problems."""
    handlers(text)
    sys.modules.pop("handlers", None)
    return handler.problems(load(["handlers.py"]).subscriptions)


def only(handlers: Handlers, text: str) -> ShardrunError:
    """Expect one problem."""
    problems = found(handlers, text)
    assert [str(each) for each in problems] == [str(problems[0])]
    return problems[0]


def with_settings(settings: str, queue: str = QUEUE) -> str:
    """Write a module with one handler; its decorator is at line 9."""
    return f"{queue}\n    @invoices.handler({settings})\n    def render(invoice: dict): ..."


def test_a_sound_declaration_has_no_problem(handlers: Handlers) -> None:
    """A5: README's own example, and one of everything."""
    assert found(handlers, with_settings("")) == []
    assert (
        found(
            handlers,
            with_settings(
                'workers_by_key=8, lease=60, max_attempts=5, dead_letter="billing.invoice_jobs_dead", group="a", '
                "on_decode_error=Retry(after=60), retry=Backoff(first=0, jitter=1), poll_interval=0.1"
            ),
        )
        == []
    )
    assert found(handlers, with_settings("retry=lambda attempt, error: 5, on_decode_error=Drop(), workers=1")) == []


def test_workers_by_key_needs_a_key(handlers: Handlers) -> None:
    """Text 12."""
    problem = only(
        handlers,
        'invoices = Queue("t", id="id")\n@invoices.handler(workers_by_key=8)\ndef render(invoice: dict): ...',
    )
    assert str(problem) == (
        "handler render (handlers.py:5) of queue invoices asks for workers_by_key=8, but the queue names no partition_key. "
        'Add partition_key="<column>" to Queue(...), or use workers=8.'
    )
    assert problem.exit_code == 4


def test_max_attempts_needs_a_home_and_a_count(handlers: Handlers) -> None:
    """Text 13, and its twin."""
    assert str(only(handlers, with_settings("max_attempts=5"))) == (
        "handler render (handlers.py:9) has max_attempts=5 and nowhere to put a row after the fifth. Add "
        'dead_letter="billing.invoice_jobs_dead" (shardrun ddl prints that table) or dead_letter_group="dead".'
    )
    assert "after attempt 12. Add" in str(only(handlers, with_settings("max_attempts=12")))
    queue = 'invoices = Queue("t", id="id")\n@invoices.handler(max_attempts=2, dead_letter="d")\ndef render(row): ...'
    assert str(only(handlers, queue)) == (
        "handler render (handlers.py:5) has max_attempts=2 and queue invoices has no column to count attempts in. "
        'Add attempt="<column>" to Queue(...).'
    )


def test_a_standard_queue_has_its_dead_letters(handlers: Handlers) -> None:
    """A5: <table>_dead, unless a group is named."""
    assert found(handlers, 'q = Queue.standard("mail")\n@q.handler(max_attempts=3)\ndef send(body: dict): ...') == []


def test_handlers_of_the_same_rows_are_named_together(handlers: Handlers) -> None:
    """Text 15: no group takes every group."""
    second = '\n\n    @invoices.handler(group="a")\n    def mail(invoice: dict): ...'
    assert str(only(handlers, with_settings("") + second)) == (
        "queue invoices has two handlers for the same rows: render (handlers.py:9) and mail (handlers.py:12). "
        "Give each its group=, or make them one."
    )
    third = second.replace("mail", "print_out")
    assert "has 3 handlers for the same rows: render" in str(only(handlers, with_settings("") + second + third))
    assert found(handlers, with_settings('group="b"') + second) == []
    pair = str(only(handlers, with_settings('group="b"') + second + third))
    assert "two handlers for the same rows: mail (handlers.py:12) and print_out (handlers.py:15)" in pair


def test_two_declarations_of_one_table_clash_as_well(handlers: Handlers) -> None:
    """Text 15: they would take each other's rows."""
    handlers(
        'a = Queue("app.t", id="id")\nb = Queue(\'app."t"\', id="id")\n@a.handler()\n@b.handler()\ndef run(row): ...'
    )
    problems = handler.problems(load(["handlers.py"]).subscriptions)
    assert [type(each) for each in problems] == [DeclarationProblem]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            'dead_letter="billing.invoice_jobs"',
            "would read its own dead letters: dead_letter='billing.invoice_jobs' is the",
        ),
        ('dead_letter="billing.\\"invoice_jobs\\""', "would read its own dead letters: "),
        (
            'dead_letter_group="dead"',
            "dead_letter_group='dead', and it takes every group. Give it a group= of its own.",
        ),
        ('dead_letter_group="a", group="a"', "and that is the group it takes."),
        ("on_decode_error=DeadLetter()", "has on_decode_error=DeadLetter() and no dead letters. Add dead_letter="),
    ],
)
def test_dead_letters_need_a_place_of_their_own(handlers: Handlers, settings: str, said: str) -> None:
    """A5: a subscription that would read its own dead letters does not start."""
    problem = only(handlers, with_settings(settings))
    assert said in str(problem)
    assert problem.exit_code == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("workers=0", "workers=0 is not a whole number of 1 or more."),
        ("workers=True", "workers=True is not a whole number"),
        ("workers_by_key='8'", "workers_by_key='8' is not a whole number"),
        ("max_attempts=0, dead_letter='d'", "max_attempts=0 is not"),
        ("workers=2, workers_by_key=2", "asks for workers=2 and workers_by_key=2. Choose"),
        ("lease=0", "lease=0 is not a time: give seconds (more than 0) or a timedelta."),
        ("lease=float('nan')", "lease=nan is not a time"),
        ("lease='30'", "lease='30' is not a time"),
        ("poll_interval=-1", "poll_interval=-1 is not a time"),
        ("timeout=0", "timeout=0 is not a time: give seconds (more than 0) or a timedelta."),
        ("timeout=float('inf')", "timeout=inf is not a time"),
        ("timeout=True", "timeout=True is not a time"),
        ("retry=5", "retry=5 is no retry rule"),
        ("retry=Backoff", "is no retry rule: give Backoff(first=1, factor=2)"),
        ("retry=Backoff(first=-1)", "Backoff(first=-1) is not a number of 0 or more."),
        ("retry=Backoff(factor=0.5)", "Backoff(factor=0.5) is not a number of 1 or more."),
        ("retry=Backoff(jitter=2)", "Backoff(jitter=2) is not a number of 0 to 1."),
        ("retry=Backoff(longest=float('inf'))", "Backoff(longest=inf) is not a number"),
        ("on_decode_error=Snooze(5)", "is none of Drop(), Retry(after=60), DeadLetter()."),
        ("on_decode_error=Drop", "is none of Drop()"),
        ("on_decode_error=Retry(-1)", "on_decode_error=Retry(after=-1) is no delay"),
        ("on_decode_error=Retry(True)", "on_decode_error=Retry(after=True) is no delay"),
        ("dead_letter='d', dead_letter_group='x', group='a'", "dead_letter='d' and dead_letter_group='x'. Choose one."),
        ("key_scope='host'", 'key_scope=\'host\' is neither "replica" nor "cluster".'),
    ],
)
def test_settings_that_mean_nothing_are_refused(handlers: Handlers, settings: str, said: str) -> None:
    """A5, C42: with the handler, its place and the value."""
    problem = only(handlers, with_settings(settings))
    assert str(problem).startswith("handler render (handlers.py:9)")
    assert said in str(problem)
    assert isinstance(problem, UsageProblem)


def test_a_bad_max_attempts_does_not_hide_its_missing_home(handlers: Handlers) -> None:
    """A5: all problems at once, whatever their types."""
    texts = [str(each) for each in found(handlers, with_settings("max_attempts='5'"))]
    assert len(texts) == 2
    assert "nowhere to put a row after attempt 5" in texts[1]


@pytest.mark.parametrize(
    ("queue", "settings", "said"),
    [
        ("fifo=True, attempt='n'", "", 'fifo=True needs group="<column>": its groups are what is kept in order.'),
        ("fifo=True, group='g'", "", 'fifo=True needs attempt="<column>": a row that has begun is known by its count'),
        (
            "fifo=True, group='g', attempt='n', partition_key='k'",
            "workers_by_key=2",
            "asks for order by key, and fifo=True of queue q gives order by group",
        ),
        (
            "fifo=True, group='g', attempt='n'",
            "transactional=True",
            "transactional=True with fifo=True in the row lock",
        ),
        ("fifo=True, group='g', attempt='n'", "batch=2", "batch= with fifo=True in the row lock form is not in this"),
        (
            "fifo=True, group='g', attempt='n', advisory_lock='{g}'",
            "",
            "fifo=True with advisory_lock= is not in this version of shardrun. Choose one.",
        ),
        ("partition_key='k', attempt='n'", "key_scope='cluster'", "in the row lock form is not in this version"),
        ("partition_key='k', locked_until='l'", "key_scope='cluster'", 'key_scope="cluster" needs attempt="<column>"'),
        (
            "partition_key='k', locked_until='l', attempt='n'",
            "key_scope='cluster', workers=4",
            'key_scope="cluster" orders rows by key, and workers=4 does not. Use workers_by_key=4.',
        ),
    ],
)
def test_an_order_over_replicas_needs_what_it_stands_on(
    handlers: Handlers, queue: str, settings: str, said: str
) -> None:
    """D3, D4, A5: a group or a key, a count of attempts, and a form that has it."""
    body = "rows: list[dict]" if "batch" in settings else "row: dict"
    problem = only(handlers, f'q = Queue("t", id="id", {queue})\n@q.handler({settings})\ndef run({body}): ...')
    assert said in str(problem)


def test_an_order_over_replicas_is_taken_by_the_forms_that_have_it(handlers: Handlers) -> None:
    """D3, D4: FIFO with both forms, with any group or one; keys with leases, whether the number of lanes is said or not."""
    assert not found(
        handlers,
        """
        a = Queue("a", id="id", group="g", attempt="n", fifo=True)
        b = Queue("b", id="id", group="g", attempt="n", fifo=True, partition_key="k", locked_until="l")
        c = Queue("c", id="id", partition_key="k", attempt="n", locked_until="l")

        @a.handler(group="one")
        @b.handler(transactional=True)
        @c.handler(key_scope="cluster", workers_by_key=2)
        def run(row: dict): ...

        @a.handler(group="two")
        def other(row: dict): ...
        """,
    )


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ('Queue("t", id=("a", "b"))', "id=('a', 'b') is not the name of one column. One column must identify a row."),
        ('Queue("t", id="id", priority=3)', "priority=3 is not the name of one column. Leave priority= out"),
        ('Queue("t", id="id", payload="")', "payload='' is not the name of one column."),
        ('Queue(5, id="id")', "5 is not the name of a table."),
        ('Queue("t", id="id", advisory_lock="k-{id")', "advisory_lock='k-{id' is malformed (expected '}'"),
        (
            'Queue("t", id="id", advisory_lock="{id:>8}")',
            "advisory_lock='{id:>8}' is malformed ({id} must stand without",
        ),
        ('Queue("t", id="id", advisory_lock="{}")', "advisory_lock='{}' is malformed (empty braces name no column)"),
        ('Queue("t", id="id", advisory_lock="k-{{id}}")', "advisory_lock='k-{{id}}' names no column, so that all rows"),
        ('Queue("t", id="id", advisory_lock=7)', "advisory_lock=7 is not text."),
        (
            'Queue("t", id="id", locked_until="l", advisory_lock="{id}")',
            "names locked_until='l' (a lease) and advisory",
        ),
        ('Queue("t", id="id", isolation="chaos")', "isolation='chaos' is no isolation level. Use one of"),
        ('Queue("t", id="id", fetch=5)', "fetch=5 is not SQL text."),
        ('Queue("t", id="id", fetch=" ")', "fetch= must be one SELECT, which returns the id column"),
        ('Queue("t", id="id", fetch="delete from t")', "fetch= must be one SELECT, which returns the id column"),
        ('Queue("t", id="id", fetch="select 1 as id; delete from t;")', "it holds several statements."),
    ],
)
def test_roles_are_names_of_columns_and_fetch_is_a_select(handlers: Handlers, queue: str, said: str) -> None:
    """A3, A5: a composite id is refused, among others."""
    problem = only(handlers, f"q = {queue}\n@q.handler()\ndef run(row): ...")
    assert str(problem).startswith("queue q (handlers.py:4): ")
    assert said in str(problem)


def test_a_select_of_the_queues_own_may_end_and_begin_as_people_write_it(handlers: Handlers) -> None:
    """A3."""
    text = "/* all of it */ -- really\\nWITH x AS (SELECT ';' AS id) SELECT * FROM x; -- ;"
    assert not found(handlers, f'q = Queue("t", id="id", fetch="{text}")\n@q.handler()\ndef run(row): ...')


def test_groups_need_their_column(handlers: Handlers) -> None:
    """A5."""
    problems = found(
        handlers, 'q = Queue("t", id="id")\n@q.handler(group="a", dead_letter_group="b")\ndef run(row): ...'
    )
    assert [str(each).split(", but")[0] for each in problems] == [
        "handler run (handlers.py:5) of queue q asks for group='a'",
        "handler run (handlers.py:5) of queue q asks for dead_letter_group='b'",
    ]


def test_all_problems_of_all_handlers_come_at_once(handlers: Handlers) -> None:
    """A5: signatures included, in the order of the file."""
    problems = found(
        handlers,
        """
        a = Queue("a", id="id", attempt="n", fifo=True)
        b = Queue("b", id="id")
        @a.handler(lease=0)
        def one(): ...
        @b.handler(workers_by_key=2)
        def two(row, other): ...
        @b.handler(batch=2)
        def three(row: int): ...
        """,
    )
    assert [str(each).split(" (")[0] for each in problems] == [
        "queue a",
        "handler one",
        "handler one",
        "handler two",
        "handler two",
        "handler three",
        "queue b has two handlers for the same rows: two",
    ]
    assert min(each.exit_code for each in problems) == 2


def test_workers_on_keyed_rows_are_warned_of(handlers: Handlers) -> None:
    """Contract 1: workers=n on a queue with a partition key gives no order, and start says so."""
    handlers(with_settings("workers=8"))
    assert handler.warnings(load(["handlers.py"]).subscriptions) == [
        "handler render (handlers.py:9): workers=8 runs the rows of one customer_id side by side, in no order. For order by "
        "key use workers_by_key=8."
    ]


@pytest.mark.parametrize("settings", ["", "workers_by_key=8"])
def test_what_is_meant_is_not_warned_of(handlers: Handlers, settings: str) -> None:
    """D1: by key is the default where there are keys."""
    handlers(with_settings(settings))
    assert handler.warnings(load(["handlers.py"]).subscriptions) == []


def test_times_may_be_timedeltas(handlers: Handlers) -> None:
    """Contract 4: Seconds."""
    handlers(with_settings("lease=__import__('datetime').timedelta(minutes=1)"))
    subscription = load(["handlers.py"]).subscriptions[0]
    assert subscription.lease == timedelta(minutes=1).total_seconds()
    assert handler.problems([subscription]) == []


def test_a_queue_without_due_times_is_warned_of_unless_leases_take_delays(handlers: Handlers) -> None:
    """Contract 1: retries are made at once there, and delays are failures."""
    handlers(
        """
        q = Queue("t", id="id")
        r = Queue("r", id="id", advisory_lock="{id}", retry_after="due")
        s = Queue("s", id="id", locked_until="locked_until")

        @q.handler(workers=1)
        @r.handler()
        @s.handler()
        def run(row): ...
        """
    )
    assert handler.warnings(load(["handlers.py"]).subscriptions) == [
        "queue q (handlers.py:4) has no column for due times: a failed row is tried again at once, and Snooze counts as a "
        'failure. Add retry_after="<column>" to Queue(...).'
    ]


def test_a_typed_queue_is_named_by_the_line_that_declares_it(handlers: Handlers) -> None:
    """A5: Queue[T](...) is called by way of the typing module, whose file is nobody's declaration."""
    texts = found(
        handlers,
        """
        q = Queue[int]("t", id="id", attempt="n", fifo=True)
        s = Queue[int].standard("s")

        @q.handler()
        def one(row): ...

        @s.handler(lease=0)
        def two(row): ...
        """,
    )
    assert str(texts[0]).startswith("queue q (handlers.py:4)")
    assert load(["handlers.py"]).queues[1].source.line == 5
