"""check_backend: good backends pass, and each broken promise is found by name."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.markov import MarkovBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend
from mellea_like.core.backend import BackendWrapper, Options, Request, texts_only
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Meter, Usage
from mellea_like.core.tools import ToolCall
from mellea_like.errors import BackendUnavailable, InvalidRequest
from mellea_like.testing import ConformanceError, check_backend

pytestmark = pytest.mark.anyio

BASIC = ("shape", "reply", "meter", "again", "usage", "cancellation")
BAD_MODEL = Request((Message("user", "hello"),), Options(model="none such"))


class Good:
    """A backend that keeps every promise, for the bad ones to break one each."""

    seconds = 4.0

    def __init__(self) -> None:
        self.in_flight = 0

    async def generate(self, request: Request) -> Generation:
        if request.options.model:
            raise InvalidRequest("no such model")
        meter = request.meter.start()
        await anyio.sleep(self.seconds)
        meter.settle(input_tokens=1, output_tokens=2)
        return Generation("one two", usage=meter.usage)

    @asynccontextmanager
    async def stream(self, request: Request):
        if request.options.model:
            raise InvalidRequest("no such model")
        meter = request.meter.start()

        async def pieces():
            for piece in ("one ", "two"):
                await anyio.sleep(self.seconds / 2)
                yield piece
            meter.settle(input_tokens=1, output_tokens=2)
            yield Generation("one two", usage=meter.usage)

        iterator = pieces()
        try:
            yield iterator
        finally:
            await iterator.aclose()


# --- good ones --------------------------------------------------------------------------------


async def test_a_good_backend_passes_every_rule(virtual_clock):
    checked = await check_backend(Good, failing_request=BAD_MODEL)
    assert checked == (*BASIC, "stream", "parts", "tools", "errors")


async def later(request: Request) -> str:
    await anyio.sleep(3)
    return "later"


@pytest.mark.parametrize(
    "make",
    [
        *(partial(ScriptedBackend, ["a b c"], cycle=True, delay=delay) for delay in (0, 5)),
        *(partial(SimulatedBackend, median=median) for median in (0, 5)),
        partial(FunctionBackend, later),
        partial(FunctionBackend, lambda request: 3, inline=True),
    ],
)
async def test_our_own_backends_conform(virtual_clock, make):
    await check_backend(make)


async def test_the_local_backend_conforms():
    checked = await check_backend(
        lambda: MarkovBackend(text="One two three. Four five six."), failing_request=BAD_MODEL
    )
    assert checked == (*BASIC, "stream", "parts", "tools", "errors")


class Caller:
    """Calls the tool that it is offered, and refuses what is no text."""

    def __init__(self, name: str = "look_up", *, streamed: bool = True) -> None:
        self.name = name
        self.streamed = streamed

    def reply(self, request: Request, meter, *, calls: bool = True) -> Generation:
        meter.settle(input_tokens=1, output_tokens=2)
        called = (ToolCall("1", self.name, "{}"),) if request.tools and calls else ()
        return Generation("", None, meter.usage, finish_reason="stop", tool_calls=called)

    async def generate(self, request: Request) -> Generation:
        texts_only(request, "Caller", tools=True)
        meter = request.meter.start()
        await checkpoint()
        return self.reply(request, meter)

    @asynccontextmanager
    async def stream(self, request: Request):
        texts_only(request, "Caller", tools=True)
        meter = request.meter.start()

        async def pieces():
            await checkpoint()
            yield self.reply(request, meter, calls=self.streamed)

        iterator = pieces()
        try:
            yield iterator
        finally:
            await iterator.aclose()


async def test_a_backend_that_calls_tools_conforms():
    assert "tools" in await check_backend(Caller, calls_tools=True)


# --- bad ones, one for each way to break a rule -----------------------------------------------


async def broken(backend: object, rule: str, message: str, **options) -> None:
    factory = backend if isinstance(backend, type) else lambda: backend
    with pytest.raises(ConformanceError, match=message) as caught:
        await check_backend(factory, **options)  # type: ignore[arg-type]
    assert caught.value.rule == rule
    assert isinstance(caught.value, AssertionError)
    assert str(caught.value).startswith(f"{rule}: ")


async def test_an_object_without_generate_has_the_wrong_shape():
    await broken(object(), "shape", "has no async generate")
    with pytest.raises(TypeError, match=r"as in check_backend\(lambda: backend\), not <"):
        await check_backend(Good())


async def test_tools_are_called_by_their_names_and_where_a_call_is_required(virtual_clock):
    await broken(Caller("guess"), "tools", "a call of 'guess', which is not one of its tools")
    await broken(
        Good(), "tools", "requires a tool call was not answered with one", calls_tools=True
    )
    silent = Caller(streamed=False)
    await broken(silent, "tools", "requires a tool call was not answered", calls_tools=True)


@pytest.mark.parametrize(("name", "value"), [("can_judge", "yes"), ("model", 3)])
async def test_odd_attributes_have_the_wrong_shape(name, value):
    backend = Good()
    setattr(backend, name, value)
    await broken(backend, "shape", name)


@pytest.mark.parametrize("reply", ["text", None, Generation(None)])  # type: ignore[arg-type]
async def test_a_reply_is_a_generation_with_a_text(reply):
    class Wrong(Good):
        async def generate(self, request):
            return reply

    await broken(Wrong(), "reply", "a Generation whose text is a str")


async def test_a_request_that_fails_is_no_reply():
    await broken(Good(), "reply", "failed with InvalidRequest", request=BAD_MODEL)


BREAKING = []


def breaks(rule, message, method="generate"):
    """Put a way to answer that breaks a rule into the table, with what is said of it."""
    return lambda way: BREAKING.append(pytest.param(method, way, rule, message))


@breaks("parts", "a message with two texts raised AttributeError.*or refuse it")
async def takes_texts_only(self, request):
    request.messages[-1].content.upper()
    return await Good.generate(self, request)


@breaks("parts", "which is retryable: it would fail again")
async def refuses_parts_for_today(self, request):
    if not isinstance(request.messages[-1].content, str):
        raise BackendUnavailable("no parts today")
    return await Good.generate(self, request)


@breaks("reply", "no reply within 30 s")
async def never_replies(self, request):
    await anyio.sleep_forever()


@breaks("errors", "TimeoutError.*a BackendError")
async def raises_a_foreign_exception(self, request):
    raise TimeoutError("mine")


@breaks("meter", "the meter says 1 request, 1 token in, 2 out, but .* 9 tokens in")
async def gives_another_usage(self, request):
    await Good.generate(self, request)
    return Generation("x", usage=Usage(1, 9, 9))


@breaks("usage", "that of its own request alone")
async def gives_a_usage_that_grows_with_the_meter(self, request):
    await Good.generate(self, request)
    return Generation("x", usage=request.meter.usage)


@breaks("reply", "used up")
async def answers_once(self, request):
    self.in_flight += 1
    if self.in_flight > 1:
        raise InvalidRequest("used up")
    return await Good.generate(self, request)


@breaks("again", "of two concurrent requests.*busy")
async def takes_one_request_at_a_time(self, request):
    if self.in_flight:
        raise InvalidRequest("busy")
    self.in_flight += 1
    try:
        return await Good.generate(self, request)
    finally:
        self.in_flight -= 1


@breaks("cancellation", "yield to the event loop")
async def never_gives_way(self, request):
    meter = request.meter.start()
    meter.settle(input_tokens=0, output_tokens=0)
    return Generation("x", usage=meter.usage)


@breaks("cancellation", "are still answered")
async def swallows_a_cancellation(self, request):
    meter = request.meter.start()
    meter.settle(input_tokens=0, output_tokens=0)
    await checkpoint()
    try:
        await anyio.sleep(1)
    except anyio.get_cancelled_exc_class():
        return Generation("half", usage=meter.usage)
    return Generation("whole", usage=meter.usage)


@breaks("cancellation", "interrupted.*let the cancellation through")
async def turns_a_cancellation_into_an_error(self, request):
    try:
        return await Good.generate(self, request)
    except anyio.get_cancelled_exc_class():
        raise InvalidRequest("interrupted") from None


@breaks("cancellation", "still running 1 s after it was cancelled")
async def goes_on_after_a_cancellation(self, request):
    with anyio.CancelScope(shield=True):
        reply = await Good.generate(self, request)
    await checkpoint()
    return reply


@breaks("meter", "not counted", "stream")
@asynccontextmanager
async def streams_uncounted(self, request):
    async def pieces():
        await anyio.sleep(1)
        yield Generation("")

    yield pieces()


@breaks("meter", "left after its first piece is not counted", "stream")
@asynccontextmanager
async def streams_counted_only_at_the_end(self, request):
    async def pieces():
        await anyio.sleep(1)
        yield "x"
        meter = request.meter.start()
        yield Generation("x", usage=meter.usage)

    yield pieces()


@pytest.mark.parametrize(("method", "way", "rule", "message"), BREAKING)
async def test_each_broken_rule_is_found(virtual_clock, method, way, rule, message):
    await broken(type("Broken", (Good,), {method: way})(), rule, message)


async def test_a_backend_that_stays_closed_is_found(virtual_clock):
    class Closing(Good):
        closed = False

        async def generate(self, request):
            if self.closed:
                raise InvalidRequest("closed")
            return await super().generate(request)

        async def aclose(self):
            self.closed = True

    await broken(Closing, "again", "after aclose.*closed")


@pytest.mark.allow_blocking
async def test_a_busy_event_loop_is_not_blamed_on_the_backend():
    cancelling = anyio.Event()

    class Timed(Good):
        seconds = 0.04
        requests = 0

        async def generate(self, request: Request) -> Generation:
            Timed.requests += 1
            if Timed.requests > 8:  # all replies that were measured
                cancelling.set()
            return await super().generate(request)

    async def hog() -> None:
        await cancelling.wait()
        while True:
            await anyio.sleep(0.001)
            time.sleep(0.045)  # noqa: ASYNC251 (that is what it is about)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hog)
        assert "cancellation" in await check_backend(Timed)
        tasks.cancel_scope.cancel()


async def test_a_task_left_behind_is_found(virtual_clock):
    async with anyio.create_task_group() as tasks:

        class Leaving(Good):
            async def generate(self, request):
                try:
                    return await super().generate(request)
                except anyio.get_cancelled_exc_class():
                    tasks.start_soon(anyio.sleep, 1e6)
                    raise

        await broken(Leaving(), "cancellation", "left tasks behind")
        tasks.cancel_scope.cancel()


def streaming(*items: object, seconds: float = 0.0):
    class Streaming(Good):
        @asynccontextmanager
        async def stream(self, request):
            meter = request.meter.start()
            meter.settle(input_tokens=1, output_tokens=1)

            async def pieces():
                await checkpoint()
                for item in items:
                    yield Generation("ab", usage=meter.usage) if item == "whole" else item

            iterator = pieces()
            try:
                yield iterator
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(seconds)
                await iterator.aclose()

    return Streaming()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (("a", "b"), "the last item of a stream is 'b'"),
        ((), "the last item of a stream is None"),
        (("a", "whole"), "make up 'a', but the whole is 'ab'"),
        (("whole", "whole"), "str pieces before its last item"),
        (("a", 3, "b", "whole"), "not 3"),
    ],
)
async def test_a_stream_that_is_not_the_whole_is_found(virtual_clock, items, message):
    await broken(streaming(*items), "stream", message)


async def test_a_stream_that_is_slow_to_leave_is_found(virtual_clock):
    await broken(streaming("ab", "whole", seconds=3), "stream", "leaving a stream .* more than 1 s")


async def test_a_stream_that_hides_the_callers_exception_is_found(virtual_clock):
    class Hiding(Good):
        @asynccontextmanager
        async def stream(self, request):
            async with super().stream(request) as pieces:
                try:
                    yield pieces
                except Exception as exc:
                    if swallow:
                        return
                    raise ValueError("hidden") from exc

    swallow = True
    await broken(Hiding(), "stream", "did not come out")
    swallow = False
    await broken(Hiding(), "stream", "came out as ValueError")


async def test_a_failing_request_that_does_not_fail_is_found(virtual_clock):
    class Lenient(Good):
        async def generate(self, request):
            return await super().generate(Request(request.messages, meter=request.meter))

    await broken(Lenient(), "errors", "did not fail", failing_request=BAD_MODEL)


@pytest.mark.parametrize("way", ["generate", "stream"])
async def test_a_foreign_exception_of_a_failing_request_is_found(virtual_clock, way):
    class Foreign(Good):
        async def generate(self, request):
            if way == "generate" and request.options.model:
                raise KeyError("model")
            return await super().generate(request)

        @asynccontextmanager
        async def stream(self, request):
            if way == "stream" and request.options.model:
                raise KeyError("model")
            async with super().stream(request) as pieces:
                yield pieces

    await broken(Foreign(), "errors", "KeyError.*a BackendError", failing_request=BAD_MODEL)


class Waiting(BackendWrapper):
    """Waits before it sends, and may say so."""

    def __init__(self, inner, *, says_so: bool):
        super().__init__(inner)
        self.says_so = says_so

    async def generate(self, request):
        try:
            await anyio.sleep(1)
        except BaseException:
            if self.says_so:
                request.meter.sent_nothing()
            raise
        return await self.inner.generate(request)


async def test_what_waits_before_it_sends_must_say_that_nothing_was_sent(virtual_clock):
    inner = ScriptedBackend(lambda request: "one two", delay=1.0)
    rules = await check_backend(
        lambda: Waiting(inner, says_so=True), sent=lambda: len(inner.requests)
    )
    assert "meter" in rules
    await broken(Waiting(inner, says_so=False), "meter", "neither counted nor reported as not sent")


async def test_a_request_counted_before_it_is_sent_is_found(virtual_clock):
    class Early(Waiting):
        async def generate(self, request):
            request.meter.start()
            await anyio.sleep(1)
            reply = await self.inner.generate(replace(request, meter=Meter()))
            request.meter.parts[-1].settle(input_tokens=1, output_tokens=1)
            return replace(reply, usage=Usage(1, 1, 1))

    inner = ScriptedBackend(lambda request: "one two", delay=1.0)
    with pytest.raises(ConformanceError, match="counted as 1, but 0 were sent"):
        await check_backend(lambda: Early(inner, says_so=True), sent=lambda: len(inner.requests))
