"""Bodies become what the annotation says, strictly, or a sentence says why not."""

from __future__ import annotations

import datetime
import json
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, NotRequired, Optional, TypedDict

import msgspec
import pytest

from shardrun.decoding import CannotDecode, DoesNotFit, decoder


@dataclass
class Line:
    article: str
    pieces: int = 1


@dataclass
class Invoice:
    number: int
    due: datetime.date | None = None
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("no thirteenth")


class Typed(TypedDict):
    number: int
    note: NotRequired[str]


class Struct(msgspec.Struct):
    number: int


class Pair(NamedTuple):
    first: int
    second: str


class Plain:
    pass


class ModelError(ValueError):
    """Stands in for pydantic's ValidationError."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("number",), "msg": "Input should be a valid integer", "input": "secret"}]


class Model:
    """Stands in for a pydantic model: the two methods that shardrun calls."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def model_validate_json(cls, body: str | bytes, *, strict: bool) -> Model:
        return cls.model_validate(json.loads(body), strict=strict)

    @classmethod
    def model_validate(cls, value: Any, *, strict: bool) -> Model:
        assert strict
        if type(value["number"]) is not int:
            raise ModelError("1 validation error for Model\nnumber\n  Input should be a valid integer")
        return cls(value["number"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


BODY = '{"number": 7, "unknown": [1]}'


@pytest.mark.parametrize("kind", ["json", "text", "binary"])
@pytest.mark.parametrize("body", [BODY, BODY.encode(), memoryview(BODY.encode()), bytearray(BODY.encode())], ids=type)
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, BODY.encode()),
        (str, BODY),
        (dict, {"number": 7, "unknown": [1]}),
        (dict[str, Any], {"number": 7, "unknown": [1]}),
        (Invoice, Invoice(7)),
        (Typed, {"number": 7}),
        (Struct, Struct(7)),
        (Model, Model(7)),
        (Optional[Invoice], Invoice(7)),  # noqa: UP045
        (Invoice | None, Invoice(7)),
        (Model | None, Model(7)),
    ],
)
def test_every_column_serves_every_annotation(kind: str, body: Any, annotation: Any, value: Any) -> None:
    """A2: BYTEA, BLOB, TEXT and JSON columns; unknown keys are ignored."""
    assert decoder(annotation, kind)(body) == value


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("json", '{"a": [1, null]}', {"a": [1, None]}),
        ("json", '"text"', "text"),
        ("json", "null", None),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", "", ""),
        ("text", "null", "null"),
        ("binary", b"\x00\xff", b"\x00\xff"),
        ("binary", memoryview(b"\x00\xff"), b"\x00\xff"),
        ("json", None, None),
        ("text", None, None),
        ("text", 5, 5),
    ],
)
@pytest.mark.parametrize("annotation", [Any, object])
def test_without_annotation_the_column_decides(annotation: Any, kind: str, body: Any, value: Any) -> None:
    """Contract 1: JSON columns decoded, text as str, binary as bytes; NULL, "", {} and null are told apart (C98)."""
    found = decoder(annotation, kind)(body)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "body", "value"),
    [
        (list, "[1, 2]", [1, 2]),
        (list[Line], '[{"article": "a"}]', [Line("a")]),
        (list[Model], '[{"number": 1}]', [Model(1)]),
        (Invoice, '{"number": 1, "due": "2026-11-30"}', Invoice(1, datetime.date(2026, 11, 30))),
        (Pair, '[1, "a"]', Pair(1, "a")),
        (int, "1180591620717411303424", 2**70),
        (Decimal, "1.10", Decimal("1.10")),
        (float, "5", 5.0),
        (dict, '{"a": 1, "a": 2}', {"a": 2}),
        (dict, '{"a": "\\u0000"}', {"a": "\x00"}),
        (dict, {"a": 1}, {"a": 1}),
        (Invoice, {"number": 1}, Invoice(1)),
        (int, 5, 5),
        (Invoice | None, None, None),
        (Invoice | None, " null ", None),
        (Invoice | None, b"null", None),
        (Model | None, "null", None),
        (str | None, "null", "null"),
        (None, None, None),
    ],
)
def test_json_becomes_what_is_asked_for(annotation: Any, body: Any, value: Any) -> None:
    """C98: whole numbers are exact, the last of two equal keys counts, what a driver decoded is taken as it is."""
    assert decoder(annotation, "json")(body) == value


