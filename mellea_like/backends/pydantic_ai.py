"""Anthropic, Google, Bedrock, Mistral and others, through Pydantic AI's direct model requests."""

from __future__ import annotations

import math
import sys
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.core.argument_checks import real_number
from mellea_like.core.backend import Options, insisted
from mellea_like.errors import BackendError, InvalidRequest
from mellea_like.lazy import needs_extra

with needs_extra("pydantic-ai", "PydanticAIBackend needs Pydantic AI"):
    from pydantic_ai import direct
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import ModelResponse, PartStartEvent
    from pydantic_ai.models import Model, infer_model

from mellea_like.backends.closing import CLOSE_SECONDS
from mellea_like.backends.loop_clients import LoopClients
from mellea_like.backends.pydantic_ai_wire import (
    ModelTranslator,
    Reply,
    can_stream,
    key_of,
    model_messages,
    model_settings,
    request_parameters,
)
from mellea_like.backends.sending import Sending, notify_when_sent, reports_progress
from mellea_like.backends.server_address import digest
from mellea_like.backends.server_errors import never_sent, refuses_preferred

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Mapping
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.models import StreamedResponse

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

T = TypeVar("T")

__all__ = ["PydanticAIBackend"]


class PydanticAIBackend:
    """A model of a provider that Pydantic AI knows: Anthropic, Google, Bedrock, Mistral and more.

    Replies are streamed if the provider can stream, so that generation stops when a request is
    cancelled. Neither this backend nor the provider's SDK retries. The backend can be used in
    several event loops, one after the other. On trio it works with the SDKs of OpenAI, Anthropic,
    Google and Amazon. Mistral's SDK needs asyncio, so a request on trio raises an `InvalidRequest`
    that explains this.

    For a request with a ``format``, the backend uses the provider's own JSON Schema output, if the
    model's profile supports such output. Otherwise the backend asks for a call of a tool whose
    arguments are the reply, or puts the schema into the prompt. The names of messages and their
    ``reasoning`` are not sent, because providers have no fields for them.

    Args:
        model: a name for `pydantic_ai.models.infer_model`, such as
            ``"anthropic:claude-sonnet-5-5"`` or ``"bedrock:us.amazon.nova-pro-v1:0"``; the key is
            read from the provider's environment variable. Instead of a name, you can pass a
            `pydantic_ai.models.Model`, for example with your own provider, client or settings. Use
            such a model in one event loop at a time, and only on asyncio or only on trio.
        timeout: how long the provider may send nothing, in seconds. With None, only the limit of
            the provider's client applies (usually 600 s).
        options: defaults for the options that a request leaves open. Entries of ``extra`` that are
            named in `pydantic_ai.settings.ModelSettings` or in the provider's own settings
            (such as ``anthropic_thinking``) become settings. All other entries are sent unchanged
            (as ``extra_body``).
        can_judge: whether the model may judge requirements.
        total_timeout: the time limit of a whole request, in seconds; None for no limit.

    Attributes:
        model: the model's name.
        provider: the provider's name, for telemetry.
        can_judge: as given.
        defaults: ``options``, as given.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the provider or an option is unknown, the provider has no key, or a number is
            out of range.
        ImportError: the provider's SDK isn't installed; the message says what to install.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        timeout: float | None = 600.0,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
        total_timeout: float | None = 3600.0,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("total_timeout", total_timeout)):
            if seconds is not None:
                real_number(name, seconds, over=0, most=math.inf, unit="seconds")
        self._given = model
        self._model = _made(model)
        self.can_judge = can_judge
        self.defaults = Options.of(options)
        self._timeout = timeout
        self._total_timeout = total_timeout
        self._refuses_temperature = False
        self._clients = LoopClients(self._make_client, close=True)

    @property
    def model(self) -> str:
        """The provider's name for the model."""
        return self._model.model_name

    @property
    def provider(self) -> str:
        """The provider's name, for telemetry."""
        return self._model.system

    @property
    def limit_key(self) -> tuple[str, bytes] | None:
        """The key under which the provider counts requests: its URL and a digest of the API key.

        The key is None if the URL or the API key is unknown.
        """
        url, key = self._model.base_url, key_of(self._model)
        return (url, digest(key)) if url and key else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._model.model_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        given: dict[str, Any] = {
            "timeout": self._timeout,
            "options": self.defaults,
            "can_judge": self.can_judge,
            "total_timeout": self._total_timeout,
        }
        return partial(type(self), **given), (self._given,)

    async def generate(self, request: Request) -> Generation:
        """Answer one request; see `Backend.generate`."""
        async with self.stream(request) as pieces:
            while isinstance(piece := await anext(pieces), str):
                pass
            return piece

    async def aclose(self) -> None:
        """Close the running event loop's connections. The backend may be used again.

        A request in progress keeps its connection until it ends.
        """
        await self._clients.aclose()

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`."""
        asking = _Asking(request, self._model, self._timeout, self._total_timeout)
        try:
            async with self._clients.hold() as client:
                model = await client.entered()
                asking.told = client.tells
                async with AsyncExitStack() as stack:
                    yield await self._begin(stack, model, request, asking)
        except BackendError as exc:
            asking.failed(exc)
            raise
        finally:
            asking.ended()

    async def _begin(
        self, stack: AsyncExitStack, model: Model, request: Request, asking: _Asking
    ) -> AsyncIterator[str | Generation]:
        """Send a request, if need be without its temperature, and return the pieces of a reply."""
        options = insisted(request.options) if self._refuses_temperature else request.options
        try:
            asked = self._asked(model, request, options)
            return await stack.enter_async_context(_answer(model, asked, asking))
        except BackendError as exc:
            if not refuses_preferred(exc, options):
                raise
            asking.again()
            await request.meter.readmit(request, exc)
        asked = self._asked(model, request, insisted(options))
        pieces = await stack.enter_async_context(_answer(model, asked, asking))
        self._refuses_temperature = True
        return pieces

    def _asked(self, model: Model, request: Request, given: Options) -> dict[str, Any]:
        options = given.over(self.defaults)
        if options.model not in (None, model.model_name, model.model_id, self._given):
            msg = (
                f"{self!r} can't ask another model: create a PydanticAIBackend({options.model!r})"
                " and pass it as the call's backend"
            )
            raise InvalidRequest(msg)
        return {
            "messages": model_messages(model, request.messages),
            "model_settings": model_settings(model, options, request.tool_choice),
            "model_request_parameters": request_parameters(model, request),
        }

    def _make_client(self) -> _OpenModel:
        # Connections belong to an event loop, so each loop has its own model, unless a user gave
        # one.
        return _OpenModel(_made(self._given))


def _made(model: Model | str) -> Model:
    if isinstance(model, Model):
        return model
    if not isinstance(model, str):
        msg = f"PydanticAIBackend needs a model's name or a pydantic_ai Model, not {model!r}"
        raise TypeError(msg)
    try:
        return infer_model(model)
    except UserError as exc:
        raise ValueError(str(exc)) from None


class _OpenModel:
    """A model for one event loop, with a client that is opened when first needed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = anyio.Lock()
        self._entered = False
        self.tells = False  # Whether the client reports when a request has been sent.

    async def entered(self) -> Model:
        """Return the model, and open its client first if necessary."""
        async with self._lock:
            if not self._entered:
                await self._model.__aenter__()
                self._entered = True
                # The SDKs of OpenAI, Anthropic and Mistral have such a client, httpx's or similar.
                http: Any = getattr(getattr(self._model, "client", None), "_client", None)
                self.tells = reports_progress(http)
                if self.tells:
                    notify_when_sent(http)
        return self._model

    async def close(self) -> None:
        """Close the model's client, if Pydantic AI created the client."""
        if self._entered:
            self._entered = False
            await self._model.__aexit__(None, None, None)


class _Asking(Sending):
    """One request in progress: its cost, its time limits, and the translation of its errors."""

    told = False
    """Whether the client reports when the request has been sent."""

    def __init__(
        self, request: Request, model: Model, timeout: float | None, total: float | None
    ) -> None:
        super().__init__(request)
        self._translator = ModelTranslator(model, timeout, total)
        self._silence = timeout or math.inf
        self._ends = anyio.current_time() + (total or math.inf)
        self.generators = _Generators()

    async def wait(self, step: Awaitable[T]) -> T:
        """Await one step of the request within its time limits, and translate the step's errors."""
        error: BackendError | None = None
        quiet = anyio.current_time() + self._silence
        with anyio.CancelScope(deadline=min(quiet, self._ends)), self.noticed():
            try:
                return await self.generators.awaited(step)
            except BaseException as exc:
                if not (self.told or never_sent(exc)):
                    self.sent()
                if isinstance(exc, Exception):
                    error = self._translator.of_model(exc)
                if error is None:
                    raise
            # Raising outside the handler keeps the SDK's exception from becoming the context.
            raise error
        raise self._translator.late() if quiet > self._ends else self._translator.silent()


@asynccontextmanager
async def _answer(
    model: Model, asked: dict[str, Any], asking: _Asking
) -> AsyncGenerator[AsyncIterator[str | Generation]]:
    async def opened() -> tuple[AbstractAsyncContextManager[StreamedResponse], StreamedResponse]:
        stream = direct.model_request_stream(model, **asked)
        return stream, await stream.__aenter__()

    async def whole() -> ModelResponse:
        return await direct.model_request(model, **asked)

    stream: AbstractAsyncContextManager[StreamedResponse] | None = None
    response: StreamedResponse | ModelResponse
    try:
        if can_stream(model):
            stream, response = await asking.wait(opened())
        else:
            response = await asking.wait(whole())
        async with aclosing(_pieces(response, asked, asking)) as pieces:
            yield pieces
    finally:
        # A stream that wasn't read to its end is closed, with its connection.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if stream is not None:
                with suppress(Exception):
                    await stream.__aexit__(None, None, None)
            await asking.generators.aclose()


async def _pieces(
    response: StreamedResponse | ModelResponse, asked: dict[str, Any], asking: _Asking
) -> AsyncGenerator[str | Generation]:
    reply = Reply(asking.sent(), asked["model_request_parameters"])
    events = _events(response)
    while (event := await asking.wait(_next(events))) is not None:
        if piece := reply.take(event, response.usage.output_tokens):
            yield piece
    whole = response if isinstance(response, ModelResponse) else response.get()
    if piece := reply.refused(whole):
        yield piece
    yield reply.generation(whole)


async def _next(events: AsyncIterator[Any]) -> Any:
    return await anext(events, None)


def _events(response: StreamedResponse | ModelResponse) -> AsyncIterator[Any]:
    """Iterate over a reply's events; a reply that wasn't streamed has one event for each part."""
    if not isinstance(response, ModelResponse):
        return aiter(response)

    async def parts() -> AsyncGenerator[PartStartEvent]:
        for index, part in enumerate(response.parts):
            await checkpoint()
            yield PartStartEvent(index=index, part=part)

    return parts()


class _Generators:
    """Records the async generators that steps of a task start, so that the task can close them.

    If nobody runs a generator to its end, the event loop closes it at garbage collection: asyncio
    starts a task for that, and trio warns. Providers' SDKs leave several generators behind with
    each reply.
    """

    def __init__(self) -> None:
        self._begun: list[AsyncGenerator[Any]] = []

    def awaited(self, step: Awaitable[T]) -> Awaitable[T]:
        """Return an awaitable that runs a step and records the generators that the step starts."""
        return _Step(step, self)

    async def aclose(self) -> None:
        """Close all recorded generators, outermost first."""
        for generator in self._begun:
            with suppress(Exception):
                await generator.aclose()
        self._begun.clear()

    @contextmanager
    def kept(self) -> Generator[None]:
        """Record the generators that this thread starts in the block, which must not await."""
        before = sys.get_asyncgen_hooks()

        def first(generator: AsyncGenerator[Any]) -> None:
            if before.firstiter is not None:
                before.firstiter(generator)
            self._begun = [each for each in self._begun if each.ag_frame is not None]  # type: ignore[attr-defined]
            self._begun.append(generator)

        sys.set_asyncgen_hooks(firstiter=first)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*before)


class _Step(Generic[T]):
    """Awaits a step, and sets hooks for async generators only while the step's code runs."""

    def __init__(self, step: Awaitable[T], generators: _Generators) -> None:
        self._step = step
        self._generators = generators

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._step.__await__()
        go_on: Any = inner.send
        given: Any = None
        while True:
            with self._generators.kept():
                try:
                    waits_for = go_on(given)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
            try:
                given = yield waits_for
                go_on = inner.send
            except BaseException as exc:  # noqa: BLE001 (it is thrown where the step waits)
                go_on, given = inner.throw, exc
