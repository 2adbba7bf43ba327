"""The tries of a request after a transient error, with tenacity.

This module is imported after the first such error, because most programs don't need tenacity.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from tenacity.stop import stop_base
from tenacity.wait import wait_exponential

from mellea_like.core.display import add_note, error_text
from mellea_like.core.generation import Generation
from mellea_like.errors import BackendError, BackendUnavailable, RateLimited
from mellea_like.limits.backoff_gate import (
    JITTER,
    Patience,
    come_back_in,
    spread_after,
    told_to_wait,
    too_long,
)
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from mellea_like.core.backend import Request
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.limits.retry import Retry

T = TypeVar("T")


async def further_tries(
    send: Callable[[Request], Awaitable[T]],
    request: Request,
    error: Exception,
    policy: Retry,
    gate: BackoffGate,
    lost: Callable[[], bool],
) -> T:
    """Retry a request after a transient error; return the result, or raise the last error.

    Each further try has its own meter, which is part of the request's meter, and its number in
    ``meta.retry``. A note on the last error tells how often the request was tried, and why there
    was no further try. An error that replaces a cancellation (``lost``) is raised again.
    """
    state: RetryCallState | None = None
    try:
        wait, patience = _Wait(policy), Patience(policy)
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda exc: policy.transient(exc) and not lost()),
            wait=wait,
            stop=_Stop(policy, request.meta.deadline),
            sleep=anyio.sleep,
            before_sleep=_log,
            # This ends the loop. With `reraise`, tenacity's frames would keep the error in a cycle.
            retry_error_callback=lambda _: None,
        )
        async for attempt in retrying:
            state = attempt.retry_state
            if state.attempt_number == 1:
                with attempt:
                    raise error  # The caller has made this try.
            else:
                # If the gate or a limit refuses the try, its error ends the loop.
                async with _admitted(request, error, policy, gate, patience):
                    with attempt:
                        return await _send(send, request, state.attempt_number - 1, gate)
                    error = _error_of(state)
                    gate.heard(error, policy)
            if policy.transient(error):
                _hold_back(error, wait(state), policy, gate, patience)
        raise error
    finally:
        # Break the cycles between the last error and the frames in its traceback.
        del error
        if state is not None:
            state.outcome = None


@asynccontextmanager
async def _admitted(
    request: Request, error: Exception, policy: Retry, gate: BackoffGate, patience: Patience
) -> AsyncGenerator[None]:
    """Wait until the gate and the limits admit another try, which is made inside."""
    request.meter.finish(None)
    try:
        probe = await gate.wait(request, policy, patience)
    except BackendError as refusal:
        raise refusal from error
    try:
        await request.meter.readmit(request, error)
        yield
    finally:
        del error  # Break the cycle between frame and exception.
        if probe:
            gate.probe_ended()


async def _send(
    send: Callable[[Request], Awaitable[T]], request: Request, retry: int, gate: BackoffGate
) -> T:
    """Send a request with a separate meter, and report an answer to the gate."""
    meter = request.meter.attempt()
    meta = replace(request.meta, retry=request.meta.retry + retry)
    try:
        reply = await send(replace(request, meter=meter, meta=meta))
    except BaseException:
        meter.finish(None)
        raise
    gate.answered(anyio.current_time())
    if isinstance(reply, Generation):
        meter.finish(reply)
    return reply


def _hold_back(
    error: Exception, pause: float, policy: Retry, gate: BackoffGate, patience: Patience
) -> None:
    """Close the gate after a 429; raise an error if the server asks for too long a wait."""
    asked = told_to_wait(error)
    if asked is None:
        patience.spend(pause)
        if isinstance(error, RateLimited):
            gate.close(pause)
    elif asked > policy.max_retry_after:
        kind = RateLimited if isinstance(error, RateLimited) else BackendUnavailable
        msg = f"{error_text(error)}; {come_back_in(asked)}: {too_long(policy.max_retry_after)}"
        status = getattr(error, "status", None)  # A connection error of Python's has none.
        raise kind(msg, status=status, retryable=False, retry_after=asked) from error


class _Wait(wait_exponential):
    """The wait that the server asks for, or else a random one ("full jitter").

    Tenacity's own `wait_random_exponential` draws from the generator that programs may seed.
    """

    def __init__(self, policy: Retry) -> None:
        super().__init__(multiplier=policy.initial, max=policy.maximum)
        # One number for each attempt, so that all calls return the same wait.
        self._chances: dict[int, float] = defaultdict(JITTER.random)

    def __call__(self, retry_state: RetryCallState) -> float:
        chance = self._chances[retry_state.attempt_number]
        asked = told_to_wait(_error_of(retry_state))
        if asked is None:
            return chance * super().__call__(retry_state)
        return asked + chance * spread_after(asked)


class _Stop(stop_base):
    """Stops after enough failures or 429s, or before a wait that ends too late; notes the reason.

    Tenacity's own `stop_before_delay` reads the system's clock, not the event loop's.
    """

    def __init__(self, policy: Retry, deadline: float | None) -> None:
        self._policy = policy
        self._deadline = math.inf if deadline is None else deadline
        self._refused = 0

    def __call__(self, retry_state: RetryCallState) -> bool:
        error, tried, policy = _error_of(retry_state), retry_state.attempt_number, self._policy
        pause = retry_state.upcoming_sleep
        self._refused += isinstance(error, RateLimited)
        if self._refused >= policy.rate_limit_attempts:
            limit = f"rate_limit_attempts={policy.rate_limit_attempts}"
            why = f"refused {_times(self._refused)} ({limit})"
        elif tried - self._refused >= policy.attempts:
            why = f"tried {_times(tried)} (attempts={policy.attempts})"
        elif anyio.current_time() + pause > self._deadline:
            why = (
                f"tried {_times(tried)}: the next try would have to wait {pause:.3g} s, but the"
                " call's time is up before then"
            )
        else:
            return False
        if why not in getattr(error, "__notes__", ()):
            add_note(error, why)
        return True


def _log(state: RetryCallState) -> None:
    """Log an error that would otherwise vanish in the next try."""
    error, tried, pause = _error_of(state), state.attempt_number, state.upcoming_sleep
    kind = type(error).__name__
    inform("try %d failed: %s: %s; retrying in %.3g s", tried, kind, error, pause)


def _error_of(state: RetryCallState) -> Exception:
    outcome: Any = state.outcome
    error: Exception = outcome.exception()
    return error


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
