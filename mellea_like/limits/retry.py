"""Retries of transient errors. They happen within a draw, and in one place only."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.display import add_note, error_text
from mellea_like.core.generation import Generation
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    LimitExceeded,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits.backoff_gate import (
    JITTER,
    TRIP_AFTER,
    Patience,
    come_back_in,
    gate_before,
    gate_of,
    spread_after,
    told_to_wait,
    too_long,
)
from mellea_like.limits.base import noting
from mellea_like.runtime.event_loops import cancellation_lost
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from tenacity import RetryCallState

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Meter
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = [
    "Retry",
    "RetryBackend",
    "send_with_retries",
    "try_again",
]

T = TypeVar("T")

MOST_DOUBLINGS = 65
"""A wait no longer doubles after this number of failures; ``maximum`` is reached long before."""


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
    0.8 s, and so on up to 30 s. Any answer ends this state. In the meantime, the other requests
    wait, which doesn't count as a try: before the first try at most for the sum of the longest
    backoffs (`longest_wait`) and, backoffs included, as long again over all later tries. Time
    during a probe isn't counted. Items of a batch may wait up to ``max_retry_after``. A request
    that may not wait until the next probe fails immediately with a `CircuitOpen`. A reply that
    takes too long (`BackendTimeout`) counts neither as a failure nor as an answer.

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
        `MalformedResponse`, unless an inner call has already retried it.
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
        doubling = range(1, min(self.attempts, MOST_DOUBLINGS))
        rest = max(self.attempts - MOST_DOUBLINGS, 0) * self.backoff(MOST_DOUBLINGS, 1.0)
        return sum(self.backoff(failures, 1.0) for failures in doubling) + rest

    def backoff(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after some failures: ``chance`` times the longest wait."""
        return chance * min(self.maximum, self.initial * 2.0 ** (min(failures, MOST_DOUBLINGS) - 1))


class RetryBackend(BackendWrapper):
    """A backend that retries, for use outside of strategies.

    A strategy retries by itself, but not if its backend contains this one, so that nothing is
    retried twice.

    A stream can be retried until its first piece has arrived.

    Args:
        inner: the backend inside.
        policy: how often and how long to retry.

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
        seen: list[Generation] = []
        try:
            async with stack, aclosing(pieces), aclosing(noting(pieces, seen)) as noted:
                yield noted
        finally:
            meter.finish(seen[-1] if seen else None)

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
    try:
        return await gate.send(send, request, policy)
    except Exception as exc:
        if not is_of_backend(exc):
            raise
        first = exc
    # This is outside the handler, so that the first error isn't the context of all others.
    try:
        return await try_again(send, request, first, policy, gate)
    finally:
        del first  # Break the cycle between frame and exception.


async def try_again(
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    first: Exception,
    policy: Retry | None,
    gate: BackoffGate | None,
    out_of_budget: Callable[[LimitExceeded], object] | None = None,
) -> T:
    """Retry a request whose first try failed; return the result, or raise the last try's error.

    Each further try has its own meter, which is part of the request's meter, and its number in
    ``meta.retry``. Notes on the error tell how often the request was tried, and why there was no
    further try. Without a policy or a gate, nothing is retried. If a budget refuses a further try,
    ``out_of_budget`` is called and the first error is raised; without ``out_of_budget``, the
    refusal is raised.
    """
    try:
        if gate is None:
            raise first
        _hear(gate, first, policy)
        if policy is None or not policy.transient(first):
            raise first
        try:
            return await _Tries(send, request, policy, gate).run(first)
        except LimitExceeded as exc:
            if out_of_budget is None or exc.result is not None:  # It ended a nested call.
                raise
            out_of_budget(exc)
            add_note(first, f"not retried: {exc}")
        # This is outside the handler, so that this error doesn't get the refusal as its context.
        raise first
    finally:
        del first


def _hear(gate: BackoffGate, error: Exception, policy: Retry | None) -> None:
    """Report a `BackendError` to the gate; other errors don't tell which server failed."""
    if isinstance(error, BackendError):
        gate.heard(error, policy)


