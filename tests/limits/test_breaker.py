"""The circuit breaker: what is dead is not paid for, and what is only flaky goes on."""

from __future__ import annotations

import random
import socket
from itertools import count

import anyio
import pytest
from http_server import Answer, OpenAIServer

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.batch import sample_many
from mellea_like.core.backend import Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Usage
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend, Retry, RetryBackend
from mellea_like.limits.backoff_gate import PATIENT, BackoffGate, CircuitBreaker, gate_of, is_answer

DOWN = BackendUnavailable("503", status=503)
GOOD = Requirement("good", lambda candidate: candidate.text == "good", inline=True)
GO, PROBING = 0.0, float("inf")

# --- the decisions, in tables ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DOWN, False),
        (BackendUnavailable("refused"), False),
        (BackendUnavailable("it gave up", retryable=False), None),
        (BackendTimeout("slow"), None),
        (BackendTimeout("408", status=408), True),
        (RateLimited("429"), True),
        (RateLimited("the gate's", retryable=False), None),
        (InvalidRequest("400", status=400), True),
        (InvalidRequest("can't be written"), None),
        (MalformedResponse("half a reply"), True),
        (CircuitOpen("unsent"), None),
    ],
    ids=str,
)
def test_only_a_server_that_is_not_there_or_answers_5xx_is_not_reachable(error, says):
    assert is_answer(error) is says


@pytest.mark.parametrize(
    "story",
    [
        # (time, what happens, what is expected of the next who asks)
        pytest.param([(0, "fail", GO)] * 3, id="few failures change nothing"),
        pytest.param([(0, "fail", GO)] * 3 + [(0, "fail", "probe")], id="half: one at a time"),
        pytest.param([(0, "fail", None)] * 8 + [(0.25, "", 0.75)], id="all: open for a second"),
        pytest.param([(0, "fail", None)] * 20 + [(0.5, "", 0.5)], id="sent before: no longer"),
        pytest.param([(0, "fail", None)] * 8 + [(1, "", "probe")], id="then half-open"),
        pytest.param([(0, "fail", None)] * 8 + [(1, "fail", 2)], id="a failed probe doubles it"),
        pytest.param(
            [(0, "fail", None)] * 8 + [(100 * n, "fail", None) for n in range(1, 9)]
            + [(900, "fail", 30)],
            id="30 s at most",
        ),
        pytest.param([(0, "fail", None)] * 8 + [(1, "answer", GO)], id="an answer closes it"),
        pytest.param(
            [(0, "fail", None)] * 8 + [(1, "answer", GO)] + [(2, "fail", None)] * 10
            + [(2, "fail", GO)],
            id="a flaky server is given three times as many",
        ),
        pytest.param(
            [(0, "fail", None)] * 8 + [(1, "answer", GO)] + [(12, "fail", None)] * 7
            + [(12, "fail", 1)],
            id="... for 10 s",
        ),
    ],
)  # fmt: skip
def test_what_the_breaker_says(story):
    breaker = CircuitBreaker()
    for now, happens, expected in story:
        if happens == "fail":
            breaker.failed(now, DOWN, 8)
        elif happens == "answer":
            breaker.answered(now)
        if expected == "probe":
            assert breaker.ask(now, "a") == GO
            assert breaker.ask(now, "b") == PROBING
            assert not breaker.ended("b")
            assert breaker.ended("a")
        elif expected is not None:
            assert breaker.ask(now, "a") == expected


def test_an_error_says_how_often_and_when_to_come_back():
    breaker = CircuitBreaker()
    for _ in range(8):
        breaker.failed(0, DOWN, 8)
    error = breaker.refusal(0.25, "openai at URL")
    assert str(error) == (
        "openai at URL: not reachable, 8 requests failed in a row; the next try is in 0.75 s;"
        " the last failure: 503"
    )
    assert (error.status, error.retryable, error.retry_after) == (503, False, 0.75)


# --- on the wire ----------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


async def cost(strategy: RejectionSamplingStrategy) -> tuple[int, BackendUnavailable]:
    """Make a call that fails; tell how many requests its slices say were tried, and the error."""
    with pytest.raises(BackendUnavailable) as caught:
        await strategy.sample("Say good.", [GOOD])
    return gate_of(strategy.settings.backend).statistics().failures, caught.value


@pytest.mark.parametrize("retry", [Retry(initial=0.01), None])
async def test_a_server_that_answers_nothing_but_5xx_gets_eight_requests_and_then_none(retry):
    with OpenAIServer(Answer.error(500)) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        strategy = RejectionSamplingStrategy(
            backend, loop_budget=5, concurrency_budget=4, retry=retry
        )
        _, error = await cost(strategy)
        assert server.started <= 8 + 3  # So many may be under way when the eighth fails.
        assert any("draws errored" in note for note in error.__notes__)
        before = server.started
        _, error = await cost(strategy)
        assert server.started <= before + 1  # A probe, where the machine is slow.
        assert isinstance(error, CircuitOpen)
        assert f"openai at {server.url}: not reachable, " in str(error)
        await backend.aclose()


async def test_a_closed_port_is_tried_eight_times_by_a_call_and_not_by_the_next(caplog):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    backend = OpenAIBackend("m", base_url=f"http://127.0.0.1:{port}/v1")
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=5, concurrency_budget=4, retry=Retry(initial=0.1)
    )
    tried, error = await cost(strategy)
    assert 4 <= tried <= 8
    assert "is the server running?" in str(error)
    again, error = await cost(strategy)
    assert again <= tried + 1
    assert isinstance(error, CircuitOpen)
    # Whoever has mistyped an address sees it, once, however long a batch waits for the server.
    (told,) = [record for record in caplog.records if record.message.startswith("openai at")]
    assert told.levelname == "WARNING"
    assert "is the server running?" in told.message
    await backend.aclose()


