"""What a single reply of a backend must look like."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.backend import Backend
from mellea_like.core.generation import Generation

if TYPE_CHECKING:
    from typing import TypeGuard

    from mellea_like.core.backend import Request, StreamingBackend

__all__ = [
    "ConformanceError",
    "Rule",
    "check_meter",
    "check_nothing_in_flight",
    "check_shape",
    "close",
    "streamed",
    "streams",
    "whole",
]

Rule = Literal["shape", "reply", "meter", "again", "usage", "cancellation", "stream", "errors"]


class ConformanceError(AssertionError):
    """A backend broke a rule.

    Args:
        rule: the rule's name.
        message: what the backend did, and what it should do.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule: Rule = rule


async def whole(backend: Backend, request: Request) -> Generation:
    """Send a request and take the reply whole."""
    reply: object = await backend.generate(request)
    return _checked(reply)


async def streamed(backend: Backend, request: Request) -> Generation:
    """Send a request, take the reply in pieces, and see that they fit together."""
    items: list[object] = []
    if streams(backend):
        async with backend.stream(request) as pieces:
            async for piece in pieces:
                items.append(piece)  # noqa: PERF401 (a comprehension gives way to nobody else)
    last = items.pop() if items else None
    if not isinstance(last, Generation):
        msg = f"the last item of a stream is {last!r}, but should be the whole Generation"
        raise ConformanceError("stream", msg)
    odd = next((item for item in items if not isinstance(item, str)), None)
    if odd is not None:
        msg = f"a stream gives str pieces before its last item, not {odd!r}"
        raise ConformanceError("stream", msg)
    text = "".join(map(str, items))
    if text != last.text:
        msg = f"the pieces of a stream make up {text!r}, but the whole is {last.text!r}"
        raise ConformanceError("stream", msg)
    return _checked(last)


def streams(backend: Backend) -> TypeGuard[StreamingBackend]:
    """Tell whether a backend streams."""
    return hasattr(backend, "stream")


async def close(backend: Any) -> None:
    """Close a backend that can be closed."""
    aclose = getattr(backend, "aclose", None)
    if aclose is not None:
        await aclose()


def _checked(reply: object) -> Generation:
    if not isinstance(reply, Generation) or not isinstance(reply.text, str):
        msg = f"generate gives a Generation whose text is a str, not {reply!r}"
        raise ConformanceError("reply", msg)
    return reply


def check_shape(backend: Any) -> None:
    """See that an object looks like a backend."""
    problem = None
    if not isinstance(backend, Backend) or not inspect.iscoroutinefunction(backend.generate):
        problem = f"{backend!r} has no async generate(request)"
    elif not isinstance(getattr(backend, "can_judge", True), bool):
        problem = f"can_judge is a bool, not {getattr(backend, 'can_judge', None)!r}"
    elif not isinstance(getattr(backend, "model", None), str | None):
        problem = f"model is a str or None, not {getattr(backend, 'model', None)!r}"
    if problem is not None:
        raise ConformanceError("shape", problem)


def check_meter(reply: Generation, request: Request) -> None:
    """See that a reply's cost is what the meter says."""
    if not request.meter.started:
        msg = "the request is not counted: call request.meter.start() when it is sent"
        raise ConformanceError("meter", msg)
    if reply.usage != request.meter.usage:
        msg = f"the meter says {request.meter.usage}, but the generation {reply.usage}"
        raise ConformanceError("meter", msg)


def check_nothing_in_flight(backend: Backend, rule: Rule) -> None:
    """See that a backend that counts its requests has none left."""
    statistics = getattr(backend, "statistics", None)
    in_flight = getattr(statistics(), "in_flight", 0) if callable(statistics) else 0
    if in_flight:
        msg = f"{in_flight} requests are in flight still, after their callers have left"
        raise ConformanceError(rule, msg)
