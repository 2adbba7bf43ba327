"""Requests, backends, and wrappers around backends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from mellea_like.core.argument_checks import (
    check_one_of,
    check_text,
    check_type,
    real_number,
    whole_number,
)
from mellea_like.core.display import fields_shown
from mellea_like.core.extra import NO_EXTRA, as_extra
from mellea_like.core.generation import Generation, Meter
from mellea_like.core.parts import Text
from mellea_like.core.records import record
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.core.tools import TOOL_CHOICES, Tool
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import TypeIs

    from mellea_like.core.conversation import Message

__all__ = [
    "MAX_SEED",
    "Backend",
    "BackendWrapper",
    "CallPiece",
    "Options",
    "Preferred",
    "Purpose",
    "Request",
    "RequestMeta",
    "StreamingBackend",
    "can_coalesce",
    "current_iteration",
    "estimate_input_tokens",
    "texts_only",
]


MAX_SEED = 2**31
"""Seeds are sent modulo this number. llama.cpp reads 32 bits, and the highest value means "random"
there."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options for generating a reply. The backend chooses those that are None.

    Args:
        model: the model's name, if it isn't the backend's own.
        temperature: 0 for the most likely text, higher for more variety.
        top_p: nucleus sampling: the share of probability to draw from, from 0 to 1.
        max_tokens: the longest reply, in tokens, at least 1.
        stop: texts that end the reply and are not part of it; a single string is also accepted.
        seed: makes replies repeatable, if the backend supports it. Each draw of a call gets its own
            seed, derived from this one.
        extra: more fields, which are sent to the backend unchanged.

    Raises:
        TypeError: an option is of the wrong type.
        ValueError: a number is out of range.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: Mapping[str, Any] = NO_EXTRA

    def __post_init__(self) -> None:
        if self.temperature is not None:
            real_number("option temperature", self.temperature, least=0)
        if self.top_p is not None:
            real_number("option top_p", self.top_p, least=0, most=1)
        if self.max_tokens is not None:
            whole_number("option max_tokens", self.max_tokens)
        if self.seed is not None:
            whole_number("option seed", self.seed, least=-math.inf)
        if self.model is not None:
            check_text("option model", self.model)
        check_type("option stop", self.stop, Iterable, "a text or a sequence of texts")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            msg = f"option stop must be one or more non-empty texts, not {stop!r}"
            raise ValueError(msg)
        object.__setattr__(self, "stop", stop)
        if self.extra is not NO_EXTRA:
            object.__setattr__(self, "extra", as_extra(self.extra, "an Options object"))

    def over(self, defaults: Options) -> Options:
        """Return these options, with unset fields filled in from defaults.

        Args:
            defaults: the options to fill in from.

        Returns:
            The options, with the ``extra`` fields of both; this object if no default is set.
        """
        if defaults == _OPEN:
            return self
        return Options(
            model=self.model or defaults.model,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            max_tokens=self.max_tokens or defaults.max_tokens,
            stop=self.stop or defaults.stop,
            seed=defaults.seed if self.seed is None else self.seed,
            extra={**defaults.extra, **self.extra},
        )

    def with_seed(self, seed: int | None) -> Options:
        """Return the same options with another seed.

        Args:
            seed: the new seed, or None for none.

        Returns:
            The changed copy, or this object if nothing changes.
        """
        return self if seed == self.seed else replace(self, seed=seed)

    @classmethod
    def of(
        cls, options: Options | Mapping[str, Any] | None, defaults: Options | None = None
    ) -> Options:
        """Make options from an argument, which may be a mapping.

        Args:
            options: options, a mapping with the names of the fields, or None for all defaults.
            defaults: options for the fields that are not set, as in `over`. A field that a mapping
                sets to None is left to the backend, regardless of the defaults.

        Returns:
            The options.

        Raises:
            TypeError: ``options`` isn't an `Options`, a mapping or None, or an option is of the
                wrong type.
            ValueError: the mapping has an unknown name, or a number is out of range. A provider's
                own options go into ``extra``.
        """
        if options is None:
            return cls() if defaults is None else defaults
        if isinstance(options, Options):
            return options if defaults is None else options.over(defaults)
        try:
            given = dict(options)
        except (TypeError, ValueError):
            msg = f"options must be an Options or a mapping, not {type(options).__name__}"
            raise TypeError(msg) from None
        known = [f.name for f in fields(cls)]
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            msg = (
                f"unknown option {', '.join(unknown)}: the options are {', '.join(known)};"
                " pass provider-specific fields in extra={...}"
            )
            raise ValueError(msg)
        made = cls(**{name: value for name, value in given.items() if value is not None})
        if defaults is None:
            return made
        unset = {name: getattr(_OPEN, name) for name, value in given.items() if value is None}
        return made.over(replace(defaults, **unset))


