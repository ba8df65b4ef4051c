"""Read a handler's signature: what it takes, whether it is async, how a body becomes its argument."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, get_args, get_origin

from shardrun.decoding import CannotDecode, DoesNotFit, decoder, name_of
from shardrun.delivery import Delivery
from shardrun.errors import UsageProblem
from shardrun.queue import Source, Subscription

__all__ = ["DoesNotFit", "Plan", "check_signature", "place", "plan", "subject"]

_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to call a handler: `function(decode(body))`, or `function(decode(body), delivery)` where it takes one.

    One that takes batches is called with lists of both. `function` is the user's own unless its parameters stand in another
    order. `decode` raises `DoesNotFit`.
    """

    function: Callable[..., Any]
    decode: Callable[[Any], Any]
    takes_delivery: bool
    is_async: bool


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter with its annotation resolved; an annotation that names nothing known stays a str."""

    name: str
    kind: Any
    annotation: Any
    is_required: bool

    @property
    def is_delivery(self) -> bool:
        """Tell whether it is annotated Delivery, also under TYPE_CHECKING, where the name cannot be resolved."""
        if isinstance(self.annotation, str):
            return _inside_list(self.annotation).rpartition(".")[2] == "Delivery"
        return any(each is Delivery or Delivery in get_args(each) for each in (self.annotation, self._element))

    @property
    def is_list(self) -> bool:
        """Tell whether it is annotated as a list of something."""
        if isinstance(self.annotation, str):
            return _inside_list(self.annotation) != self.annotation.strip("'\"")
        return self.annotation is list or get_origin(self.annotation) is list

    @property
    def _element(self) -> Any:
        return get_args(self.annotation)[0] if get_origin(self.annotation) is list else None

    @property
    def shown(self) -> str:
        """Write its annotation as users do."""
        return self.annotation if isinstance(self.annotation, str) else name_of(self.annotation)

    def element(self) -> Any:
        """Name what a list of it holds: anything, where nothing is said."""
        return Any if self._element is None else self._element


def _inside_list(annotation: str) -> str:
    """Take `list[...]` off an annotation that could not be resolved."""
    text = annotation.strip("'\"")
    return text[5:-1].strip("'\"") if text[:5].lower() == "list[" and text.endswith("]") else text


def plan(subscription: Subscription, payload_kind: str | None) -> Plan:
    """Work out how to call a subscription's handler; raises `UsageProblem` where its signature does not fit.

    `payload_kind` is "json", "text" or "binary" by the payload's column, None in row mode. A JSON column's body is its text.
    """
    parameters = _parameters(subscription)
    body, delivery = _filled(subscription, parameters)
    return Plan(
        function=_in_order(subscription.function, parameters, body, delivery),
        decode=_decode(subscription, body, payload_kind),
        takes_delivery=delivery is not None,
        is_async=inspect.iscoroutinefunction(subscription.function),
    )


def check_signature(subscription: Subscription) -> None:
    """Raise `UsageProblem` for whatever `plan` would refuse, without knowing the database."""
    plan(subscription, None if subscription.queue.takes_rows else "text")


def subject(subscription: Subscription) -> str:
    """Name a handler and its place, as the first words of a message."""
    return f"handler {subscription.name} ({place(subscription.source)})"


def place(source: Source) -> str:
    """Write where something was declared, `handlers.py:12`: from the working directory where it lies below."""
    file = os.path.relpath(source.file) if source.file.startswith(os.getcwd() + os.sep) else source.file
    return f"{file}:{source.line}"


def _parameters(subscription: Subscription) -> list[_Parameter]:
    function, who = subscription.function, subject(subscription)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageProblem(f"{who} is a generator, whose body would never run: a handler has no yield. Use return.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{who} has no signature that Python can read ({error}). Wrap it in a def.") from error
    inner = inspect.unwrap(function)
    names = getattr(getattr(inner, "__func__", inner), "__globals__", {})
    return [_Parameter(each.name, each.kind, _resolved(each, names), each.default is each.empty) for each in parameters]


def _resolved(parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    """Evaluate a postponed annotation in the handler's own module, or leave it as it is written."""
    if parameter.annotation is parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=names)["it"]
    except Exception:  # evaluating runs the user's own expressions; the caller says what could not be resolved
        return parameter.annotation


