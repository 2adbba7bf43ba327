"""Retries of requests after transient errors, never by two layers of backends at once."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.errors import (
    MalformedResponse,
)
from mellea_like.limits.backoff_gate import (
    TRIP_AFTER,
    gate_before,
    gate_of,
)
from mellea_like.limits.base import noting
from mellea_like.runtime.event_loops import cancellation_lost, native_cancel_requests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation, Meter
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = ["Retry", "RetryBackend"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long to retry after transient errors.

    A request is retried if it raises a `BackendError` that is ``retryable``: a server's 5xx, a
    broken connection, a timeout, or a 429. It is also retried if a user's backend or function
    raises Python's ``ConnectionError`` or ``TimeoutError``, or a connection error or timeout of
    httpx, httpx2, aiohttp or trio. A reply that can't be read (`MalformedResponse`) is not
    retried: its tokens have been paid for, and it uses up its attempt. Nothing else is retried,
    neither cancellations nor other errors.

    The wait before the n-th retry is a random time between 0 and ``initial * 2**(n - 1)`` seconds,
    at most ``maximum`` ("full jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015). If the server sends ``Retry-After``, that is used instead, for all
    requests to that backend. A wait that would end after the call's deadline never begins.

    A backend that can't be reached, or answers only with 5xx, is left alone for a while. After
    ``trip_after`` such failures in a row, in any call, and no answer in the last 10 s, one request
    is sent after 0.2 s as a probe. If the probe fails, the next one follows after 0.4 s, then
    0.8 s, and so on up to 30 s. Any answer ends this state. A reply that takes too long
    (`BackendTimeout`) counts neither as a failure nor as an answer.

    While a backend is left alone, the other requests wait, which doesn't count as a try. Before its
    first try, a request waits at most `longest_wait`, the sum of the longest backoffs. The waits
    before all its later tries, backoffs included, add up to at most `longest_wait` again. Time
    during a probe isn't counted. Items of a batch may wait up to ``max_retry_after``. A request
    that may not wait until the next probe fails immediately with a `CircuitOpen`.

    Args:
        attempts: how often a request may be tried in all, not counting 429s; 1 means no retries.
        rate_limit_attempts: how often a request may get a 429 in all.
        initial: the upper limit of the wait before the first retry, in seconds.
        maximum: the upper limit of any wait, in seconds.
        max_retry_after: the longest wait that a server may ask for, in seconds. If it asks for
            more, the request fails immediately.
        trip_after: the number of failures in a row after which the backend is left alone, at least
            1; None for never.

    Raises:
        TypeError: a number of attempts isn't a whole number, or another argument isn't a number.
        ValueError: a number is out of range.
    """

    attempts: int = 3
    rate_limit_attempts: int = field(default=10, kw_only=True)
    initial: float = field(default=0.5, kw_only=True)
    maximum: float = field(default=8.0, kw_only=True)
    max_retry_after: float = field(default=120.0, kw_only=True)
    trip_after: int | None = field(default=TRIP_AFTER, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("attempts", "rate_limit_attempts"):
            whole_number(f"Retry: {name}, which includes the first try,", getattr(self, name))
        if self.trip_after is not None:
            whole_number("Retry: trip_after", self.trip_after)
        for name in ("initial", "maximum"):
            real_number(f"Retry: {name}", getattr(self, name), least=0, unit="seconds")
        real_number(
            "Retry: max_retry_after", self.max_retry_after, least=0, most=math.inf, unit="seconds"
        )

    def transient(self, error: BaseException) -> bool:
        """Return whether a retry may help after an error.

        It may help after a connection error, or after a retryable `BackendError` other than
        `MalformedResponse`. It doesn't help if an inner call has already retried the request.
        """
        return (
            is_of_backend(error)
            and bool(getattr(error, "retryable", True))
            and not getattr(error, "retried", False)
            and not isinstance(error, MalformedResponse)
        )

    @property
    def longest_wait(self) -> float:
        """The longest total time of all waits between a request's tries, in seconds."""
        total, wait, left = 0.0, self.initial, self.attempts - 1
        while left and 0 < wait < self.maximum:
            total, wait, left = total + wait, 2 * wait, left - 1
        return total + left * min(wait, self.maximum)


class RetryBackend(BackendWrapper):
    """A backend that retries, for use outside of strategies.

    A strategy retries by itself, but not if its backend contains this one, so that nothing is
    retried twice.

    A stream can be retried until its first piece has arrived.

    Args:
        inner: the backend inside.
        policy: how often and how long to retry; by default ``Retry()``.

    Attributes:
        retries: True.

    Raises:
        TypeError: ``inner`` isn't a backend, or ``policy`` isn't a `Retry`.
        ValueError: ``inner`` already retries.
    """

    retries = True

    def __init__(self, inner: Backend, policy: Retry | None = None) -> None:
        super().__init__(inner)
        if gate_before(inner) is None:
            msg = (
                f"RetryBackend needs a backend that doesn't retry requests itself, but"
                f" {type(inner).__name__}, or a backend in it, does, so its retries would multiply:"
                " pass the policy to that backend, as in FallbackBackend(a, b, retry=...)"
            )
            raise ValueError(msg)
        self.policy = Retry() if policy is None else policy
        if not isinstance(self.policy, Retry):
            msg = f"RetryBackend: policy must be a Retry, not {policy!r}"
            raise TypeError(msg)

    async def generate(self, request: Request) -> Generation:
        """Answer one request, with as many tries as the policy allows.

        Raises:
            BackendError: no try got a reply. This is the last try's error.
        """
        gate = gate_of(self.inner)
        return await send_with_retries(self.inner.generate, request, self.policy, gate)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        gate = gate_of(self.inner)
        meter, stack, pieces = await send_with_retries(self._begin, request, self.policy, gate)
        try:
            async with stack, aclosing(pieces), aclosing(noting(pieces, meter.finish)) as noted:
                yield noted
        finally:
            meter.finish(None)

    async def _begin(
        self, request: Request
    ) -> tuple[Meter, AsyncExitStack, AsyncGenerator[str | Generation]]:
        async with AsyncExitStack() as stack:
            rest = await stack.enter_async_context(super()._stream(request))
            first: str | Generation | None = await anext(rest, None)
            return request.meter, stack.pop_all(), _from(first, rest)


async def _from(
    first: str | Generation | None, rest: AsyncIterator[str | Generation]
) -> AsyncGenerator[str | Generation]:
    if first is not None:
        yield first
    async for piece in rest:
        yield piece


async def send_with_retries(
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    policy: Retry,
    gate: BackoffGate,
) -> T:
    """Send a request when the gate allows it, and retry it as `try_again` does."""
    lost = partial(cancellation_lost, native_cancel_requests())
    try:
        return await gate.send(send, request, policy)
    except Exception as exc:
        if not is_of_backend(exc):
            raise
        error = exc
    # This is outside the handler, so that the first error isn't the context of all others.
    try:
        return await try_again(send, request, error, policy, gate, lost)
    finally:
        del error  # Break the cycle between frame and exception.


async def try_again(
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    error: Exception,
    policy: Retry | None,
    gate: BackoffGate,
    lost: Callable[[], bool],
) -> T:
    """Retry a request after its first error, if the policy allows it; else raise the error again.

    ``lost`` returns whether an error replaces a cancellation. Such an error is raised again, too.
    """
    try:
        gate.heard(error, policy)
        if policy is None or not policy.transient(error):
            raise error
        from mellea_like.limits.retry_loop import further_tries  # noqa: PLC0415 (needs tenacity)

        return await further_tries(send, request, error, policy, gate, lost)
    finally:
        del error  # Break the cycle between frame and exception.
