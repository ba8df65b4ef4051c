"""A handler's parameters are filled as its annotations say, in whatever order they stand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shardrun.delivery import Delivery
from shardrun.errors import UsageProblem
from shardrun.queue import Queue, Subscription
from shardrun.signature import plan

if TYPE_CHECKING:
    from shardrun import Delivery as Sent


@dataclass
class Invoice:
    number: int


def bound(function: Callable[..., Any], payload: str | None = "payload", batch: int | None = None) -> Subscription:
    """Bind a function to a queue, without a module."""
    queue: Queue[Any] = Queue("invoice_jobs", id="id", payload=payload)
    queue.name = "invoices"
    binds: Any = queue.handler() if batch is None else queue.handler(batch=batch)
    binds(function)
    return queue.subscriptions[0]


def plain(invoice: Invoice) -> Any:
    return invoice


def unannotated(body):  # type: ignore[no-untyped-def]
    return body


def second(invoice: Invoice, delivery: Delivery) -> Any:
    return invoice, delivery


def first(delivery: Delivery, invoice: Invoice) -> Any:
    return invoice, delivery


def by_name(invoice: Invoice, *, told: Delivery) -> Any:
    return invoice, told


def both_by_name(*, told: Delivery, invoice: Invoice) -> Any:
    return invoice, told


def behind_defaults(invoice: Invoice, times: int = 1, told: Delivery | None = None, *rest: Any, **more: Any) -> Any:
    assert (times, rest, more) == (1, (), {})
    return invoice, told


def positional_only(delivery: Delivery, invoice: Invoice, /) -> Any:
    return invoice, delivery


def under_type_checking(invoice: Invoice, delivery: Sent) -> Any:
    return invoice, delivery


@pytest.mark.parametrize(
    "function", [second, first, by_name, both_by_name, behind_defaults, positional_only], ids=lambda f: f.__name__
)
def test_the_delivery_goes_where_it_is_annotated(function: Callable[..., Any]) -> None:
    """Contract 1: a parameter annotated Delivery takes it wherever it stands, under postponed annotations."""
    found = plan(bound(function), "json")
    delivery = Delivery(id=1)
    assert found.takes_delivery
    assert found.function(found.decode('{"number": 7}'), delivery) == (Invoice(7), delivery)


@pytest.mark.parametrize("function", [plain, unannotated, second])
def test_a_handler_in_the_usual_order_is_called_directly(function: Callable[..., Any]) -> None:
    """P4: nothing stands between the child and a plain handler."""
    assert plan(bound(function), "text").function is function


def test_a_handler_may_take_its_delivery_alone() -> None:
    """Contract 1: a row whose id says all; its payload is not even decoded."""

    def only(delivery: Delivery) -> Any:
        return delivery

    found = plan(bound(only), "json")
    assert found.decode("no JSON") is None
    assert found.function(None, Delivery(id=1)) == Delivery(id=1)


def test_async_def_is_known() -> None:
    """H7: a child runs an event loop for them, also where the parameters stand in another order."""

    async def later(delivery: Delivery, invoice: Invoice) -> Any:
        return invoice, delivery.id

    found = plan(bound(later), "json")
    assert found.is_async
    assert asyncio.run(found.function(Invoice(1), Delivery(id=5))) == (Invoice(1), 5)
    assert not plan(bound(plain), "json").is_async


def test_methods_and_wrapped_functions_are_handlers() -> None:
    """Contract 1: a decorator that uses functools.wraps keeps the signature."""

    class Office:
        def render(self, invoice: Invoice) -> Any:
            return invoice

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    for function in (Office().render, logged(plain)):
        found = plan(bound(function), "json")
        assert found.function(found.decode('{"number": 7}')) == Invoice(7)


def nothing() -> None: ...


def needy(invoice: Invoice, other: int, *, more: int) -> None: ...


def twice(a: Delivery, b: Delivery) -> None: ...


def keywords(**kwargs: Any) -> None: ...


def unknown(invoice: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def opaque(invoice: Callable[[], int]) -> None: ...


def generator(invoice: Invoice) -> Any:
    yield invoice


async def async_generator(invoice: Invoice) -> Any:
    yield invoice


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (nothing, "takes nothing: give it a parameter for the payload."),
        (keywords, "takes nothing: give it a parameter for the payload."),
        (needy, "has parameters that nothing fills: other, more. The first takes the payload"),
        (twice, "takes the delivery more than once (a and b). Leave one."),
        (unknown, ": the annotation NoSuchType of invoice names nothing that exists when the module runs."),
        (opaque, ": invoice: Callable[[], int] cannot be decoded: take bytes, str, a dict"),
        (generator, "is a generator, whose body would never run: a handler has no yield. Use return."),
        (async_generator, "is a generator, whose body would never run"),
        (dict, "has no signature that Python can read"),
    ],
)
def test_a_signature_that_does_not_fit_names_the_handler_and_its_line(function: Callable[..., Any], said: str) -> None:
    """C34, C40: found before any row is claimed."""
    subscription = bound(function)
    with pytest.raises(UsageProblem) as caught:
        plan(subscription, "json")
    code = getattr(function, "__code__", None)
    line = code.co_firstlineno if code else subscription.queue.source.line
    assert str(caught.value).startswith(f"handler {function.__name__} (tests/unit/test_signature.py:{line})")
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_row_mode_takes_no_scalar() -> None:
    """A2: without a payload role the handler takes the row itself."""

    def render(number: int) -> None: ...

    with pytest.raises(UsageProblem, match="number: int cannot hold a row"):
        plan(bound(render, payload=None), None)


def test_an_annotation_that_only_a_type_checker_knows_may_be_delivery() -> None:
    """Contract 1: tools move such imports under TYPE_CHECKING; the name says enough."""
    assert under_type_checking.__annotations__["delivery"] == "Sent"
    with pytest.raises(UsageProblem, match="has parameters that nothing fills: delivery"):
        plan(bound(under_type_checking), "json")

    def spelled_out(invoice: Invoice, told: Any) -> None: ...

    for text in ("Delivery", "shardrun.Delivery", "'Delivery'"):
        spelled_out.__annotations__["told"] = text
        spelled_out.__globals__.pop("shardrun", None)
        assert plan(bound(spelled_out), "json").takes_delivery


def batch(invoices: list[Invoice]) -> Any:
    return invoices


def batch_with_deliveries(deliveries: list[Delivery], invoices: list[Invoice]) -> Any:
    return invoices, deliveries


def any_batch(invoices: list) -> Any:  # type: ignore[type-arg]
    return invoices


@pytest.mark.parametrize("function", [batch, batch_with_deliveries, any_batch, unannotated], ids=lambda f: f.__name__)
def test_a_handler_of_batches_takes_lists(function: Callable[..., Any]) -> None:
    """B6: each row is decoded as what the list holds; the deliveries come in a list beside it, wherever that stands."""
    found = plan(bound(function, batch=3), "json")
    body = found.decode('{"number": 7}')
    assert body == (Invoice(7) if "batch" in function.__name__ and function is not any_batch else {"number": 7})
    given = ([body], [Delivery(id=1)])[: 1 + found.takes_delivery]
    assert found.function(*given) == (given if found.takes_delivery else [body])


def test_a_list_of_deliveries_is_known_by_its_name() -> None:
    """B6: also where only a type checker can resolve it."""

    def told(invoices: list[Invoice], told: Any) -> None: ...

    told.__annotations__["told"] = "list[shardrun.Delivery]"
    assert plan(bound(told, batch=2), "json").takes_delivery


def one_invoice_one_delivery(invoice: Invoice, delivery: Delivery) -> None: ...


def list_and_delivery(invoices: list[Invoice], delivery: Delivery) -> None: ...


@pytest.mark.parametrize(
    ("function", "batch", "said"),
    [
        (plain, 3, "takes batches (batch=3): annotate invoice as list[Invoice]."),
        (one_invoice_one_delivery, 3, "takes batches (batch=3): annotate invoice as list[Invoice]."),
        (list_and_delivery, 3, "takes batches (batch=3): annotate delivery as list[Delivery]."),
        (
            batch_with_deliveries,
            None,
            "takes one row at a time: annotate deliveries as Delivery, or give the handler batch=",
        ),
    ],
)
def test_what_takes_no_lists_takes_no_batches(function: Callable[..., Any], batch: int | None, said: str) -> None:
    """B6, A5: and the other way round; the sentence says what to write."""
    with pytest.raises(UsageProblem) as caught:
        plan(bound(function, batch=batch), "json")
    assert said in str(caught.value)