@pytest.mark.parametrize(
    ("annotation", "body", "said"),
    [
        (Invoice, '{"number": "7"}', "the payload does not fit Invoice: Expected int, got str, at $.number"),
        (Invoice, "{}", "the payload does not fit Invoice: Object missing required field number"),
        (Invoice, None, "the payload does not fit Invoice: it is NULL"),
        (Invoice, "null", "the payload does not fit Invoice: Expected object, got null"),
        (Invoice, "", "the payload does not fit Invoice: Input data was truncated"),
        (Invoice, b"\xff", "the payload does not fit Invoice: JSON is malformed: invalid character (byte 0)"),
        (Invoice, '{"number": 13}', "the payload does not fit Invoice: KeyError: 'no thirteenth'"),
        (Invoice, "[" * 100_000, "the payload does not fit Invoice: Expected object, got array"),
        (dict, '{"a":' * 100_000, "the payload does not fit dict: RecursionError: "),
        (Invoice | None, "\udcff", "the payload does not fit Invoice: UnicodeEncodeError: "),
        (list[Line], '[{"article": 1}]', "the payload does not fit list[Line]: Expected str, got int, at $[0].article"),
        (bool, "1", "the payload does not fit bool: Expected bool, got int"),
        (Any, "1e400", "the payload does not fit Any: Number out of range"),
        (str, 5, "the payload does not fit str: Expected str, got int"),
        (bytes, 5, "the payload does not fit bytes: Expected bytes, got int"),
        (str, b"\xff", "the payload does not fit str: UnicodeDecodeError: "),
        (Invoice, 5, "the payload does not fit Invoice: Expected object, got int"),
        (Model, '{"number": "7"}', "the payload does not fit Model: Input should be a valid integer, at $.number"),
        (list[Model], '[{"number": "7"}]', "does not fit list[Model]: Input should be a valid integer, at $.number"),
    ],
)
def test_what_does_not_fit_is_a_sentence(annotation: Any, body: Any, said: str) -> None:
    """A4, text 16: types are not coerced, and whatever the body, the sentence is one line without a full stop."""
    with pytest.raises(DoesNotFit) as caught:
        decoder(annotation, "json")(body)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


@dataclass
class Row:
    id: uuid.UUID
    at: datetime.datetime
    price: Decimal
    raw: bytes
    note: str | None


def test_row_mode_fills_by_column_name() -> None:
    """A2: without a payload role the handler takes the row, as drivers give its values."""
    row = {
        "id": uuid.UUID(int=1),
        "at": datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
        "price": Decimal("1.10"),
        "raw": b"\x00",
        "note": None,
        "other": object(),
    }
    assert decoder(Row, None)(row) == Row(row["id"], row["at"], row["price"], b"\x00", None)  # type: ignore[arg-type]
    for annotation in (Any, dict, dict[str, Any]):
        assert decoder(annotation, None)(row) is row
    assert decoder(Model, None)({"number": 1}) == Model(1)
    assert decoder(Typed, None)({"number": 1, "x": 2}) == {"number": 1}
    with pytest.raises(DoesNotFit, match="the row does not fit Struct: Expected int, got str, at"):
        decoder(Struct, None)({"number": "1"})


@pytest.mark.parametrize("annotation", [str, bytes, int, list, list[Invoice], tuple])
def test_what_cannot_hold_a_row_is_refused_at_start(annotation: Any) -> None:
    """A2: with the way out."""
    with pytest.raises(CannotDecode, match="the queue names no payload column"):
        decoder(annotation, None)


@pytest.mark.parametrize("annotation", [Plain, Plain | None, Invoice | Struct, 5, "Invoice"])
@pytest.mark.parametrize("kind", ["json", None])
def test_what_no_body_could_fit_is_refused_at_start(annotation: Any, kind: str | None) -> None:
    """A2: not with every single row."""
    with pytest.raises(CannotDecode, match="cannot be decoded: "):
        decoder(annotation, kind)