async def test_what_has_answered_once_is_known_to_be_there(virtual_clock):
    answering, dead = ScriptedBackend(["good"]), ScriptedBackend([BackendUnavailable("gone")])
    await RejectionSamplingStrategy(answering).sample("Say good.", [GOOD])
    await cost(RejectionSamplingStrategy(dead, loop_budget=1, retry=None))
    assert [gate_of(backend).reached for backend in (answering, dead)] == [True, False]


# --- whoever asks ---------------------------------------------------------------------------------


async def test_half_open_one_probe_goes_first_and_its_answer_lets_all_others_go(virtual_clock):
    # Of a call's four subsamples, one asks whether the server is back.
    came: list[float] = []

    async def answer(request):
        came.append(anyio.current_time())
        await anyio.sleep(5)
        if anyio.current_time() < 50:
            raise DOWN
        return "bad"

    backend = FunctionBackend(answer)
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=4)
    with pytest.raises(BackendUnavailable):
        await strategy.sample("Say good.", [GOOD])
    await anyio.sleep(60)
    came.clear()
    began = anyio.current_time()
    result = await strategy.sample("Say good.", [GOOD])
    assert [at - began for at in came] == [0, 5, 5, 5]
    assert len(result.slices) == 4
    assert gate_of(backend).statistics().failures == 0


async def test_a_probe_that_is_cancelled_leaves_its_place_to_another(virtual_clock):
    backend = ScriptedBackend([*[DOWN] * 4, Reply("late", delay=100), "good"])
    retrying = RetryBackend(backend, Retry(1))
    request = Request((Message("user", "hello"),))
    for _ in range(4):
        with pytest.raises(BackendUnavailable):
            await retrying.generate(request)
    async with anyio.create_task_group() as tasks:
        probe = anyio.CancelScope()

        async def leaves() -> None:
            with probe:
                await retrying.generate(request)

        tasks.start_soon(leaves)
        await anyio.sleep(1)
        tasks.start_soon(retrying.generate, request)
        await anyio.sleep(1)
        assert backend.statistics().started == 5
        probe.cancel()
    assert backend.statistics().started == 6
    assert virtual_clock.now < 3


async def test_what_is_not_sent_is_neither_charged_nor_holds_a_slot(virtual_clock):
    backend = ScriptedBackend([DOWN], cycle=True)
    budget, limiter = Budget(requests=100), ConcurrencyLimiter(2)
    strategy = RejectionSamplingStrategy(
        LimitedBackend(backend, limiter), loop_budget=5, concurrency_budget=4, budget=budget
    )
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await strategy.sample("Say good.", [GOOD])
    assert budget.spent.requests == backend.statistics().started <= 8
    assert limiter.statistics().in_flight == 0
    request = Request((Message("user", "hello"),), meta=RequestMeta(deadline=0.5))
    with pytest.raises(CircuitOpen):
        await gate_of(backend).send(strategy.settings.backend.generate, request, Retry())
    assert (request.meter.started, request.meter.usage) == (True, Usage())


async def test_it_can_be_turned_off(virtual_clock):
    backend = ScriptedBackend([DOWN], cycle=True)
    retry = Retry(trip_after=None)
    strategy = RejectionSamplingStrategy(backend, loop_budget=5, concurrency_budget=4, retry=retry)
    with pytest.raises(BackendUnavailable):
        await strategy.sample("Say good.", [GOOD])
    assert backend.statistics().started == 60


async def test_a_flaky_server_does_not_trip_it(virtual_clock):
    dice = random.Random(1)
    backend = ScriptedBackend(lambda _: DOWN if dice.random() < 0.5 else "bad")
    strategy = RejectionSamplingStrategy(backend, loop_budget=5, concurrency_budget=4)
    for _ in range(20):
        assert len((await strategy.sample("Say good.", [GOOD])).slices) == 20
    assert gate_of(backend).statistics().unsent == 0


async def test_a_batch_waits_for_a_backend_that_comes_back(virtual_clock):
    # 60 s of an outage, in which a call by itself would fail 100 items in no time.
    asked = count(1)
    requests = 0

    def answer(request):
        nonlocal requests
        requests = next(asked)
        return "good" if anyio.current_time() >= 60 else DOWN

    backend = ScriptedBackend(answer)
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=2)
    async with sample_many(
        strategy, range(100), requirements=[GOOD], action=str, concurrency=4
    ) as results:
        statuses = [item.status async for item in results]
    assert statuses.count("passed") >= 96
    assert requests <= 200 + 40  # Two an item, and those that found out.


async def test_a_request_of_a_batch_does_not_wait_beyond_its_deadline_and_says_so(virtual_clock):
    gate = BackoffGate("scripted")
    for _ in range(8):
        gate.heard(DOWN, Retry())
    PATIENT.set(True)
    request = Request((Message("user", "hello"),), meta=RequestMeta(deadline=0.75))
    with pytest.raises(CircuitOpen, match=r"next try is in 1 s; the call's time is up in 0\.75 s"):
        await gate.wait(request, Retry())
    assert virtual_clock.now == 0
