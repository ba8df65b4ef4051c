"""Decode a row's body as the handler's annotation says: strictly, unknown keys ignored.

    annotation                            payload mode                                   row mode (a dict of all columns)
    none, Any                             JSON columns decoded, text str, binary bytes   the dict
    bytes, str                            the stored bytes or text, of JSON columns too  refused
    dict                                  JSON                                           the dict
    a dataclass, TypedDict, Struct,       JSON                                           by column name
      pydantic model, anything else
      that msgspec reads
    Optional of these                     NULL is None                                   as without Optional

JSON columns come as their text (str or bytes), never decoded by the driver. NULL fits no annotation but Optional, Any and
None.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

PayloadKind = Literal["json", "text", "binary"]
Decode = Callable[[Any], Any]

_TEXT = (str, bytes, bytearray, memoryview)
_NO_ROW = (str, bytes, bytearray, int, float, bool, list, tuple, set, frozenset)

LONGEST_COMPLAINT = 500
"""Characters of what a decoder says. Larger: a pydantic model's whole list of errors. Smaller: the first is cut."""


class DoesNotFit(Exception):
    """A body does not fit the handler's annotation; `str()` is one sentence without its full stop."""


class CannotDecode(Exception):
    """No body could ever fit the annotation; says why, for a person."""


def decoder(annotation: Any, kind: str | None) -> Decode:
    """Build the function from a stored body to the handler's argument; raises `CannotDecode`.

    `kind` is the payload column's kind, or None in row mode, where a str instead of a row says why there is none. The
    function raises `DoesNotFit`.
    """
    optional, wanted = _without_none(annotation)
    what, name = ("the row" if kind is None else "the payload"), name_of(wanted)
    read = _row_decoder(wanted, name) if kind is None else _payload_decoder(wanted, kind)

    def decode(body: Any) -> Any:
        if kind is None and isinstance(body, str):
            raise DoesNotFit(body)
        try:
            return read(body)
        except Exception as error:  # also whatever a user's __post_init__ raises: the body is at fault, not the handler
            return other_than_text(body, error)

    def other_than_text(body: Any, error: Exception) -> Any:
        if body is None or (optional and _is_null(body)):
            if optional or wanted is Any:
                return None
            raise DoesNotFit(f"{what} does not fit {name}: it is NULL") from None
        if kind is not None and not isinstance(body, _TEXT):
            try:
                return msgspec.convert(body, wanted, strict=True, dec_hook=_from_row)
            except Exception as second:  # as above
                error = second
        raise DoesNotFit(f"{what} does not fit {name}: {_complaint(error)}") from error

    return decode


def _payload_decoder(wanted: Any, kind: str) -> Decode:
    if wanted is str or (wanted is Any and kind == "text"):
        return _text
    if wanted is bytes or (wanted is Any and kind == "binary"):
        return _binary
    _check(wanted, name_of(wanted))
    if _is_model(wanted):
        return lambda body: _validated(wanted.model_validate_json, body if isinstance(body, str) else _binary(body))
    return msgspec.json.Decoder(wanted, strict=True, dec_hook=_from_json).decode


def _row_decoder(wanted: Any, name: str) -> Decode:
    if wanted is Any or wanted is dict or get_origin(wanted) is dict:
        return _as_it_is
    if wanted in _NO_ROW or get_origin(wanted) in _NO_ROW:
        raise CannotDecode(
            f"{name} cannot hold a row: the queue names no payload column, or has fetch=, so the handler takes the row itself. "
            "Name a payload= in Queue(...), or take a dict, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"
        )
    _check(wanted, name)
    return lambda row: msgspec.convert(row, wanted, strict=True, dec_hook=_from_row)


def _check(wanted: Any, name: str) -> None:
    """Refuse what no decoder can fill: msgspec takes any class, and fails with every body."""
    try:
        info = msgspec.inspect.type_info(wanted)
        msgspec.json.Decoder(wanted)
    except (TypeError, NameError, RecursionError) as error:
        raise CannotDecode(f"{name} cannot be decoded: {' '.join(str(error).split())}") from error
    if isinstance(info, msgspec.inspect.CustomType) and not _is_model(wanted):
        raise CannotDecode(
            f"{name} cannot be decoded: take bytes, str, a dict, a list, a dataclass, a TypedDict, a msgspec.Struct or a "
            "pydantic model"
        )


def _is_model(wanted: Any) -> bool:
    """Tell a pydantic model by its method, so that pydantic need not be there."""
    return inspect.isclass(wanted) and callable(getattr(wanted, "model_validate_json", None))


def _from_json(wanted: Any, value: Any) -> Any:
    """Fill a pydantic model inside another type, by the rules of JSON (a date is a string there)."""
    if not _is_model(wanted):
        raise NotImplementedError(f"{name_of(wanted)} cannot be decoded")
    return _validated(wanted.model_validate_json, msgspec.json.encode(value))


def _from_row(wanted: Any, value: Any) -> Any:
    if not _is_model(wanted):
        raise NotImplementedError(f"{name_of(wanted)} cannot be decoded")
    return _validated(wanted.model_validate, value)


def _validated(validate: Callable[..., Any], value: Any) -> Any:
    """Call a pydantic model; its error's first entry says enough, without the value, in the words of the other decoders."""
    try:
        return validate(value, strict=True)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            raise
        first = errors()[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise msgspec.ValidationError(f"{first['msg']} - at `${where}`" if where else first["msg"]) from error


def _text(body: Any) -> str:
    return body if isinstance(body, str) else bytes(_stored(body)).decode()


def _binary(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(_stored(body))


def _stored(body: Any) -> Any:
    """Pass on what is bytes already; anything else is read by type, not as bytes of itself (bytes(3) is three NULs)."""
    if isinstance(body, bytes | bytearray | memoryview):
        return body
    raise TypeError(f"Expected bytes, got {type(body).__name__}")


def _is_null(body: Any) -> bool:
    if isinstance(body, str):
        return body.strip() == "null"
    return isinstance(body, bytes | bytearray | memoryview) and bytes(body).strip() == b"null"


def _as_it_is(body: Any) -> Any:
    return body


def _without_none(annotation: Any) -> tuple[bool, Any]:
    """Split Optional[T] into (True, T)."""
    if annotation is None or annotation is type(None):
        return True, Any
    arguments = get_args(annotation)
    if get_origin(annotation) is not Union and type(annotation).__name__ != "UnionType":
        return False, Any if annotation in (inspect.Parameter.empty, object) else annotation
    others = [each for each in arguments if each is not type(None)]
    return len(others) < len(arguments), Union[tuple(others)]  # noqa: UP007


def name_of(wanted: Any) -> str:
    """Name a type as users write it."""
    if inspect.isclass(wanted) and not get_args(wanted):
        return wanted.__name__
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", str(wanted))


def _complaint(error: Exception) -> str:
    text = (
        str(error)
        if isinstance(error, msgspec.DecodeError | msgspec.ValidationError)
        else f"{type(error).__name__}: {error}"
    )
    text = " ".join(text.replace("`", "").replace(" - at ", ", at ").split())
    return text[:LONGEST_COMPLAINT].rstrip(".")