class _Tries(Generic[T]):
    """The tries of one request, and its stop, wait and retry functions for tenacity."""

    def __init__(
        self,
        send: Callable[[Request], Awaitable[T]],
        request: Request,
        policy: Retry,
        gate: BackoffGate,
    ) -> None:
        self.send = send
        self.request = request
        self.policy = policy
        self.gate = gate
        self.patience = Patience(policy)
        self.refusals = 0
        self.denied = False
        self.last: Exception | None = None

    async def run(self, first: Exception) -> T:
        """Retry after the first error; raise the last error if no try succeeds."""
        # This is imported here because most programs never need it.
        from tenacity import retry_if_exception  # noqa: PLC0415
        from tenacity.asyncio import AsyncRetrying  # noqa: PLC0415

        tries = AsyncRetrying(
            retry=retry_if_exception(self.may_pass),
            wait=self.wait,
            stop=self.stop,
            before_sleep=self.tell,
            sleep=anyio.sleep,
            # `reraise` isn't used, because its frames hold the last try, and so keep the error in
            # a cycle.
            retry_error_callback=_raise_again,
        )
        state: RetryCallState | None = None
        try:
            async for attempt in tries:
                state = attempt.retry_state
                with attempt:
                    if self.last is None:
                        self.last = first
                        raise first
                    return await self.again(state.attempt_number - 1)
        finally:
            # These hold the last error, whose traceback holds tenacity's frames, which hold these
            # again.
            self.last = None
            if state is not None:
                state.outcome = None
            del first
        raise AssertionError  # The last try returns or raises.

    def may_pass(self, error: BaseException) -> bool:
        """Return whether another try may help. Cancellations are never retried."""
        return not self.denied and self.policy.transient(error) and not cancellation_lost()

    def wait(self, state: RetryCallState) -> float:
        """Return the seconds until the next try, and make the backend's other requests wait too."""
        error, policy = _error_of(state), self.policy
        asked = told_to_wait(error) if isinstance(error, BackendError) else None
        if isinstance(error, BackendError) and asked and asked > policy.max_retry_after:
            self.gate.close(policy.max_retry_after, told=asked)
            raise _too_long(error, asked, policy.max_retry_after) from error
        chance = JITTER.random()
        wait = policy.backoff(state.attempt_number, chance) if asked is None else asked
        if asked is not None or isinstance(error, RateLimited):
            self.gate.close(wait)
        if asked is not None:
            return wait + chance * spread_after(wait)
        self.patience.spend(wait)
        return wait

    def stop(self, state: RetryCallState) -> bool:
        """Return whether the tries or the call's time are used up; if so, the error gets a note."""
        error = _error_of(state)
        self.refusals += isinstance(error, RateLimited)
        why = self.why_stop(state.attempt_number, state.upcoming_sleep)
        if why and why not in getattr(error, "__notes__", ()):
            add_note(error, why)
        return bool(why)

    def why_stop(self, tried: int, pause: float) -> str:
        """Return the reason why there is no further try, or "" if there may be one."""
        policy, deadline = self.policy, self.request.meta.deadline
        if self.refusals >= policy.rate_limit_attempts:
            allowed = f"rate_limit_attempts={policy.rate_limit_attempts}"
            return f"refused {_times(self.refusals)} ({allowed})"
        if tried - self.refusals >= policy.attempts:
            return f"tried {_times(tried)} (attempts={policy.attempts})"
        if deadline is not None and anyio.current_time() + pause > deadline:
            return (
                f"tried {_times(tried)}: the next try would have to wait {pause:.3g} s, but the"
                " call's time is up before then"
            )
        return ""

    def tell(self, state: RetryCallState) -> None:
        """Log an error that would otherwise vanish in the next try."""
        error = _error_of(state)
        inform(
            "try %d failed: %s: %s; retrying in %.3g s",
            state.attempt_number,
            type(error).__name__,
            error,
            state.upcoming_sleep,
        )

    async def again(self, retry: int) -> T:
        """Try once more, when the gate and the limits allow it."""
        self.request.meter.finish(None)
        send = partial(self.attempt, retry=retry)
        try:
            return await self.gate.send(send, self.request, self.policy, self.patience)
        except Exception as exc:
            if is_of_backend(exc) and exc is not self.last and exc.__cause__ is None:
                exc.__cause__ = self.last  # The gate refused it after the last try.
            raise

    async def attempt(self, request: Request, retry: int) -> T:
        """Send the request with a separate meter for this try, when the limits admit it."""
        assert self.last is not None  # noqa: S101 (see run)
        self.denied = True
        await request.meter.readmit(request, self.last)
        self.denied = False
        meter = request.meter.attempt()
        meta = replace(request.meta, retry=request.meta.retry + retry)
        reply: T | None = None
        failed = True
        try:
            reply = await self.send(replace(request, meter=meter, meta=meta))
            failed = False
            return reply  # noqa: TRY300 (it is the method's end)
        except Exception as exc:
            if is_of_backend(exc):
                self.last = exc
                _hear(self.gate, exc, self.policy)
            raise
        finally:
            if failed or isinstance(reply, Generation):
                meter.finish(reply if isinstance(reply, Generation) else None)


def _raise_again(state: RetryCallState) -> None:
    raise _error_of(state)


def _error_of(state: RetryCallState) -> Exception:
    outcome: Any = state.outcome
    error: Exception = outcome.exception()
    return error


def _too_long(error: BackendError, wait: float, cap: float) -> BackendError:
    kind = RateLimited if isinstance(error, RateLimited) else BackendUnavailable
    msg = f"{error_text(error)}; {come_back_in(wait)}: {too_long(cap)}"
    return kind(msg, status=error.status, retryable=False, retry_after=wait)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
