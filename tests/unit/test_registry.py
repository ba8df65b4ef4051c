"""Handler modules are found, imported and listed, or refused by sentences that say where and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardrun import registry
from shardrun.errors import Problems, UsageProblem
from shardrun.registry import from_objects, load
from tests.unit.conftest import Write

Handlers = Callable[[str], Path]

TWO = """
    invoices = Queue("invoice_jobs", id="id", locked_until="locked_until")
    mails = Queue("app.mails", id="id", locked_until="locked_until")

    @mails.handler()
    def send(row): ...

    @invoices.handler(group="a")
    def render(row): ...

    @invoices.handler(group="b")
    def remind(row): ...
"""


def refusal(*sources: str, **options: bool) -> str:
    """Load what cannot be loaded, and return the sentence."""
    with pytest.raises(UsageProblem) as caught:
        load(sources, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_file_declares_its_queues_and_handlers(handlers: Handlers) -> None:
    """Contract 1: in the order of the file, queues named after their variables."""
    file = handlers(TWO)
    declared = load(["handlers.py"])
    assert declared.labels == ["invoices/render", "invoices/remind", "mails/send"]
    assert [queue.name for queue in declared.queues] == ["invoices", "mails"]
    assert [each.name for each in declared.subscriptions] == ["render", "remind", "send"]
    assert declared.sources == [str(file)]


def test_loading_twice_changes_nothing(handlers: Handlers) -> None:
    """Contract 1: the same objects, not a second import."""
    handlers(TWO)
    first, second = load(["handlers.py"]), load(["handlers.py", "./handlers.py"])
    assert second.labels == first.labels
    assert [id(each) for each in first.subscriptions] == [id(each) for each in second.subscriptions]


def test_a_decorated_handler_stays_a_plain_function(handlers: Handlers) -> None:
    """Contract 1: a test can call it."""
    handlers(TWO + "\n    send.called = send({})")
    declared = load(["handlers.py:send"])
    assert declared.subscriptions[0].function({}) is None


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        ("handlers.py:invoices", ["invoices/render", "invoices/remind"]),
        ("handlers.py:remind", ["invoices/remind"]),
        ("handlers:mails", ["mails/send"]),
        ("handlers", ["invoices/render", "invoices/remind", "mails/send"]),
    ],
)
def test_an_attribute_chooses(handlers: Handlers, source: str, labels: list[str]) -> None:
    """Contract 1: `pkg.mod:attr`, of files as well."""
    handlers(TWO)
    assert load([source]).labels == labels


def test_a_folder_is_its_files_that_do_not_begin_with_an_underscore(write: Write) -> None:
    """Contract 1: siblings are importable, and are asked as well."""
    queue = "from shardrun import Queue\n{0} = Queue('{0}', id='id')\n@{0}.handler()\ndef run(row): ...\n"
    write("jobs/b.py", queue.format("second"))
    write("jobs/a.py", queue.format("first") + "import util")
    write("jobs/_hidden.py", "raise RuntimeError")
    write("jobs/util.py", "X = 1")
    write("jobs/notes.txt", "no Python")
    assert load(["jobs/"]).labels == ["first/run", "second/run"]
    assert load(["jobs"]).sources == [os.path.abspath("jobs")]


@pytest.mark.parametrize("source", ["pkg", "pkg/", "pkg/__init__.py"])
def test_a_package_that_binds_no_handler_itself_is_its_files(write: Write, source: str) -> None:
    """Contract 1: an empty __init__.py is no reason to declare nothing."""
    write("pkg/__init__.py")
    write("pkg/tables.py", "from shardrun import Queue\ninvoices = Queue('invoice_jobs', id='id')")
    write("pkg/handlers.py", "from .tables import invoices as inv\n@inv.handler()\ndef render(row): ...")
    declared = load([source])
    assert declared.labels == ["invoices/render"]
    assert len(declared.queues) == 1


def test_a_package_that_binds_handlers_is_what_it_imports(write: Write) -> None:
    """Contract 1: its __init__.py decides."""
    queue = "from shardrun import Queue\n{0} = Queue('{0}', id='id')\n@{0}.handler()\ndef run(row): ...\n"
    write("pkg/__init__.py", "from .chosen import *")
    write("pkg/chosen.py", queue.format("chosen"))
    write("pkg/other.py", queue.format("other"))
    assert load(["pkg"]).labels == ["chosen/run"]
    assert load(["pkg.other"]).labels == ["other/run"]


def test_a_handler_may_bind_to_a_queue_of_another_module(write: Write) -> None:
    """Contract 1: the queue goes by the variable of the module that declares it."""
    write("tables.py", "from shardrun import Queue\ninvoices = Queue('invoice_jobs', id='id')")
    write("handlers.py", "import tables\n@tables.invoices.handler()\ndef render(row): ...")
    assert load(["handlers.py"]).labels == ["invoices/render"]
    assert refusal("tables.py:nothing").startswith("tables.py has no nothing.")


def test_equal_labels_are_numbered(write: Write) -> None:
    """Contract 1: two modules may both call a queue invoices, and a child finds each."""
    text = "from shardrun import Queue\ninvoices = Queue('{0}', id='id')\n@invoices.handler()\ndef render(row): ...\n"
    for folder in ("a", "b"):
        write(f"{folder}/handlers.py", text.format(folder))
    declared = load(["a/handlers.py", "b/handlers.py"])
    assert declared.labels == ["invoices/render", "invoices/render#2"]
    assert [each.queue.table for each in declared.subscriptions] == ["a", "b"]


def test_circular_imports_find_one_module(write: Write) -> None:
    """Contract 1: handlers.py imports util, which imports handlers."""
    write("util.py", "import handlers\ndef table(): return handlers.invoices.table")
    write(
        "handlers.py",
        """
        from shardrun import Queue
        invoices = Queue("invoice_jobs", id="id")
        import util
        @invoices.handler()
        def render(row): return util.table()
        """,
    )
    declared = load(["handlers.py"])
    assert declared.labels == ["invoices/render"]
    assert declared.subscriptions[0].function({}) == "invoice_jobs"


def test_no_source_names_what_to_type(write: Write) -> None:
    """Text 1."""
    assert refusal() == (
        "no handler module was named. Try: shardrun start handlers.py "
        '(or put handlers = ["handlers.py"] into shardrun.toml)'
    )
    with pytest.raises(UsageProblem, match=r"Try: shardrun ddl handlers\.py"):
        load([], command="ddl")


def test_a_wrong_path_names_what_is_near(handlers: Handlers) -> None:
    """Text 2."""
    handlers(TWO)
    assert refusal("handler.py") == f"handler.py does not exist in {os.getcwd()}. Near it: handlers.py"
    assert refusal("handlrs") == (
        f"handlrs does not exist: Python finds no such module in {os.getcwd()} or elsewhere on its path. Near it: handlers"
    )
    assert refusal("nowhere/at/all.py") == f"nowhere/at/all.py does not exist in {os.getcwd()}."
    assert refusal("handlers.py:invoice").endswith("has no invoice. Near it: invoices")


def test_what_is_no_module_is_said_to_be_none(write: Write) -> None:
    """C38: every file name that is not accepted is refused at start."""
    write("handlers.txt")
    write("empty/notes.md")
    assert "is not a Python file" in refusal("handlers.txt")
    assert "has no .py file" in refusal("empty")


def test_an_import_that_fails_shows_the_users_line(write: Write) -> None:
    """Text 3, C40: the file and line of the user's own code, and which Python it was."""
    write("handlers.py", "import json\n\nimport pdfkit\n")
    with pytest.raises(UsageProblem) as caught:
        load(["handlers.py"])
    assert str(caught.value) == (
        "handlers.py could not be imported: line 3, \"import pdfkit\": ModuleNotFoundError: No module named 'pdfkit'. "
        f"Python is {sys.executable}."
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def render(:\n    ...", 'line 1, "def render(:": SyntaxError: '),
        ("X = (1 +\n", "SyntaxError: '(' was never closed"),
        ("import util", 'util.py, line 2, "raise ValueError(": ValueError: two lines.'),
        ("import sys\nsys.exit(3)", 'line 2, "sys.exit(3)": SystemExit: 3.'),
        ("import json\njson.loads('{')", "line 2, \"json.loads('{')\": JSONDecodeError: "),
        ("raise Exception", 'line 1, "raise Exception": Exception. Python'),
        ("from shardrun import Queue\nQueue('a')", "line 2, \"Queue('a')\": TypeError: "),
    ],
)
def test_every_way_to_fail_an_import_is_a_sentence(write: Write, text: str, said: str) -> None:
    """C40: no traceback of ours; a library's frames are left out."""
    write("util.py", "X = 1\nraise ValueError(\n  'two\\nlines')")
    write("handlers.py", text)
    sentence = refusal("handlers.py")
    assert sentence.startswith("handlers.py could not be imported: ")
    assert said in sentence
    assert "\n" not in sentence


def test_an_interrupt_during_import_is_no_failed_import(write: Write) -> None:
    """H5: Ctrl-C ends the program."""
    write("handlers.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(["handlers.py"])


def test_two_folders_siblings_are_refused_with_the_users_line(write: Write) -> None:
    """C38: A/handlers.py and B/handlers.py that both import util."""
    for folder in ("a", "b"):
        write(f"{folder}/handlers.py", "import util")
        write(f"{folder}/util.py")
    with pytest.raises(Problems) as caught:
        load(["a/handlers.py", "b/handlers.py"])
    assert 'a/handlers.py could not be imported: line 1, "import util": ImportError: util is ' in str(caught.value)
    assert len(caught.value.problems) == 2


def test_all_problems_come_at_once(write: Write) -> None:
    """A5: two files fail, both are named; a file that is fine hides neither."""
    write("jobs/a.py", "import pdfkit")
    write("jobs/b.py", "1 / 0")
    write("jobs/c.py")
    with pytest.raises(Problems) as caught:
        load(["jobs"])
    assert [str(each).split(" could")[0] for each in caught.value.problems] == ["jobs/a.py", "jobs/b.py"]
    assert caught.value.exit_code == 2


def test_a_queue_without_handler_is_named_with_its_line(handlers: Handlers) -> None:
    """Text 4."""
    handlers('invoices = Queue("invoice_jobs", id="id")')
    assert refusal("handlers.py") == (
        "handlers.py declares nothing to run. It has a queue, invoices (line 4), without a handler: "
        "put @invoices.handler() above a function."
    )
    assert "It has a queue, invoices (line 4)" in refusal("handlers.py:invoices")
    assert load(["handlers.py"], needs_handlers=False).queues[0].name == "invoices"


def test_a_module_without_queue_says_how_to_declare_one(handlers: Handlers) -> None:
    """Text 4's twin."""
    handlers("def render(row): ...")
    assert "It has no queue: declare one at module level" in refusal("handlers.py")


def test_a_handler_name_bound_to_something_else_is_refused(handlers: Handlers) -> None:
    """C40: an int is neither queue nor handler; a class and a partial are no functions."""
    handlers(TWO + "\n    render = 5")
    assert refusal("handlers.py:render") == "handlers.py:render is of type int, neither a queue nor a handler of one."


@pytest.mark.parametrize("bound", ["partial(print)", "type('C', (), {})", "5"])
def test_what_is_no_function_cannot_be_a_handler(handlers: Handlers, bound: str) -> None:
    """C40: found before any row is claimed."""
    handlers(f'from functools import partial\nq = Queue("q", id="id")\nq.handler()({bound})')
    assert refusal("handlers.py").startswith("queue q (handlers.py:5): its handler is ")


CHILD = """
import json, sys
from shardrun import registry
declared = registry.load(json.loads(sys.argv[1]))
print(json.dumps([declared.labels, [each.queue.table for each in declared.subscriptions]]))
"""


def in_a_child(sources: list[str]) -> list[list[str]]:
    """Load the sources in another process and working directory, as a child does."""
    root = str(Path(registry.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, json.dumps(sources)],
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded: list[list[str]] = json.loads(result.stdout)
    return loaded


def test_a_child_finds_the_same_labels(write: Write, handlers: Handlers) -> None:
    """H1: from `sources` alone, whatever its working directory; the modules come with the path."""
    handlers(TWO)
    for folder in ("a", "b"):
        write(
            f"{folder}/handlers.py",
            f"from shardrun import Queue\nq = Queue({folder!r}, id='id')\n@q.handler()\ndef f(r): ...",
        )
    declared = load(["handlers.py:invoices", "a", "b/handlers.py"])
    assert in_a_child(declared.sources) == [
        ["invoices/render", "invoices/remind", "q/f", "q/f#2"],
        ["invoice_jobs", "invoice_jobs", "a", "b"],
    ]
    assert declared.labels == ["invoices/render", "invoices/remind", "q/f", "q/f#2"]


def test_run_takes_queues_handlers_modules_and_sources(handlers: Handlers) -> None:
    """Contract 1: shardrun.run's arguments become sources that a child can load."""
    file = handlers(TWO)
    loaded = load(["handlers.py"])
    module = sys.modules["handlers"]
    assert from_objects([loaded.queues[0]]).labels == ["invoices/render", "invoices/remind"]
    assert from_objects([module.send, module.remind]).labels == ["invoices/remind", "mails/send"]
    assert from_objects([module]).labels == loaded.labels
    assert from_objects([file, "handlers.py:mails"]).labels == loaded.labels
    assert from_objects([module.mails]).sources == [str(file)]
    assert in_a_child(from_objects([module.mails]).sources)[0] == loaded.labels


def test_run_refuses_what_a_child_could_not_find(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, last lines: a notebook, a queue in no variable, a number, nothing."""
    handlers(
        TWO + "\n    hidden = [Queue('h', id='id')]\n    hidden[0].handler()(send)\n    bare = Queue('b', id='id')"
    )
    load(["handlers.py"])
    module = sys.modules["handlers"]
    for given, said in (
        (module.hidden[0], "is no variable of a module"),
        (5, "of type int is none of them"),
        (module.bare, "declares nothing to run. It has a queue, bare"),
    ):
        with pytest.raises(UsageProblem, match=said):
            from_objects([given])
    with pytest.raises(UsageProblem, match="no handler module was named"):
        from_objects([])
    with monkeypatch.context() as notebook:  # undone before the module is looked for by its file, and forgotten
        notebook.setattr(module, "__name__", "__main__")
        notebook.setattr(module, "__file__", "/tmp/ipykernel_1/2.py")
        with pytest.raises(UsageProblem, match="needs handlers in a file: children import it"):
            from_objects([module.mails])
