"""Retries: which errors are retried, how often, when, and at what cost."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import anyio
import pytest
from limiter_kit import ask

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits.backoff_gate import JITTER, BackoffGate, told_to_wait
from mellea_like.limits.retry import Retry, RetryBackend, send_with_retries

DOWN = BackendUnavailable
CANCELLED = asyncio.CancelledError


async def again(backend, request, policy=None, gate=None) -> Generation:
    """The first try and the rest, at a gate that knows of no other request."""
    return await send_with_retries(
        backend.generate, request, policy or Retry(), gate or BackoffGate()
    )


async def failure(backend, request, policy=None, gate=None) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await again(backend, request, policy, gate)
    return caught.value


def refuses(*errors: BaseException | type[BaseException]) -> ScriptedBackend:
    return ScriptedBackend([*errors, "good"])


class Down:
    """Fails, and remembers when."""

    def __init__(self) -> None:
        self.came: list[float] = []

    async def generate(self, request):
        self.came.append(anyio.current_time())
        raise DOWN("503")


# --- the policy's decisions, in tables -----------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (BackendUnavailable("503"), True),
        (BackendTimeout("slow"), True),
        (RateLimited("429"), True),
        (RateLimited("quota", retryable=False), False),
        (InvalidRequest("400"), False),
        (InvalidRequest("409", retryable=True), True),
        (AuthenticationFailed("401"), False),
        (MalformedResponse("half a reply"), False),
        (MalformedResponse("half a reply", retryable=True), False),
        (BackendError("?"), False),
        (LimitExceeded("spent"), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (CANCELLED(), False),
        (KeyboardInterrupt(), False),
        (BaseExceptionGroup("", [CANCELLED()]), False),
    ],
    ids=repr,
)
def test_only_retryable_errors_of_backends_and_connections_are_tried_again(error, transient):
    assert Retry().transient(error) is transient


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (3, 3.0),
        (0.25, 0.25),
        (0, None),
        (-1, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (1e308, 86_400.0),
        (10**400, 86_400.0),
        (True, None),
        ("7", None),
    ],
)
def test_what_a_server_asks_for_is_seconds_that_make_sense(given, seconds):
    assert told_to_wait(RateLimited("429", retry_after=given)) == seconds


# --- tries -------------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


async def test_what_was_not_sent_is_not_counted_as_sent(virtual_clock):
    class Unsent:
        async def generate(self, request):
            request.meter.sent_nothing()
            raise DOWN("not sent")

    request = ask()
    await failure(Unsent(), request)
    assert request.meter.usage == Usage()


@pytest.mark.parametrize(
    "error", [InvalidRequest("400"), AuthenticationFailed("401"), MalformedResponse("half")]
)
async def test_a_permanent_error_is_raised_as_it_is(virtual_clock, error):
    backend = refuses(error)
    assert await failure(backend, ask()) is error
    assert len(backend.requests) == 1
    assert not hasattr(error, "__notes__")
    assert virtual_clock.now == 0


async def test_the_last_error_is_raised_and_says_how_often_it_was_tried(virtual_clock):
    errors = [DOWN("one"), BackendTimeout("two"), DOWN("three"), DOWN("four")]
    backend = refuses(*errors)
    error = await failure(backend, ask())
    assert error is errors[2]
    assert error.__notes__ == ["tried 3 times (attempts=3)"]
    assert error.__context__ is None
    assert len(backend.requests) == 3


async def test_a_try_that_the_gate_refuses_tells_of_the_error_before_it(virtual_clock):
    gate, error = BackoffGate(), DOWN("503")

    class Fails:
        async def generate(self, request):
            if request.meta.retry == 1:
                for _ in range(3):  # Failures of other requests open the circuit.
                    gate.heard(DOWN("others"), Retry())
                raise error
            raise DOWN("first")

    refused = await failure(Fails(), ask(), Retry(initial=0), gate)
    assert isinstance(refused, CircuitOpen)
    assert refused.__cause__ is error


async def test_the_waits_before_tries_count_as_waiting_for_a_server_that_is_down(
    virtual_clock, monkeypatch
):
    monkeypatch.setattr(JITTER, "random", lambda: 1.0)
    gate, backend = BackoffGate(), Down()

    async def others_fail() -> None:
        await anyio.sleep(0.9)
        for _ in range(3):
            gate.heard(DOWN("others"), Retry())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others_fail)
        refused = await failure(backend, ask(), Retry(2, initial=1), gate)
    assert isinstance(refused, CircuitOpen)
    assert "this request can wait 0 s" in str(refused)
    assert (len(backend.came), virtual_clock.now) == (1, 1)


async def test_an_error_that_is_raised_again_and_again_is_noted_once(virtual_clock):
    error = DOWN("always the same")
    backend = ScriptedBackend([error], cycle=True)
    await failure(backend, ask())
    await failure(backend, ask())
    assert error.__notes__ == ["tried 3 times (attempts=3)"]


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
async def test_waits_double_up_to_the_maximum(virtual_clock, monkeypatch, chance):
    monkeypatch.setattr(JITTER, "random", lambda: chance)
    backend = Down()
    await failure(backend, ask(), Retry(7, trip_after=None))
    waits = [after - before for before, after in pairwise(backend.came)]
    assert waits == pytest.approx([chance * longest for longest in (0.5, 1, 2, 4, 8, 8)])


@pytest.mark.parametrize(
    "policy",
    [
        Retry(1),
        Retry(),
        Retry(9),
        Retry(9, initial=0),
        Retry(9, initial=0.3, maximum=7),
        Retry(4, initial=1, maximum=0.25),
        Retry(1100),
    ],
)
async def test_the_longest_wait_is_what_the_longest_backoffs_take(
    virtual_clock, monkeypatch, policy
):
    monkeypatch.setattr(JITTER, "random", lambda: 1.0)
    backend = Down()
    await failure(backend, ask(), replace(policy, trip_after=None))
    assert len(backend.came) == policy.attempts
    assert virtual_clock.now == pytest.approx(policy.longest_wait)


def test_the_longest_wait_of_any_number_of_attempts_is_known_at_once():
    assert Retry(10**12, initial=1, maximum=1).longest_wait == 10**12 - 1


async def test_refusals_have_a_count_of_their_own(virtual_clock):
    backend = refuses(DOWN, *[RateLimited] * 4, DOWN)
    assert (await again(backend, ask())).text == "good"
    assert len(backend.requests) == 7
    error = await failure(ScriptedBackend([RateLimited], cycle=True), ask(), Retry(9))
    assert error.__notes__ == ["refused 10 times (rate_limit_attempts=10)"]


@pytest.mark.parametrize("error", [DOWN("503"), RateLimited("429", retry_after=5)])
async def test_calls_with_the_same_seed_retry_at_different_times(virtual_clock, error):
    """A seed is about replies: with it, a hundred calls do not come back in one instant."""
    came: list[float] = []

    async def fail_once(request):
        if request.meta.retry == 0:
            raise error
        came.append(anyio.current_time())
        return "good"

    async with anyio.create_task_group() as calls:
        for _ in range(100):  # Each has its own backend, like separate processes.
            calls.start_soon(RetryBackend(FunctionBackend(fail_once)).generate, ask(seed=42))
    assert len(set(came)) == 100
    for at in came:
        assert sum(abs(at - other) < 0.01 for other in came) <= 12


async def test_no_wait_is_begun_that_ends_after_the_deadline(virtual_clock):
    error = RateLimited("429", retry_after=30)
    backend = refuses(error)
    raised = await failure(backend, ask(deadline=29.9))
    assert raised is error
    assert virtual_clock.now == 0
    assert "tried once: the next try would have to wait 3" in error.__notes__[0]
    assert len(backend.requests) == 1


async def test_a_cancellation_that_a_backend_raises_by_mistake_is_not_tried_again(virtual_clock):
    error = anyio.get_cancelled_exc_class()
    if error is not CANCELLED:
        pytest.skip("trio's can't be made")
    backend = refuses(DOWN, error("by mistake"))
    with pytest.raises(CANCELLED, match="by mistake"):
        await again(backend, ask())
    assert len(backend.requests) == 2


@pytest.mark.parametrize(("kind", "status"), [(RateLimited, 429), (BackendUnavailable, 503)])
async def test_a_wait_above_the_cap_fails_now_and_says_when_to_come_back(
    virtual_clock, kind, status
):
    error = kind("slow down", status=status, retry_after=121)
    backend = refuses(error)
    raised = await failure(backend, ask())
    assert type(raised) is kind
    assert (raised.status, raised.retryable, raised.retry_after) == (status, False, 121.0)
    assert "slow down; come back in 121 s" in str(raised)
    assert raised.__cause__ is error
    assert virtual_clock.now == 0
    assert len(backend.requests) == 1


# --- the backend that retries --------------------------------------------------------------------


class Broken:
    """A stream that breaks off a number of times, after some pieces; keeps no meter."""

    def __init__(self, *after: int | None, usage: Usage = Usage(1, 2, 3)):
        self.after = list(after)
        self.requests: list[Request] = []
        self.open = 0
        self.usage = usage

    async def generate(self, request):
        raise NotImplementedError

    def stream(self, request):
        return self

    async def __aenter__(self):
        self.open += 1
        self.made = self.pieces(self.after.pop(0))
        return self.made

    async def __aexit__(self, *exc):
        self.open -= 1
        await self.made.aclose()

    async def pieces(self, after):
        for number, piece in enumerate(["a", "b", "c"]):
            if number == after:
                raise DOWN("broken")
            yield piece
        yield Generation("abc", usage=self.usage)


async def test_a_stream_is_tried_again_while_nothing_was_handed_over(virtual_clock):
    inner = Broken(0, 0, None)
    request = ask()
    async with RetryBackend(inner).stream(request) as pieces:
        assert inner.open == 1
        assert [piece async for piece in pieces] == [
            "a",
            "b",
            "c",
            Generation("abc", usage=inner.usage),
        ]
    assert inner.open == 0
    assert request.meter.usage == Usage(3, 2, 3, unknown=2)


async def test_a_stream_that_breaks_off_later_is_not_tried_again(virtual_clock):
    inner = Broken(0, 2, None)
    seen = []
    request = ask()
    with pytest.raises(DOWN, match="broken"):
        async with RetryBackend(inner).stream(request) as pieces:
            async for piece in pieces:
                seen.append(piece)  # noqa: PERF401 (what came before the error counts)
    assert seen == ["a", "b"]
    assert inner.open == 0
    assert request.meter.usage == Usage(2, unknown=2)
