"""The one seam to the outside: what a backend is asked, and what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from mellea_like.core.display import fields_shown
from mellea_like.core.generation import Generation, Meter
from mellea_like.core.options import Options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import TypeIs

    from mellea_like.core.message import Message

__all__ = [
    "Backend",
    "Purpose",
    "Request",
    "RequestMeta",
    "StreamingBackend",
    "can_coalesce",
    "can_judge",
    "checked_reply",
    "is_backend",
]

Purpose = Literal["generate", "judge"]


@dataclass(frozen=True, slots=True)
class RequestMeta:
    """Where a request comes from; limiters and records go by it.

    Args:
        sampling_id: the id of the call of ``sample``; empty for a request made outside one.
        iteration: the iteration's id, 1-based; None outside one.
        subsample: the subsample's index, 0-based; None outside one.
        call_started: when the call began, in seconds on the event loop's clock.
        deadline: when the call's time is up, on the same clock; None for no limit.
        purpose: ``"generate"``, or ``"judge"`` where the reply is a verdict.
        retry: how often this request was tried before.
    """

    sampling_id: str = ""
    iteration: int | None = None
    subsample: int | None = None
    call_started: float | None = None
    deadline: float | None = None
    purpose: Purpose = "generate"
    retry: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a backend.

    Args:
        messages: the conversation, oldest first; the reply to it is wanted.
        options: how to generate; a mapping becomes `Options`.
        format: the type that the reply's text should parse to, as JSON: a pydantic model, or any
            other type that pydantic can validate. None for free text.
        meta: where the request comes from.
        meter: what the backend updates as it learns what the request costs.

    Raises:
        TypeError: the options are neither, or an option is of the wrong type.
        ValueError: an option is unknown, or out of its range.
    """

    messages: tuple[Message, ...]
    options: Options = Options()
    format: Any = None
    meta: RequestMeta = RequestMeta()
    meter: Meter = field(default_factory=Meter, compare=False)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "options", Options.of(self.options))


@runtime_checkable
class Backend(Protocol):
    """Whatever generates: one async method.

    What a backend may have besides:

    - ``can_judge`` (bool, default True): False refuses requirements that need a judge.
    - ``can_coalesce`` (bool, default True): False while nobody approves or prices its requests one
      by one, so that a `SamplingCoordinator` passes each on by itself.
    - ``defaults`` (`Options`): what it takes where a request's options leave something open.
    - ``model`` (str or None) and ``provider`` (str): names for telemetry.
    - ``stream(request)``: see `StreamingBackend`.
    - ``async aclose()``: closes idle connections. The backend may be used again afterwards.

    A backend keeps three promises, which `mellea_like.testing.check_backend` checks. A cancelled
    request is closed before the cancellation goes on. Everything that it raises, bugs aside, is a
    `BackendError`. And each request that it sends is counted on ``request.meter``.
    """

    async def generate(self, request: Request) -> Generation:
        """Answer one request.

        Args:
            request: what is wanted.

        Returns:
            The reply.

        Raises:
            BackendError: there is no reply; ``retryable`` tells whether to try again.
        """
        ...


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that can hand over a reply while it is being made."""

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        """Answer one request piece by piece.

        Args:
            request: what is wanted.

        Returns:
            A context manager to enter with ``async with``; it gives an iterator over the pieces of
            the text and, as its last item, the whole `Generation`, whose text is the pieces joined.
            Leaving the block early closes the request.
        """
        ...


def can_judge(backend: Backend) -> bool:
    """Tell whether a backend can decide requirements."""
    return bool(getattr(backend, "can_judge", True))


def can_coalesce(backend: Backend) -> bool:
    """Tell whether a backend's requests may be put together."""
    return bool(getattr(backend, "can_coalesce", True))


def is_backend(candidate: object) -> TypeIs[Backend]:
    """Tell whether something is a backend: an instance with ``generate``."""
    return not isinstance(candidate, type) and callable(getattr(candidate, "generate", None))


def checked_reply(backend: Backend, reply: object) -> Generation:
    """Make sure that what a backend returned is a reply."""
    if isinstance(reply, Generation):
        return reply
    msg = (
        f"{type(backend).__name__}.generate returned {type(reply).__name__}, not a Generation: to"
        " make a backend of a function, use FunctionBackend(function)"
    )
    raise TypeError(msg)
