"""FunctionBackend: any callable can generate."""

from __future__ import annotations

import functools
import random
import threading
from dataclasses import dataclass

import anyio
import pytest
from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from mellea_like import (
    Backend,
    FunctionBackend,
    Generation,
    Message,
    RejectionSamplingStrategy,
    Request,
)
from mellea_like.backends import ScriptedBackend
from mellea_like.core import Usage
from mellea_like.errors import BackendUnavailable, RateLimited

pytestmark = pytest.mark.anyio


def ask(text: str = "two words") -> Request:
    return Request((Message("user", text),))


async def asynchronous(request: Request) -> str:
    await checkpoint()
    return f"async {request.messages[0].content}"


def plain(request: Request) -> str:
    return f"plain {request.messages[0].content}"


def hands_out_an_awaitable(request: Request):
    return asynchronous(request)


class Callable:
    def __call__(self, request: Request) -> str:
        return "called"


class AsyncCallable:
    async def __call__(self, request: Request) -> str:
        return "awaited"

    async def method(self, request: Request) -> str:
        return "method"


@pytest.mark.parametrize(
    ("function", "inline", "text"),
    [
        (asynchronous, False, "async two words"),
        (plain, False, "plain two words"),
        (plain, True, "plain two words"),
        (functools.partial(plain), False, "plain two words"),
        (functools.partial(asynchronous), False, "async two words"),
        (Callable(), False, "called"),
        (AsyncCallable(), False, "awaited"),
        (functools.partial(AsyncCallable()), False, "awaited"),
        (AsyncCallable().method, False, "method"),
        (hands_out_an_awaitable, False, "async two words"),
        (hands_out_an_awaitable, True, "async two words"),
    ],
)
async def test_any_callable_generates(function, inline, text):
    backend = FunctionBackend(function, inline=inline)
    assert isinstance(backend, Backend)
    assert (await backend.generate(ask())).text == text


class Wraps:
    def __init__(self, func):
        self.func = func

    def __call__(self, request: Request) -> str:
        return "wrapped"


def test_the_models_name_is_the_functions_or_the_classes():
    around = functools.partial(functools.partial(plain))
    around.note = "An attribute keeps the two apart."
    given = plain, functools.partial(around), Wraps(plain), Wraps(None)
    assert [FunctionBackend(each).model for each in given] == ["plain", "plain", "Wraps", "Wraps"]


@pytest.mark.parametrize("inline", [False, True])
async def test_a_plain_function_runs_in_a_thread_unless_inline(inline):
    request = ask()
    backend = FunctionBackend(lambda _: threading.get_ident(), inline=inline)
    reply = await backend.generate(request)
    assert (reply.value == threading.get_ident()) is inline
    assert reply.usage == request.meter.usage == Usage(1, 0, 0)


class Point(BaseModel):
    x: int


@dataclass
class Pair:
    a: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0, "0"),
        (False, "false"),
        ({"ä": [1, None]}, '{"ä": [1, null]}'),
        (Point(x=1), '{"x":1}'),
        (Pair(1), "Pair(a=1)"),
        ({1, 2}, "{1, 2}"),
    ],
)
async def test_a_value_is_kept_and_written_out(value, text):
    reply = await FunctionBackend(lambda _: value).generate(ask())
    assert reply.value is value
    assert reply.text == text


@pytest.mark.parametrize("usage", [Usage(3, 30, 6), Usage(2, 5, 5, unknown=1), Usage(1, 0, 0, 1)])
async def test_the_meter_keeps_whatever_usage_the_function_reports(usage):
    request = ask()
    await FunctionBackend(lambda _: Generation("x", usage=usage)).generate(request)
    assert request.meter.usage == usage


async def test_a_request_passed_on_is_counted_once():
    inner = ScriptedBackend(["three words here"] * 2)
    request = ask()
    reply = await FunctionBackend(inner.generate).generate(request)
    assert reply.usage == request.meter.usage == Usage(1, 2, 3)

    async def shout(request: Request) -> str:
        return (await inner.generate(request)).text.upper()

    request = ask()
    reply = await FunctionBackend(shout).generate(request)
    assert reply.text == "THREE WORDS HERE"
    assert reply.usage == request.meter.usage == Usage(1, 2, 3)


@pytest.mark.parametrize("how", ["a request", "a call"])
async def test_a_request_passed_on_that_was_never_sent_costs_nothing(how):
    class Unreachable:
        async def generate(self, request: Request) -> Generation:
            request.meter.sent_nothing()
            raise BackendUnavailable("no connection")

    inner = Unreachable()

    async def passes_on(request: Request) -> str:
        if how == "a request":
            return (await inner.generate(request)).text
        return (await RejectionSamplingStrategy(inner, retry=None).sample("do")).unwrap()

    request = ask()
    with pytest.raises(BackendUnavailable):
        await FunctionBackend(passes_on).generate(request)
    assert request.meter.started
    assert request.meter.usage == Usage()


@pytest.mark.parametrize("inline", [True, False])
async def test_none_is_refused_with_the_functions_name(inline):
    def forgetful(request: Request) -> None:
        random.random()

    with pytest.raises(TypeError, match=r"forgetful.*returned None.*is a return missing"):
        await FunctionBackend(forgetful, inline=inline).generate(ask())


async def streams(request: Request):
    yield "two "
    yield "words"


def gives_a_stream(request: Request):
    return streams(request)


def pieces(request: Request):
    yield from ("two ", "words")


@pytest.mark.parametrize("function", [streams, gives_a_stream, pieces])
async def test_a_stream_is_refused_and_never_passes_as_a_reply(function):
    strategy = RejectionSamplingStrategy(FunctionBackend(function))
    with pytest.raises(TypeError, match=f"{function.__name__} of .*generator, which is no reply"):
        await strategy.sample("Say two words.")


@pytest.mark.parametrize("inline", [True, False])
async def test_an_exception_passes_unchanged_and_is_counted(inline):
    error = RateLimited("later", retry_after=3)

    def fails(request: Request) -> str:
        raise error

    request = ask()
    with pytest.raises(RateLimited) as caught:
        await FunctionBackend(fails, inline=inline).generate(request)
    assert caught.value is error
    assert request.meter.usage == Usage(1, 0, 0)


@pytest.mark.parametrize("inline", [True, False])
async def test_a_source_of_values_that_runs_dry_says_so(inline):
    values = iter([1])
    backend = FunctionBackend(lambda _: next(values), inline=inline)
    assert (await backend.generate(ask())).value == 1
    with pytest.raises(RuntimeError, match="run out of values"):
        await backend.generate(ask())


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="needs a function that takes a Request, not 'text'"):
        FunctionBackend("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inline can't be combined with an async"):
        FunctionBackend(asynchronous, inline=True)
    with pytest.raises(ValueError, match="inline can't be combined with an async"):
        FunctionBackend(functools.partial(AsyncCallable()), inline=True)


async def says_x(request):
    return "x"


@pytest.mark.parametrize(
    "backend", [FunctionBackend(lambda request: "x", inline=True), FunctionBackend(says_x)]
)
async def test_a_function_that_was_not_called_costs_nothing(backend):
    request = Request((Message("user", "x"),))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await backend.generate(request)
    assert scope.cancelled_caught
    assert request.meter.started
    assert request.meter.usage == Usage()
