"""A function as a backend, for rejection sampling over any generator of values."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from anyio.lowlevel import checkpoint

from mellea_like.core.argument_checks import is_async
from mellea_like.core.backend import CURRENT
from mellea_like.core.generation import Generation, Usage
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Meter

__all__ = ["FunctionBackend", "GenerateFunction"]

_NOTHING = Usage()
_ONE_REQUEST = Usage(requests=1)

GenerateFunction: TypeAlias = "Callable[[Request], object | Awaitable[object]]"


class FunctionBackend:
    """Calls a function for each reply.

    The function takes the `Request`, including its tools and the images in its messages. It
    returns a str, a `Generation` (which may call tools), or any other value, except None or an
    iterator (such as a stream). This other value becomes the generation's ``value``. The
    generation's text is then the value's JSON form or, if the value has none, its ``repr``.

    Exceptions of the function are raised unchanged. The request is retried after a connection
    error or a timeout (Python's ``ConnectionError`` and ``TimeoutError``, and those of httpx,
    httpx2, aiohttp and trio), and after a `mellea_like.errors.BackendError` that is ``retryable``.
    Any other exception ends the lane.

    A call of the function counts as one request without tokens. If the function returns a
    generation with a usage, this usage counts instead. If the function passes the request on to
    another backend, or calls a strategy, the costs of that backend or strategy count. An error that
    such a strategy has already retried is not retried again.

    Args:
        function: an async function, or a plain one, which runs in a thread so that it may block.
        inline: whether to call a plain function on the event loop itself, instead of in a thread.
            Use this for functions that take less than about 1 ms.
        model: the model's name for records; the default is the function's name.
        can_judge: whether the function can judge requirements, that is, answers a judge's prompt
            with a JSON verdict.

    Raises:
        TypeError: the function can't be called.
        ValueError: the function is async and ``inline`` is true.
    """

    provider = "function"

    def __init__(
        self,
        function: GenerateFunction,
        *,
        inline: bool = False,
        model: str | None = None,
        can_judge: bool = False,
    ) -> None:
        if not callable(function):
            msg = f"FunctionBackend needs a function that takes a Request, not {function!r}"
            raise TypeError(msg)
        self._async = is_async(function)
        if inline and self._async:
            msg = "FunctionBackend: inline can't be combined with an async function"
            raise ValueError(msg)
        self._function = function
        self._inline = inline
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        self._name = str(getattr(inner, "__name__", type(inner).__name__))
        self.model = self._name if model is None else model
        self.can_judge = can_judge

    async def generate(self, request: Request) -> Generation:
        """Call the function once.

        Raises:
            BaseException: the function's exception.
            TypeError: the function returned None, or an iterator such as a stream or a generator.
            RuntimeError: the function raised ``StopIteration``, which means that it has no more
                values.
        """
        meter = request.meter
        before = meter.usage if meter.started else _NOTHING
        known = meter.parts if meter.started else None
        token = CURRENT.set((CURRENT.get()[0], meter))
        called: list[Request] = []  # It may be cancelled while it waits for a thread.
        try:
            result = await self._call(request, called)
            generation = result if isinstance(result, Generation) else self._generation(result)
        except BaseException:
            if not called:
                meter.sent_nothing()
            elif known == (meter.parts if meter.started else None):
                _count(meter, _NOTHING)  # Otherwise, a backend or a call inside has counted.
            raise
        finally:
            CURRENT.reset(token)
        if result is not generation:
            if not meter.started:
                # Most functions make no requests, so nothing inside has cost anything.
                meter.finish(generation)
                return generation
            generation = replace(generation, usage=_NOTHING)
        if meter.usage == before:
            _count(meter, generation.usage)
        if generation.usage.requests == 0:
            generation = replace(generation, usage=meter.usage - before)
        return generation

    async def _call(self, request: Request, called: list[Request]) -> object:
        if self._async or self._inline:
            await checkpoint()
            result = self._plainly(request, called)
        else:
            result = await run_in_thread(self._plainly, request, called)
        return await result if inspect.isawaitable(result) else result

    def _plainly(self, request: Request, called: list[Request]) -> Any:
        called.append(request)
        try:
            return self._function(request)
        except StopIteration as exc:
            # A coroutine can't raise StopIteration, and Python's replacement doesn't name the
            # function.
            msg = f"the function {self._name} of a FunctionBackend has run out of values"
            raise RuntimeError(msg) from exc

    def _generation(self, result: object) -> Generation:
        if isinstance(result, str):
            return Generation(result, None, _ONE_REQUEST, self.model, "stop")
        if result is None:
            msg = (
                f"the function {self._name} of a FunctionBackend returned None:"
                " return a str, a value or a Generation (is a return missing?)"
            )
            raise TypeError(msg)
        kind = type(result).__name__
        if isinstance(result, Iterator | AsyncIterator):
            msg = (
                f"the function {self._name} of a FunctionBackend returned an object of type {kind},"
                " which is no reply yet: return all of it, such as the joined pieces of a stream"
            )
            raise TypeError(msg)
        return Generation(_text_of(result), result, _ONE_REQUEST, self.model, "stop")

    def __repr__(self) -> str:
        return f"<FunctionBackend {self._name}>"


def _text_of(value: object) -> str:
    to_json = getattr(value, "model_dump_json", None)  # Pydantic models have their own.
    if callable(to_json):
        return str(to_json())
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _count(meter: Meter, usage: Usage) -> None:
    """Add a usage to the meter, as that of one or more requests."""
    meter.assume(replace(usage, requests=max(usage.requests, 1), cache_hits=0), None)
