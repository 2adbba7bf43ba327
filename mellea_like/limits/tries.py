"""The tries of one request, one after the other: what a retry policy is carried out with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import anyio

from mellea_like.core.generation import Generation
from mellea_like.core.shown import add_note, error_text
from mellea_like.errors import BackendError, BackendUnavailable, RateLimited
from mellea_like.limits.backoff_gate import JITTER, come_back_in, spread_after
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from mellea_like.core.backend import Request
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.limits.retry import Retry

__all__ = ["is_refusal", "told_to_wait", "try_again"]

T = TypeVar("T")

A_DAY = 86_400.0
"""A server that asks for more is taken to ask for a day."""


async def try_again(
    policy: Retry,
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    first: BackendError,
    gate: BackoffGate | None,
) -> T:
    """Go on with a request that has failed once; see `Retry.again`.

    Args:
        policy: how often and how long.
        send: sends a request.
        request: the request that has failed.
        first: what it failed with.
        gate: the backend's gate.

    Returns:
        What ``send`` returns when it succeeds.

    Raises:
        BackendError: the last try's error.
    """
    try:
        if gate is not None:
            gate.heard(first, policy)
        if not policy.transient(first):
            raise first
        tries = _Tries(policy, send, request, first, gate)
    finally:
        del first  # A frame that holds its own exception waits for the collector.
    # What most programs never need is not loaded by them.
    from tenacity import retry_if_exception  # noqa: PLC0415
    from tenacity.asyncio import AsyncRetrying  # noqa: PLC0415

    retrying = AsyncRetrying(
        sleep=anyio.sleep,
        before=tries.begin,
        retry=retry_if_exception(policy.transient),
        wait=tries.wait,
        stop=tries.stop,
        before_sleep=tries.tell,
        retry_error_callback=tries.give_up,
    )
    try:
        return await retrying(tries.next)
    finally:
        tries.end()


class _Tries(Generic[T]):
    """The tries of one request. tenacity asks its methods what to do."""

    def __init__(
        self,
        policy: Retry,
        send: Callable[[Request], Awaitable[T]],
        request: Request,
        first: BackendError,
        gate: BackoffGate | None,
    ) -> None:
        self.policy = policy
        self.send = send
        self.request = request
        self.first: BackendError | None = first
        self.gate = gate
        self.failures = 0
        self.refusals = 0
        self.state: RetryCallState | None = None

    def begin(self, state: RetryCallState) -> None:
        self.state = state

    def end(self) -> None:
        # It holds the last error, whose traceback holds tenacity's frame, which holds it.
        if self.state is not None:
            self.state.outcome = None

    def give_up(self, state: RetryCallState) -> NoReturn:
        # As tenacity's own ``reraise`` would, but without a frame that holds the error.
        raise _error_of(state)

    def tell(self, state: RetryCallState) -> None:
        """Log a failure that is to be made good: an error that vanishes helps nobody."""
        error = _error_of(state)
        inform(
            "try %d failed: %s: %s; the next one is in %.3g s",
            self.failures,
            type(error).__name__,
            error,
            state.upcoming_sleep,
        )

    async def next(self) -> T:
        """Try once; the first time, fail with what the first try failed with."""
        try:
            return await self.send_once()
        except BackendError as exc:
            self.failures += 1
            self.refusals += is_refusal(exc)
            wait = told_to_wait(exc)
            if (
                wait is None
                or wait <= self.policy.max_retry_after
                or not self.policy.transient(exc)
            ):
                raise
            if self.gate is not None:
                self.gate.close(self.policy.max_retry_after, told=wait)
            raise _too_long(exc, wait, self.policy.max_retry_after) from exc

    async def send_once(self) -> T:
        request, gate = self.request, self.gate
        if self.first is not None:
            request.meter.finish(None)
            first, self.first = self.first, None
            try:
                raise first
            finally:
                del first
        if gate is None:
            return await self.attempt(request)
        return await gate.send(self.attempt, request, self.policy)

    async def attempt(self, request: Request) -> T:
        meter = request.meter.attempt()
        meta = replace(request.meta, retry=request.meta.retry + self.failures)
        reply: T | None = None
        failed = True
        try:
            reply = await self.send(replace(request, meter=meter, meta=meta))
            failed = False
            return reply  # noqa: TRY300 (it is the method's end)
        except BackendError as exc:
            if self.gate is not None:
                self.gate.heard(exc, self.policy)
            raise
        finally:
            if failed or isinstance(reply, Generation):
                meter.finish(reply if isinstance(reply, Generation) else None)

    def wait(self, state: RetryCallState) -> float:
        """Say how long to wait before the next try, and have others wait too."""
        error = _error_of(state)
        wait = told_to_wait(error)
        chance = JITTER.random()
        if wait is None:
            wait = late = self.policy.backoff(self.failures, chance)
            closes = is_refusal(error)
        else:
            late = wait + chance * spread_after(wait)
            closes = True
        if closes and self.gate is not None:
            self.gate.close(wait)
        return late

    def stop(self, state: RetryCallState) -> bool:
        """Say whether to stop trying, and put into a note why."""
        policy = self.policy
        deadline = self.request.meta.deadline
        if self.refusals >= policy.rate_limit_attempts:
            allowed = f"rate_limit_attempts={policy.rate_limit_attempts}"
            why = f"refused {_times(self.refusals)} ({allowed})"
        elif self.failures - self.refusals >= policy.attempts:
            why = f"tried {_times(self.failures)} (attempts={policy.attempts})"
        elif deadline is not None and anyio.current_time() + state.upcoming_sleep > deadline:
            why = (
                f"tried {_times(self.failures)}: the call's time is up before the"
                f" {state.upcoming_sleep:.3g} s are over that the next try has to wait"
            )
        else:
            return False
        error = _error_of(state)
        if why not in getattr(error, "__notes__", ()):
            add_note(error, why)
        return True


def told_to_wait(error: BackendError) -> float | None:
    """Read from an error how long the server wants to be left alone.

    Args:
        error: the error.

    Returns:
        Seconds, more than 0 and a day at most; None where the server did not say, or said something
        that makes no sense.
    """
    seconds: object = error.retry_after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return float(min(seconds, A_DAY)) if 0 < seconds < math.inf else None


def is_refusal(error: BackendError) -> bool:
    """Tell whether an error is a 429.

    Args:
        error: the error.

    Returns:
        Whether the server asked for fewer requests.
    """
    return isinstance(error, RateLimited)


def _error_of(state: RetryCallState) -> BackendError:
    outcome: Any = state.outcome
    error: BackendError = outcome.exception()
    return error


def _too_long(error: BackendError, wait: float, cap: float) -> BackendError:
    kind = RateLimited if is_refusal(error) else BackendUnavailable
    msg = (
        f"{error_text(error)}; {come_back_in(wait)}: that is longer than this request may wait"
        f" (max_retry_after={cap:g})"
    )
    return kind(msg, status=error.status, retryable=False, retry_after=wait)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
