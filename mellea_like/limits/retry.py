"""Trying again what may succeed later, inside an iteration and by one owner only."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mellea_like.core.generation import Generation
from mellea_like.core.numbers import real_number, whole_number
from mellea_like.core.wrapping import BackendWrapper
from mellea_like.errors import BackendError, MalformedResponse
from mellea_like.limits.backoff_gate import TRIP_AFTER, gate_of
from mellea_like.limits.tries import try_again

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = ["Retry", "RetryBackend", "retries"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long to try again what may succeed later.

    Tried again is what raises a `BackendError` that is ``retryable``: a server's 5xx, a broken
    connection, a timeout, a 429. A reply that can't be read (`MalformedResponse`) is not: it has
    cost its tokens, and costs its turn. Nor is anything else: no cancellation, and no other error
    than a `BackendError`.

    Before the n-th retry it waits for a random time between 0 and ``initial * 2**(n - 1)`` seconds,
    ``maximum`` at most ("full jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015). A server's ``Retry-After`` takes the place of that, and holds for all
    requests to that backend. No wait is begun that would end after the call's deadline.

    A backend that can't be reached, or answers nothing but 5xx, is left alone: after ``trip_after``
    such failures in a row, whoever's requests they were, nothing is sent to it for a second, and
    requests fail at once with a `CircuitOpen`. Then one request is let through as a probe. If it is
    answered, all may go; if not, the next is let through after twice the time, 30 s at most. Items
    of a batch wait for that, for ``max_retry_after`` at most. A server that has answered between
    failures less than 10 s ago is flaky rather than down, and is given three times as many. A
    reply that takes too long (`BackendTimeout`) counts neither as a failure nor as an answer.

    Args:
        attempts: how often in all a request may fail otherwise than by a 429, the first try
            included; 1 never tries again.
        rate_limit_attempts: how often in all it may be refused with a 429.
        initial: the longest first wait, in seconds.
        maximum: the longest wait, in seconds.
        max_retry_after: the longest wait that a server may ask for, in seconds; if it asks for
            more, the request fails at once.
        trip_after: after how many failures in a row the backend is left alone; None never does.

    Raises:
        TypeError: a number of attempts is no whole number, or another argument no number.
        ValueError: a number is out of its range.
    """

    attempts: int = 3
    rate_limit_attempts: int = field(default=10, kw_only=True)
    initial: float = field(default=0.5, kw_only=True)
    maximum: float = field(default=8.0, kw_only=True)
    max_retry_after: float = field(default=120.0, kw_only=True)
    trip_after: int | None = field(default=TRIP_AFTER, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("attempts", "rate_limit_attempts"):
            whole_number(f"Retry: {name}, which counts the first try too,", getattr(self, name))
        if self.trip_after is not None:
            whole_number("Retry: trip_after", self.trip_after)
        for name in ("initial", "maximum"):
            real_number(f"Retry: {name}", getattr(self, name), least=0, unit="seconds")
        real_number(
            "Retry: max_retry_after", self.max_retry_after, least=0, most=math.inf, unit="seconds"
        )

    def transient(self, error: BaseException) -> bool:
        """Tell whether it may help to try again what failed.

        Args:
            error: what was raised.

        Returns:
            Whether it is a retryable `BackendError` other than `MalformedResponse`, and no call
            inside has retried it.
        """
        return (
            isinstance(error, BackendError)
            and bool(error.retryable)
            and not error.retried
            and not isinstance(error, MalformedResponse)
        )

    def backoff(self, failures: int, chance: float) -> float:
        """Return how long to wait where the server did not say.

        Args:
            failures: how often the request has failed, at least 1.
            chance: a random number from 0 to 1.

        Returns:
            Seconds.
        """
        return chance * min(self.maximum, self.initial * 2.0 ** min(failures - 1, 64))

    async def again(
        self,
        send: Callable[[Request], Awaitable[Generation]],
        request: Request,
        first: BackendError,
        gate: BackoffGate | None = None,
    ) -> Generation:
        """Go on with a request that has failed once.

        Each further try has a meter of its own, part of the request's, and says in its
        ``meta.retry`` how many there were before it.

        Args:
            send: sends a request.
            request: the request that has failed.
            first: what it failed with.
            gate: the backend's gate. It is closed when the server asks to wait or refuses with a
                429, so that others wait too; and each try waits for it.

        Returns:
            The reply of the first try that succeeds.

        Raises:
            BackendError: the last try's error; ``first`` itself if it is not worth another try.
                Notes say how often it was tried, and what forbade another try.
            RateLimited: the server asks to wait for longer than this policy allows, or than the
                call's time does.
        """
        return await try_again(self, send, request, first, gate)


class RetryBackend(BackendWrapper):
    """A backend that tries again by itself, for use outside of strategies.

    A strategy retries on its own account. It leaves that to this backend where it is somewhere
    among its backend's wrappers, so that nothing is retried twice.

    A stream is tried again as long as none of its pieces was handed over: it begins when its first
    piece is there.

    Args:
        inner: the backend inside.
        policy: how often and how long.

    Attributes:
        retries: True.

    Raises:
        TypeError: ``inner`` is no backend, or ``policy`` no `Retry`.
    """

    retries = True

    def __init__(self, inner: Backend, policy: Retry | None = None) -> None:
        super().__init__(inner)
        self.policy = Retry() if policy is None else policy
        if not isinstance(self.policy, Retry):
            msg = f"RetryBackend takes a Retry, not {policy!r}"
            raise TypeError(msg)

    async def generate(self, request: Request) -> Generation:
        """Answer one request, with as many tries as the policy allows.

        Args:
            request: what is wanted.

        Returns:
            The reply.

        Raises:
            BackendError: there is no reply: the last try's error.
        """
        return await self._tried(self.inner.generate, request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        begun = await self._tried(self._begin, request)
        try:
            async with begun.stack, aclosing(begun.all()) as pieces:
                yield pieces
        finally:
            begun.request.meter.finish(begun.generation)

    async def _tried(self, send: Callable[[Request], Awaitable[T]], request: Request) -> T:
        gate = gate_of(self.inner)
        try:
            return await gate.send(send, request, self.policy)
        except BackendError as exc:
            first = exc
        # Outside the handler, so that the first error is not the context of all others.
        try:
            return await try_again(self.policy, send, request, first, gate)
        finally:
            del first

    async def _begin(self, request: Request) -> _Begun:
        async with AsyncExitStack() as stack:
            pieces = await stack.enter_async_context(super()._stream(request))
            first: str | Generation | None = await anext(pieces, None)
            return _Begun(request, stack.pop_all(), pieces, first)


class _Begun:
    """A stream whose first piece is there."""

    def __init__(
        self,
        request: Request,
        stack: AsyncExitStack,
        rest: AsyncIterator[str | Generation],
        first: str | Generation | None,
    ) -> None:
        self.request = request
        self.stack = stack
        self.rest = rest
        self.first = first
        self.generation: Generation | None = None

    async def all(self) -> AsyncGenerator[str | Generation]:
        if self.first is None:
            return
        yield self.seen(self.first)
        async for piece in self.rest:
            yield self.seen(piece)

    def seen(self, piece: str | Generation) -> str | Generation:
        if isinstance(piece, Generation):
            self.generation = piece
        return piece


def retries(backend: Backend) -> bool:
    """Tell whether a backend tries again by itself, so that nobody else should.

    Args:
        backend: the backend, wrapped or not.

    Returns:
        Whether it, or a backend inside its wrappers, has a true attribute ``retries``.
    """
    while not getattr(backend, "retries", False):
        if not isinstance(backend, BackendWrapper):
            return False
        backend = backend.inner
    return True