def _filled(
    subscription: Subscription, parameters: Sequence[_Parameter]
) -> tuple[_Parameter | None, _Parameter | None]:
    """Find the parameters that take the body and the delivery; raises `UsageProblem` where nothing fills another."""
    who, what = subject(subscription), _body_of(subscription)
    deliveries = [each for each in parameters if each.is_delivery]
    others = [each for each in parameters if not each.is_delivery and each.kind is not inspect.Parameter.VAR_KEYWORD]
    body = others[0] if others else None
    if len(deliveries) > 1:
        names = " and ".join(each.name for each in deliveries)
        raise UsageProblem(f"{who} takes the delivery more than once ({names}). Leave one.")
    _check_lists(subscription, body, deliveries)
    if body is None and not deliveries:
        raise UsageProblem(f"{who} takes nothing: give it a parameter for {what}.")
    unfilled = [each.name for each in others[1:] if each.is_required and each.kind not in _VARIADIC]
    if unfilled:
        raise UsageProblem(
            f"{who} has parameters that nothing fills: {', '.join(unfilled)}. The first takes {what}, one annotated Delivery "
            "takes the delivery; give each other one a default."
        )
    return body, deliveries[0] if deliveries else None


def _check_lists(subscription: Subscription, body: _Parameter | None, deliveries: Sequence[_Parameter]) -> None:
    """Refuse what does not take lists where batches come, and a list of deliveries where one row comes."""
    who, batch = subject(subscription), subscription.batch
    if batch is None:
        if lists := [each.name for each in deliveries if each.is_list]:
            raise UsageProblem(
                f"{who} takes one row at a time: annotate {lists[0]} as Delivery, or give the handler batch=."
            )
        return
    if body is not None and not body.is_list and body.annotation is not Any:
        raise UsageProblem(f"{who} takes batches (batch={batch}): annotate {body.name} as list[{body.shown}].")
    if singles := [each.name for each in deliveries if not each.is_list]:
        raise UsageProblem(f"{who} takes batches (batch={batch}): annotate {singles[0]} as list[Delivery].")


def _in_order(
    function: Callable[..., Any], parameters: Sequence[_Parameter], body: _Parameter | None, delivery: _Parameter | None
) -> Callable[..., Any]:
    """Adapt a handler to be called with the body first and the delivery second, by position."""
    wanted = [each for each in (body, delivery) if each is not None]
    leading: list[_Parameter] = []
    for parameter in parameters:
        if parameter not in wanted or parameter.kind not in _BY_POSITION:
            break
        leading.append(parameter)
    if body is not None and leading == wanted:
        return function
    order = [(body, delivery).index(each) for each in leading]
    named = [(each.name, (body, delivery).index(each)) for each in wanted if each not in leading]

    def call(*given: Any) -> Any:
        return function(*[given[place] for place in order], **{name: given[place] for name, place in named})

    return call


def _decode(subscription: Subscription, body: _Parameter | None, payload_kind: str | None) -> Callable[[Any], Any]:
    if body is None:
        return decoder(Any, None) if subscription.queue.fetch is not None else lambda _stored: None
    if isinstance(body.annotation, str):
        raise UsageProblem(
            f"{subject(subscription)}: the annotation {body.annotation} of {body.name} names nothing that exists when the "
            "module runs. Import it at the module's top, outside TYPE_CHECKING."
        )
    try:
        wanted = body.annotation if subscription.batch is None else body.element()
        return decoder(wanted, payload_kind)
    except CannotDecode as error:
        raise UsageProblem(f"{subject(subscription)}: {body.name}: {error}.") from error


def _body_of(subscription: Subscription) -> str:
    return "the row" if subscription.queue.takes_rows else "the payload"