_OPEN = Options()


class Preferred(float):
    """A number that this library chose for an option. If a model refuses it, a backend drops it."""

    __slots__ = ()


JUDGE_DEFAULTS = Options(temperature=Preferred(0.0))
"""The default options of judges. Reasoning models refuse this temperature."""


def insisted(options: Options) -> Options:
    """Return options without a `Preferred` temperature, which this library chose."""
    if isinstance(options.temperature, Preferred):
        return replace(options, temperature=None)
    return options


Purpose = Literal["generate", "judge"]


@record(frozen=True, slots=True)
class RequestMeta:
    """The origin of a request, for limiters and records.

    Args:
        sampling_id: the id of the call of ``sample``; empty for a request made outside one.
        iteration: the draw's id, 1-based; None outside a draw.
        subsample: the index of the draw's lane, 0-based; None outside a draw.
        call_started: when the call began, in seconds on the event loop's clock.
        deadline: the end of the call's time, on the same clock; None for no limit.
        purpose: ``"generate"``, or ``"judge"`` if the reply is a verdict.
        retry: how many times this request has been tried before.
    """

    sampling_id: str = ""
    iteration: int | None = None
    subsample: int | None = None
    call_started: float | None = None
    deadline: float | None = None
    purpose: Purpose = "generate"
    retry: int = 0


@record(frozen=True, slots=True)
class Request:
    """One request to a backend.

    Args:
        messages: the conversation to reply to, oldest message first.
        options: options for generating the reply; a mapping becomes `Options`.
        format: the type that the reply's text should parse to, as JSON: a pydantic model, or any
            other type that pydantic can validate; for free text, None.
        meta: the origin of the request.
        meter: counts what the request costs. The backend updates it.
        tools: the tools that the reply may call.
        tool_choice: ``"auto"`` lets the model decide whether to call one, ``"required"`` asks for
            at least one call, ``"none"`` forbids calls, and a tool's name asks for a call of that
            tool. By default, the server decides. A backend that can't offer tools refuses a request
            with tools.
        shows_calls: whether a stream should contain a `CallPiece` for each piece of a tool call. A
            backend may ignore it.

    Raises:
        TypeError: the options are neither an `Options` nor a mapping, an option is of the wrong
            type, or a tool isn't a `Tool`.
        ValueError: an option is unknown or out of range, or the tool choice names no tool.
    """

    messages: tuple[Message, ...]
    options: Options = Options()
    format: Any = None
    meta: RequestMeta = RequestMeta()
    meter: Meter = field(default_factory=Meter, compare=False)
    tools: tuple[Tool, ...] = field(default=(), repr=False)
    tool_choice: str | None = field(default=None, repr=False)
    shows_calls: bool = field(default=False, repr=False, compare=False)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        draft: Any = self
        draft.messages = tuple(self.messages)
        if type(self.options) is not Options:  # Each draw makes a request, so this call is avoided.
            draft.options = Options.of(self.options)
        if self.tools or self.tool_choice is not None:
            self._check_tools()

    def _check_tools(self) -> None:
        draft: Any = self
        draft.tools = tools = tuple(self.tools)
        for tool in tools:
            check_type("a request's tools", tool, Tool, "Tool objects")
        names = [tool.name for tool in tools]
        if self.tool_choice is not None:
            check_one_of("a request's tool_choice", self.tool_choice, (*TOOL_CHOICES, *names))


class CallPiece(str):
    """A piece of a tool call in a streamed reply. It isn't text, so the string itself is empty.

    Args:
        number: the index of the call in the reply, from 0.
        name: the part of the tool's name that has arrived so far.
        arguments: the new piece of the arguments.
    """

    __slots__ = ("arguments", "name", "number")

    number: int
    name: str
    arguments: str

    def __new__(cls, number: int, name: str, arguments: str) -> Self:
        """Make a piece of a call; the string itself is empty."""
        made = super().__new__(cls)
        made.number, made.name, made.arguments = number, name, arguments
        return made


