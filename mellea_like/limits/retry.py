"""Retries of requests after transient errors, never by two layers of backends at once."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.display import add_note, error_text
from mellea_like.core.generation import Generation
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
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
from mellea_like.runtime.event_loops import cancellation_lost, native_cancel_requests
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from tenacity import RetryCallState

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Meter
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = ["Retry", "RetryBackend"]

T = TypeVar("T")

MOST_DOUBLINGS = 65
"""Waits stop doubling after this number of failures, so that no number overflows."""


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
        doubling = range(1, min(self.attempts, MOST_DOUBLINGS))
        rest = max(self.attempts - MOST_DOUBLINGS, 0) * self.backoff(MOST_DOUBLINGS, 1.0)
        return sum(self.backoff(failures, 1.0) for failures in doubling) + rest

    def backoff(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after some failures: the longest wait times ``chance``."""
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
    """Retry a request after its first error; return the result, or raise the last error.

    Each further try has its own meter, which is part of the request's meter, and its number in
    ``meta.retry``. A note on the last error tells how often the request was tried, and why there
    was no further try. Permanent errors, and all errors if there is no policy, are raised again,
    and so is an error that replaces a cancellation (``lost``).
    """
    state: RetryCallState | None = None
    try:
        gate.heard(error, policy)
        if policy is None or not policy.transient(error):
            raise error
        # This is imported here because most programs never need it.
        from tenacity import AsyncRetrying, retry_if_exception  # noqa: PLC0415

        stop, patience = _Stop(policy, request.meta.deadline), Patience(policy)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(lambda exc: policy.transient(exc) and not lost()),
            wait=partial(_wait, policy),
            stop=stop,
            before_sleep=partial(_before_sleep, gate),
            sleep=anyio.sleep,
            retry_error_callback=partial(_back_off, gate),
        ):
            state = attempt.retry_state
            if state.attempt_number == 1:  # The caller has made this try.
                with attempt:
                    raise error
                continue
            if told_to_wait(error) is None:
                patience.spend(state.upcoming_sleep)
            request.meter.finish(None)
            probe = False
            try:
                probe = await gate.wait(request, policy, patience)
                await request.meter.readmit(request, error)
                with attempt:
                    return await _send_again(send, request, state.attempt_number - 1, policy, gate)
            except BackendError as exc:
                if exc is not error:
                    exc.__cause__ = error  # The gate refused the request after the last try.
                raise
            finally:
                if probe:
                    gate.probe_ended()
            error = _error_of(state)
        raise _given_up(error, stop.why, policy.max_retry_after)
    finally:
        # Break the cycles between the last error and the frames in its traceback.
        del error
        if state is not None:
            state.outcome = None


def _wait(policy: Retry, state: RetryCallState) -> float:
    """Return the seconds until the next try: those that the server asks for, or a backoff."""
    chance, asked = JITTER.random(), told_to_wait(_error_of(state))
    if asked is None:
        return policy.backoff(state.attempt_number, chance)
    return asked + chance * spread_after(asked)


class _Stop:
    """Decides after each try whether it was the last one; if so, ``why`` says why."""

    def __init__(self, policy: Retry, deadline: float | None) -> None:
        self.why = ""
        self._policy = policy
        self._deadline = deadline
        self._refusals = 0  # Tries that got a 429.

    def __call__(self, state: RetryCallState) -> bool:
        policy, error = self._policy, _error_of(state)
        tried, pause = state.attempt_number, state.upcoming_sleep
        self._refusals += isinstance(error, RateLimited)
        refusals = self._refusals
        if (asked := told_to_wait(error) or 0.0) > policy.max_retry_after:
            self.why = f"{come_back_in(asked)}: {too_long(policy.max_retry_after)}"
        elif refusals >= policy.rate_limit_attempts:
            limit = policy.rate_limit_attempts
            self.why = f"refused {_times(refusals)} (rate_limit_attempts={limit})"
        elif tried - refusals >= policy.attempts:
            self.why = f"tried {_times(tried)} (attempts={policy.attempts})"
        elif self._deadline is not None and anyio.current_time() + pause > self._deadline:
            self.why = (
                f"tried {_times(tried)}: the next try would have to wait {pause:.3g} s, but the"
                " call's time is up before then"
            )
        return bool(self.why)


def _before_sleep(gate: BackoffGate, state: RetryCallState) -> None:
    """Log an error that would otherwise vanish in the next try."""
    _back_off(gate, state)
    error, tried, pause = _error_of(state), state.attempt_number, state.upcoming_sleep
    kind = type(error).__name__
    inform("try %d failed: %s: %s; retrying in %.3g s", tried, kind, error, pause)


def _back_off(gate: BackoffGate, state: RetryCallState) -> None:
    """After a 429 without ``Retry-After``, make other requests wait as long as this one."""
    error = _error_of(state)
    if isinstance(error, RateLimited) and told_to_wait(error) is None:
        gate.close(state.upcoming_sleep)


async def _send_again(
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    retry: int,
    policy: Retry,
    gate: BackoffGate,
) -> T:
    """Send a request with a separate meter, and report the outcome to the gate."""
    meter = request.meter.attempt()
    meta = replace(request.meta, retry=request.meta.retry + retry)
    try:
        reply = await send(replace(request, meter=meter, meta=meta))
    except BaseException as exc:
        gate.heard(exc, policy)
        meter.finish(None)
        raise
    gate.answered(anyio.current_time())
    if isinstance(reply, Generation):
        meter.finish(reply)
    return reply


def _given_up(error: Exception, why: str, cap: float) -> Exception:
    """Return the error to raise if there is no further try: the last one, with the reason."""
    if isinstance(error, BackendError) and (asked := told_to_wait(error) or 0.0) > cap:
        kind = RateLimited if isinstance(error, RateLimited) else BackendUnavailable
        msg = f"{error_text(error)}; {why}"
        refused = kind(msg, status=error.status, retryable=False, retry_after=asked)
        refused.__cause__ = error
        return refused
    if why not in getattr(error, "__notes__", ()):
        add_note(error, why)
    return error


def _error_of(state: RetryCallState) -> Exception:
    outcome: Any = state.outcome
    error: Exception = outcome.exception()
    return error


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
