"""Every annotation over every payload column: what the handler gets, or the sentence why not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional, TypedDict

import msgspec
import pydantic
import pytest

from shardrun.handler import DoesNotFit, plan
from shardrun.queue import Subscription
from shardrun.ring.wire import Frames, pack
from tests.store.place import Holder, Place, usual


@dataclass
class Line:
    """A part of a payload."""

    price: float


@dataclass
class Invoice:
    """A payload as most users declare it."""

    number: int
    lines: list[Line]
    note: str | None = None


class Typed(TypedDict):
    """The same as a dict."""

    number: int
    lines: list[dict[str, float]]


class Struct(msgspec.Struct):
    """The same for msgspec."""

    number: int
    lines: list[Line]


class Model(pydantic.BaseModel):
    """The same for pydantic."""

    number: int
    lines: list[dict[str, float]]


class Closed(pydantic.BaseModel, extra="forbid"):
    """One that its owner closed to unknown keys."""

    number: int


TEXT = '{"number": 7, "lines": [{"price": 1.5}], "unknown": "naïve 🦆"}'
WHOLE = json.loads(TEXT)
PART = {"number": 7, "lines": [{"price": 1.5}]}

COLUMNS = {
    "postgres": ["bytea", "text", "varchar(1000)", "pg_catalog.json", "jsonb"],
    "sqlite": ["blob", "text", "varchar(1000)", "json", "json text"],
}
KINDS = {"bytea": "binary", "blob": "binary", "text": "text", "varchar(1000)": "text"}
EVERY = [(dialect, column) for dialect, columns in COLUMNS.items() for column in columns]


def calling(annotation: Any) -> Any:
    """Make a handler of one parameter."""

    def handle(body: Any) -> None: ...

    handle.__annotations__["body"] = annotation
    if annotation is None:
        del handle.__annotations__["body"]
    return handle


def subscription(annotation: Any, **roles: Any) -> Subscription:
    """Bind such a handler to a queue."""
    queue = usual(**roles)
    queue.handler()(calling(annotation))
    return queue.subscriptions[-1]


def arrives(place: Place, annotation: Any, stored: Any, column: str) -> Any:
    """Store a payload, claim it, send it over a ring and decode it, as a child does."""
    place.create_usual(without=["payload"], payload=column)
    place.fill(1, payload=stored)
    holder = Holder(place, usual())
    (row,) = holder.claim()
    (frame,) = Frames().feed(pack((1, 0, row.id, row.attempt, 0.0, row.key, row.group, row.headers, row.body)))
    return plan(subscription(annotation), holder.store.payload_kind).decode(frame[8])


def stored_in(column: str, text: str = TEXT) -> Any:
    return text.encode() if KINDS.get(column) == "binary" else text


WANTED: dict[str, tuple[Any, Any]] = {
    "dict": (dict, WHOLE),
    "dict[str, Any]": (dict[str, Any], WHOLE),
    "dataclass": (Invoice, Invoice(7, [Line(1.5)])),
    "TypedDict": (Typed, PART),
    "Struct": (Struct, Struct(7, [Line(1.5)])),
    "model": (Model, Model(number=7, lines=[{"price": 1.5}])),
    "Optional": (Optional[Invoice], Invoice(7, [Line(1.5)])),  # noqa: UP045
    "| None": (Model | None, Model(number=7, lines=[{"price": 1.5}])),
}


@pytest.mark.parametrize(("dialect", "column"), EVERY)
def test_a_payload_becomes_what_the_annotation_says(open_place: Any, dialect: str, column: str) -> None:
    """A2: BYTEA, BLOB, TEXT, JSON and JSONB all serve; unknown keys are ignored."""
    place = open_place(dialect)
    first = arrives(place, dict, stored_in(column), column)
    assert first == WHOLE
    holder = Holder(place, usual())
    place.run("update q set locked_until = null")
    (row,) = holder.claim()
    kind = holder.store.payload_kind
    assert kind == KINDS.get(column, "json")
    for annotation, value in WANTED.values():
        assert plan(subscription(annotation), kind).decode(row.body) == value
    text = plan(subscription(str), kind).decode(row.body)
    assert json.loads(text) == WHOLE
    assert (text == TEXT) == (column != "jsonb")  # which keeps its own spelling
    assert json.loads(plan(subscription(bytes), kind).decode(row.body)) == WHOLE
    plain = plan(subscription(None), kind).decode(row.body)
    assert plain == {"binary": TEXT.encode(), "text": TEXT, "json": WHOLE}[kind]


@pytest.mark.parametrize(("dialect", "column"), EVERY)
def test_a_list_and_a_plain_value(open_place: Any, dialect: str, column: str) -> None:
    """A2: `list`, and what JSON has besides objects."""
    place = open_place(dialect)
    assert arrives(place, list, stored_in(column, "[1, [2], null]"), column) == [1, [2], None]
    kind = Holder(place, usual()).store.payload_kind
    for text, annotation, value in (("3", int, 3), ("[1.5]", list[float], [1.5]), ('"x"', list, None)):
        place.run("delete from q")
        place.fill(1, payload=stored_in(column, text))
        (row,) = Holder(place, usual()).claim()
        if value is None:
            with pytest.raises(DoesNotFit, match=r"^the payload does not fit list: Expected array, got str$"):
                plan(subscription(annotation), kind).decode(row.body)
        else:
            assert plan(subscription(annotation), kind).decode(row.body) == value


MISFITS: list[tuple[Any, str, str]] = [
    (Invoice, '{"number": "7", "lines": []}', r"does not fit Invoice: Expected int, got str, at \$\.number"),
    (Invoice, '{"number": 7}', r"does not fit Invoice: Object missing required field lines"),
    (Typed, '{"number": 1.5, "lines": []}', r"does not fit Typed: Expected int, got float, at \$\.number"),
    (Struct, '{"number": 7, "lines": [{"price": "1"}]}', r"Expected float, got str, at \$\.lines\[0\]\.price"),
    (Model, '{"number": "7", "lines": []}', r"does not fit Model: Input should be a valid integer, at \$\.number"),
    (Closed, '{"number": 7, "x": 1}', r"does not fit Closed: Extra inputs are not permitted, at \$\.x"),
    (dict, "[1]", r"does not fit dict: Expected object, got array"),
]


@pytest.mark.parametrize(("annotation", "text", "says"), MISFITS)
def test_types_are_not_coerced(place: Place, annotation: Any, text: str, says: str) -> None:
    """A2, A4: the sentence says where and what, and never the value."""
    column = "jsonb" if place.dialect == "postgres" else "json"
    with pytest.raises(DoesNotFit, match=says):
        arrives(place, annotation, text, column)


ODD_BYTES: list[tuple[Any, bytes, str]] = [
    (str, b"\xff\xfe", "does not fit str: UnicodeDecodeError: "),
    (dict, b"\xff", "does not fit dict: "),
    (dict, b'{"a": "\xff"}', "does not fit dict: "),
    (Model, b'{"number": 7, "lines": []', "does not fit Model: Invalid JSON"),
    (Invoice, b"", "does not fit Invoice: Input data was truncated"),
    (dict, b"\x00", "does not fit dict: JSON is malformed"),
]


@pytest.mark.parametrize(("annotation", "stored", "says"), ODD_BYTES)
def test_bytes_that_are_no_text_or_no_json_are_said(place: Place, annotation: Any, stored: bytes, says: str) -> None:
    """A4: invalid UTF-8, NUL, cut short, empty."""
    with pytest.raises(DoesNotFit, match=says) as found:
        arrives(place, annotation, stored, "bytea" if place.dialect == "postgres" else "blob")
    assert "\0" not in str(found.value)


@pytest.mark.parametrize("annotation", [bytes, None])
def test_any_bytes_arrive_as_they_are(place: Place, annotation: Any) -> None:
    """A2: NUL bytes, all 256 of them, none at all."""
    column = "bytea" if place.dialect == "postgres" else "blob"
    stored = bytes(range(256)) * 3
    assert arrives(place, annotation, stored, column) == stored
    place.run("delete from q")
    place.fill(1, payload=b"")
    (row,) = Holder(place, usual()).claim()
    assert plan(subscription(annotation), "binary").decode(row.body) == b""


def test_nul_bytes_and_halves_of_surrogates_in_text_on_sqlite(open_place: Any) -> None:
    """A2, A4: SQLite's text may hold NUL; JSON's escapes of it are fine anywhere but in JSONB."""
    place = open_place("sqlite")
    assert arrives(place, str, "a\0b", "text") == "a\0b"
    kind = Holder(place, usual()).store.payload_kind
    assert plan(subscription(dict), kind).decode('{"a": "\\u0000"}') == {"a": "\0"}
    with pytest.raises(DoesNotFit):
        plan(subscription(dict), kind).decode("\0{}")


NULLS: list[tuple[Any, bool]] = [
    (None, True),
    (Any, True),
    (Invoice | None, True),
    (Optional[str], True),  # noqa: UP045
    (bytes | None, True),
    (Invoice, False),
    (str, False),
    (bytes, False),
    (dict, False),
    (Model, False),
]


@pytest.mark.parametrize(("dialect", "column"), EVERY)
def test_null_fits_optional_only(open_place: Any, dialect: str, column: str) -> None:
    """A2: NULL is None where the annotation says so, and else does not fit; an empty text is not NULL."""
    place = open_place(dialect)
    place.create_usual(without=["payload"], payload=column)
    place.fill(1, payload=None)
    holder = Holder(place, usual())
    (row,) = holder.claim()
    for annotation, fits in NULLS:
        decode = plan(subscription(annotation), holder.store.payload_kind).decode
        if fits:
            assert decode(row.body) is None
        else:
            with pytest.raises(DoesNotFit, match="it is NULL"):
                decode(row.body)


def test_null_and_empty_and_an_empty_object_are_told_apart(place: Place) -> None:
    """C98: NULL, "", {} and null."""
    place.create_usual(without=["payload"], payload="text")
    stored = [None, "", "{}", "null", " "]
    for each in stored:
        place.fill(1, payload=each)
    holder = Holder(place, usual())
    rows = holder.claim()
    assert [row.body for row in rows] == stored
    read = plan(subscription(str | None), "text").decode
    assert [read(row.body) for row in rows[:3]] == [None, "", "{}"]
    wants = plan(subscription(dict[str, Any] | None), "text").decode
    assert [wants(rows[number].body) for number in (0, 2, 3)] == [None, {}, None]
    for number in (1, 4):
        with pytest.raises(DoesNotFit, match="truncated"):
            wants(rows[number].body)


NUMBERS = '{"big": 1180591620717411303424, "cents": 1.10, "minus": -0.0, "twice": 1, "twice": 2, "nul": "a\\u0000b"}'


def test_numbers_are_exact_where_python_is(place: Place) -> None:
    """C98: whole numbers of any size are exact, fractions are floats, of two equal keys the last counts."""
    column = "pg_catalog.json" if place.dialect == "postgres" else "json"
    body = arrives(place, dict, NUMBERS, column)
    assert body == {"big": 2**70, "cents": 1.1, "minus": 0.0, "twice": 2, "nul": "a\0b"}
    assert str(body["minus"]) == "-0.0"
    place.run("delete from q")
    place.fill(1, payload='{"huge": 1e400}')
    (row,) = Holder(place, usual()).claim()
    with pytest.raises(DoesNotFit):
        plan(subscription(dict), "json").decode(row.body)
    assert plan(subscription(str), "json").decode(row.body) == '{"huge": 1e400}'


@pytest.mark.parametrize("column", ["binary", "text", "json"])
def test_sixteen_megabytes_arrive_whole(place: Place, column: str) -> None:
    """A2: one payload much bigger than a ring."""
    types = {"binary": {"postgres": "bytea", "sqlite": "blob"}, "json": {"postgres": "jsonb", "sqlite": "json"}}
    kind = types.get(column, {}).get(place.dialect, "text")
    text = json.dumps({"long": "ü" * (8 << 20)}, ensure_ascii=False)
    place.create_usual(without=["payload"], payload=kind)
    place.fill(1, payload=text.encode() if column == "binary" else text)
    (row,) = Holder(place, usual()).claim()
    assert len(plan(subscription(dict), column).decode(row.body)["long"]) == 8 << 20


@dataclass
class Row:
    """A whole row, by column name."""

    id: int
    payload: Line
    attempt: int
    partition_key: str | None


class RowModel(pydantic.BaseModel):
    """The same for pydantic."""

    id: int
    payload: dict[str, float]


class RowStruct(msgspec.Struct):
    """The same for msgspec."""

    id: int
    payload: Line


class RowTyped(TypedDict):
    """The same as a dict."""

    id: int
    payload: dict[str, float]


def test_a_queue_without_payload_gives_the_row(place: Place) -> None:
    """A2: by column name, JSON decoded, unknown columns ignored, types not coerced."""
    place.create_usual()
    place.fill(1, payload='{"price": 1.5}')
    holder = Holder(place, usual(without=["payload"]))
    assert holder.store.payload_kind is None
    (row,) = holder.claim()
    (frame,) = Frames().feed(pack((1, 0, row.id, 1, 0.0, None, None, None, row.body)))

    def decoded(annotation: Any) -> Any:
        return plan(subscription(annotation, without=["payload"]), None).decode(frame[8])

    assert decoded(dict) == decoded(None) == row.body
    assert decoded(Row) == Row(1, Line(1.5), 1, None)
    assert decoded(RowModel) == RowModel(id=1, payload={"price": 1.5})
    assert decoded(RowStruct) == RowStruct(1, Line(1.5))
    assert decoded(RowTyped) == {"id": 1, "payload": {"price": 1.5}}
    with pytest.raises(DoesNotFit, match=r"^the row does not fit Invoice: Object missing required field number"):
        decoded(Invoice)