@runtime_checkable
class Backend(Protocol):
    """Anything that generates replies with one async method.

    A backend may also have:

    - ``can_judge`` (bool, default True): if False, requirements can't use it as their judge.
    - ``can_coalesce`` (bool, default True): False makes a `SamplingCoordinator` send each request
      separately, for example because each one needs approval or has its own price.
    - ``defaults`` (`Options`): the options for the fields that a request leaves open.
    - ``model`` (str or None) and ``provider`` (str): names for telemetry.
    - ``stream(request)``: see `StreamingBackend`.
    - ``async aclose()``: closes idle connections. The backend may be used again afterwards.

    A backend keeps four promises, which `mellea_like.testing.check_backend` checks. It closes a
    cancelled request before it passes the cancellation on. It raises only `BackendError`, except
    for bugs. It counts each request that it sends on ``request.meter``. And it refuses requests
    that it can't send in full, such as those with images; for this, it may call `texts_only`.
    """

    async def generate(self, request: Request) -> Generation:
        """Answer one request.

        Args:
            request: the request.

        Returns:
            The reply.

        Raises:
            BackendError: there is no reply. The error's ``retryable`` tells whether to try again.
        """
        ...


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that can also stream its replies."""

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        """Answer one request piece by piece.

        Args:
            request: the request.

        Returns:
            An async context manager. Entering it gives an iterator over the pieces of the text.
            The last item is the whole `Generation`, whose text is the joined pieces. Leaving the
            block early closes the request.

        Raises:
            BackendError: there is no reply. It may be raised on entering, or while iterating.
        """
        ...


def texts_only(request: Request, backend: str, *, tools: bool = False) -> None:
    """Refuse a request with parts or tools, for a backend that takes only texts.

    Args:
        request: the request.
        backend: the backend's name in the error.
        tools: whether the backend takes tools, and messages that call them or answer calls.

    Raises:
        InvalidRequest: the request has more than text. The error names the part, and the message
            that contains it.
    """
    for number, message in enumerate(request.messages, 1):
        where = f"message {number} ({message.role})"
        if not isinstance(message.content, str):
            for part in message.content:
                if not isinstance(part, Text):
                    msg = f"{backend} accepts only text, but {where} contains {part.placeholder}"
                    raise InvalidRequest(msg)
        if not tools and (message.tool_calls or message.role == "tool"):
            msg = f"{backend} doesn't support tools, but {where} contains a tool call or its result"
            raise InvalidRequest(msg)
    if request.tools and not tools:
        names = ", ".join(tool.name for tool in request.tools)
        msg = f"{backend} doesn't support tools, but the request offers {names}"
        raise InvalidRequest(msg)


def can_judge(backend: Backend) -> bool:
    """Return whether a backend can judge requirements."""
    return bool(getattr(backend, "can_judge", True))


def can_coalesce(backend: Backend) -> bool:
    """Return whether several requests to a backend may be combined into one."""
    return bool(getattr(backend, "can_coalesce", True))


def is_backend(candidate: object) -> TypeIs[Backend]:
    """Return whether something is a backend: an instance with a method ``generate``."""
    return not isinstance(candidate, type) and callable(getattr(candidate, "generate", None))


def checked_reply(backend: Backend, reply: object) -> Generation:
    """Return a backend's reply; raise `TypeError` if it isn't a `Generation`."""
    if isinstance(reply, Generation):
        return reply
    msg = (
        f"{type(backend).__name__}.generate returned {type(reply).__name__}, not a Generation: to"
        " use a function as a backend, wrap it in FunctionBackend(function)"
    )
    raise TypeError(msg)


class BackendWrapper:
    """A backend around another one, to which it passes all requests.

    Its model, its provider and other properties are the inner backend's. Subclasses override
    ``generate`` and ``_stream``. A wrapper streams if its inner backend does, unless it overrides
    only ``generate``, which a stream would bypass.

    Args:
        inner: the backend inside.

    Raises:
        TypeError: ``inner`` isn't a backend.
    """

    _bypassed = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Find out whether a class overrides ``generate`` later than ``_stream``."""
        super().__init_subclass__(**arguments)
        answers = next(i for i, base in enumerate(cls.__mro__) if "generate" in vars(base))
        streams = next(i for i, base in enumerate(cls.__mro__) if "_stream" in vars(base))
        cls._bypassed = answers < streams

    def __init__(self, inner: Backend) -> None:
        if not is_backend(inner):
            kind = type(self).__name__
            msg = (
                f"{kind} needs a backend, with generate(request), as its first argument, not"
                f" {inner!r}"
            )
            raise TypeError(msg)
        self.inner = inner

    @cached_property
    def can_judge(self) -> bool:
        """Whether the inner backend can judge requirements."""
        return can_judge(self.inner)

    @property
    def model(self) -> str | None:
        """The inner backend's model, for records."""
        return getattr(self.inner, "model", None)

    @property
    def provider(self) -> str:
        """The inner backend's provider, for records."""
        return str(getattr(self.inner, "provider", type(self.inner).__name__))

    @property
    def can_coalesce(self) -> bool:
        """Whether several requests to the inner backend may be combined into one."""
        return can_coalesce(self.inner)

    @property
    def defaults(self) -> Options:
        """The inner backend's options for the fields that a request leaves open."""
        defaults: Options = getattr(self.inner, "defaults", _OPEN)
        return defaults

    async def generate(self, request: Request) -> Generation:
        """Answer one request.

        Args:
            request: the request.

        Returns:
            The inner backend's reply.
        """
        return await self.inner.generate(request)

    @property
    def stream(
        self,
    ) -> Callable[[Request], AbstractAsyncContextManager[AsyncIterator[str | Generation]]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`.

        Raises:
            AttributeError: the inner backend does not stream, or the wrapper doesn't.
        """
        if self._bypassed:
            msg = f"{type(self).__name__} does not stream: it overrides generate, but not _stream"
            raise AttributeError(msg)
        if not hasattr(self.inner, "stream"):
            msg = f"{type(self.inner).__name__} does not stream"
            raise AttributeError(msg)
        return self._stream

    def _stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        inner: Any = self.inner
        stream: AbstractAsyncContextManager[AsyncIterator[str | Generation]] = inner.stream(request)
        return stream

    async def _whole(self, request: Request) -> Generation:
        """Answer a request through ``_stream``, and return only the whole reply."""
        async with self._stream(request) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    return piece
        return checked_reply(self.inner, None)

    async def aclose(self) -> None:
        """Close the inner backend's idle connections."""
        close = getattr(self.inner, "aclose", None)
        if close is not None:
            await close()


def innermost(backend: Backend) -> Backend:
    """Return the backend inside all wrappers: the one that sends the requests."""
    while isinstance(backend, BackendWrapper):
        backend = backend.inner
    return backend


# --- the iteration under way ------------------------------------------------------------------

# A plain pair in one variable: each draw sets it, and setting two takes 2 % more time.
CURRENT: ContextVar[tuple[RequestMeta | None, Meter | None]] = ContextVar(
    "mellea_like_current", default=(None, None)
)
"""The ids of the running draw, and the meter to which calls made inside it add their cost.

Both are None outside draws. A request or a tool may have a meter of its own.
"""

PATIENT: ContextVar[bool | None] = ContextVar("mellea_like_patient", default=None)
"""How long requests may wait for a backend that is down.

With None, a request may wait as long as its retry policy lets it wait in total. With True, as in
batches, it may wait that long or for ``max_retry_after``, whichever is longer. With False, it
doesn't wait.
"""

RESTATED: ContextVar[bool] = ContextVar("mellea_like_restated", default=False)
"""Whether a request that a backend refuses as invalid will be sent again in another form.

A `FallbackBackend` then raises the refusal, instead of asking its next backend.
"""


class Judging(NamedTuple):
    """How a call asks judges, so that scorers and validators ask theirs in the same way.

    Attributes:
        wrapped: returns a judge inside the wrappers of the call's options, such as retries.
        options: the call's options for judges.
        seed: the seed of the call's draws; None if they have none.
        judge: the judge of requirements and comparisons that don't name one.
        asked: the messages that the candidate answers. If they are empty, its action is rendered
            again.
    """

    wrapped: Callable[[Backend], Backend]
    options: Options
    seed: int | None
    judge: Backend
    asked: tuple[Message, ...] = ()


JUDGING: ContextVar[Judging | None] = ContextVar("mellea_like_judging", default=None)
"""How the call that checks a candidate, or compares draws, asks judges; None at other times."""


def current_iteration() -> int | None:
    """Return the id of the draw that the calling code belongs to.

    Returns:
        The 1-based id, unique within its call; None outside of draws, and inside work that several
        draws share.
    """
    ids, _ = CURRENT.get()
    return None if ids is None else ids.iteration
