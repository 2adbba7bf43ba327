"""Rule 6 of the engine: transient errors cost a turn, permanent ones the subsample."""

from __future__ import annotations

import httpx2
import pytest
import trio
from engine_kit import Unmetered, by_iteration, outcomes, yes

from mellea_like import BackendError, FunctionBackend, RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.backend import Request
from mellea_like.errors import (
    AuthenticationFailed,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    MissingAnswer,
    RateLimited,
    RequirementError,
    ShutdownError,
)
from mellea_like.limits import FallbackBackend, RetryBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def foreign(library: str, *names: str) -> Exception:
    """Make an exception as another library has it, which need not be installed."""
    kind: type[Exception] = Exception
    for one in reversed(names):
        kind = type(one, (kind,), {"__module__": f"{library}._exceptions"})
    return kind(f"of {library}")


CONNECTIONS = [
    ConnectionError("broken"),
    ConnectionResetError("reset"),
    TimeoutError("late"),
    httpx2.ConnectError("no route"),
    httpx2.ReadTimeout("late"),
    httpx2.RemoteProtocolError("disconnected"),
    trio.TooSlowError(),
    foreign("httpx", "ConnectError", "NetworkError", "TransportError"),
    foreign("httpx", "PoolTimeout", "TimeoutException", "TransportError"),
    foreign("aiohttp", "ServerDisconnectedError", "ServerConnectionError", "ClientConnectionError"),
]
TRANSIENT = [
    *CONNECTIONS,
    RateLimited("429"),
    BackendTimeout("late"),
    BackendUnavailable("503"),
    MalformedResponse("?"),
    BackendError("again", retryable=True),
    MissingAnswer("a joint reply lacked it"),
]
PERMANENT = [
    AuthenticationFailed("401"),
    InvalidRequest("400"),
    BackendError("no"),
    RateLimited("quota", retryable=False),
    ShutdownError("closed"),
    ValueError("bug"),
    OSError("disk full"),
    httpx2.UnsupportedProtocol("ftp"),
    httpx2.InvalidURL("x"),
    foreign("httpx", "HTTPStatusError", "HTTPError"),
    foreign("aiohttp", "ClientPayloadError", "ClientError"),
    foreign("other", "ConnectError", "NetworkError"),
    ZeroDivisionError(),
]
name = lambda error: f"{type(error).__name__}-{error}"


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
async def test_rule_06_after_a_transient_error_the_subsample_goes_on(error):
    backend = by_iteration({1: error, 3: "yes"})
    result = await RejectionSamplingStrategy(backend, loop_budget=3).sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "failed", 3: "passed"}
    assert result.slices[0].error is error


@pytest.mark.parametrize("error", PERMANENT, ids=name)
async def test_rule_06_a_permanent_error_ends_its_subsample_and_no_other(error):
    backend = by_iteration({1: error})
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=2)
    result = await strategy.sample("do", [yes])
    assert outcomes(result) == {1: "errored", 4: "failed", 5: "failed", 6: "failed"}


async def test_rule_06_a_permanent_error_of_the_judge_ends_its_subsample_too():
    backend, judge = by_iteration({}), by_iteration({}, default=AuthenticationFailed("401"))
    strategy = RejectionSamplingStrategy(backend, loop_budget=25, concurrency_budget=4, judge=judge)
    with pytest.raises(RequirementError, match="401"):
        await strategy.sample("do", ["be kind"])
    assert (len(backend.requests), len(judge.requests)) == (4, 4)


@pytest.mark.parametrize("error", CONNECTIONS, ids=name)
async def test_rule_06_a_functions_connection_error_is_tried_again_and_then_costs_its_turn(error):
    asked = []

    def function(request):
        asked.append((request.meta.iteration, request.meta.retry))
        if len(asked) < 5:
            raise error
        return "yes"

    backend = FunctionBackend(function, inline=True)
    result = await RejectionSamplingStrategy(backend, loop_budget=4).sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "passed"}
    assert asked == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert result.errors == (error,)
    assert result.usage.requests == 5
    assert not hasattr(result.errors[0], "retryable")


async def test_rule_06_a_connection_error_that_a_call_inside_has_retried_is_not_tried_again():
    asked = []

    def function(request):
        asked.append(request.meta.retry)
        raise ConnectionError("broken")

    inner = RejectionSamplingStrategy(FunctionBackend(function, inline=True), loop_budget=1)

    async def outer(request):
        return (await inner.sample("do")).unwrap()

    with pytest.raises(ConnectionError):
        await RejectionSamplingStrategy(FunctionBackend(outer), loop_budget=1).sample("do")
    assert asked == [0, 1, 2]


@pytest.mark.parametrize(
    "wrap", [RetryBackend, lambda b: FallbackBackend(b, ScriptedBackend(["b"]))]
)
async def test_rule_06_what_retries_and_replaces_backends_knows_connection_errors_too(wrap):
    failures = iter([ConnectionError("broken")] * (1 if wrap is RetryBackend else 9))

    def function(request):
        for error in failures:
            raise error
        return "a"

    reply = await wrap(FunctionBackend(function, inline=True)).generate(Request(()))
    assert reply.text == ("a" if wrap is RetryBackend else "b")


async def test_rule_06_a_reply_that_is_no_generation_is_a_permanent_error_that_names_the_backend():
    async def generate(request):
        return "just text"

    with pytest.raises(TypeError, match=r"Unmetered.generate returned str, not a Generation"):
        await RejectionSamplingStrategy(Unmetered(generate)).sample("do", [yes])


async def test_rule_06_an_action_that_cannot_read_a_reply_for_other_reasons_than_the_reply():
    class Broken:
        def render(self, context):
            return context.messages

        def parse(self, text):
            return {}[text]

    backend = ScriptedBackend(["a"])
    with pytest.raises(KeyError):
        await RejectionSamplingStrategy(backend, loop_budget=3).sample(Broken(), [yes])
