"""The circuit breaker holds back requests to a dead server, but not to a flaky one."""

from __future__ import annotations

import math
import random
import socket
from itertools import count

import anyio
import pytest
from http_server import Answer, OpenAIServer
from limiter_kit import ask

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.batch import sample_many
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    MalformedResponse,
    MelleaError,
    RateLimited,
)
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend, Retry, RetryBackend
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.limits.circuit_breaker import CircuitBreaker, is_answer

DOWN = BackendUnavailable("503", status=503)
GOOD = Requirement("good", lambda candidate: candidate.text == "good", inline=True)

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
        (InvalidRequest("can't be encoded"), None),
        (MalformedResponse("half a reply"), True),
        (CircuitOpen("unsent"), None),
    ],
    ids=str,
)
def test_only_a_server_that_is_not_there_or_answers_5xx_is_not_reachable(error, says):
    assert is_answer(error) is says


# A time, what happens then, and after "=" in how many seconds the next request may be sent: f is a
# failure, F one of a server that also answers, a an answer, p a probe, and e the end of one.
STORIES = {
    "few failures change nothing": "0f =0 0f =0 0f =0",
    "four: open for a moment": "0f 0f 0f =0 0f =0.2",
    "sent before: as long": "0f 0f 0f 0f 0.1f =0.1 0.1f =0.1",
    "too early": "0f 0f 0f 0f 0.1p",
    "then one goes": "0f 0f 0f 0f 0.2p =1",
    "a probe that fails doubles the pause, once": "0f 0f 0f 0f 0.2p 0.5f =0.4 0.5f =0.4 0.5f =0.4",
    "30 s at most": "0f 0f 0f 0f " + "".join(f"{n}00p {n}00f " for n in range(1, 10)) + "=30",
    "any answer closes it": "0f 0f 0f 0f 0.1a =0",
    "beside a probe without an answer another": "0f 0f 0f 0f 0.2p =1 1.2p =1 1.3f =0.4",
    "a probe that ends without news leaves its place": "0f 0f 0f 0f 0.2p 0.3e =0",
    "one that fails does not, if it ends after that": "0f 0f 0f 0f 0.2p 0.3f 0.3e =0.4",
    "... nor if it ends before": "0f 0f 0f 0f 0.2p 0.3e 0.3f =0.4",
    "an answer begins from the start": "0f 0f 0f 0f 0.2p 0.3a 0.3e =0 0.4f 0.4f 0.4f =0 0.4f =0.2",
    "what is flaky goes on": "0F " * 30 + "=0 9f =0.2",
    "once it is open, only an answer closes it": "0f 0f 0f 0f 0.2p 0.3F =0.4",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_when_the_breaker_lets_the_next_request_go(story):
    breaker, now = CircuitBreaker(), 0.0
    for step in story.split():
        if step[0] == "=":
            assert breaker.seconds_left(now) == pytest.approx(float(step[1:])), step
            continue
        now, happens = float(step[:-1]), step[-1]
        if happens in "fF":
            breaker.failed(now, DOWN, 4, flaky=happens == "F")
        elif happens == "p":
            assert breaker.begin_probe(now) is (now >= 0.2)
        else:
            breaker.answered() if happens == "a" else breaker.ended(now)


def test_an_error_says_how_often_and_when_to_come_back():
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed(0, DOWN, 4)
    error = breaker.refusal(0.125, "openai at URL", "; its retries are short")
    assert str(error) == (
        "openai at URL: not reachable, 4 requests in a row failed; the next try is in 0.075 s;"
        " its retries are short; the last failure: 503"
    )
    assert (error.status, error.retryable) == (503, False)
    assert error.retry_after == pytest.approx(0.075)


# --- on the wire ----------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


async def passes_all(strategy: RejectionSamplingStrategy, calls: int) -> None:
    async def call() -> None:
        assert (await strategy.sample("Say good.", [GOOD])).success

    async with anyio.create_task_group() as tasks:
        for _ in range(calls):
            tasks.start_soon(call)


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
        began = anyio.current_time()
        _, error = await cost(strategy)
        assert server.started <= 8
        assert anyio.current_time() - began < 5 * 1.5
        assert any("draws errored" in note for note in error.__notes__)
        before = server.started
        _, error = await cost(strategy)
        assert server.started <= before + 1  # A probe, where the machine is slow.
        if server.started == before:  # Else the first error is the probe's.
            assert isinstance(error, CircuitOpen)
            assert f"openai at {server.url}: not reachable, " in str(error)
        await backend.aclose()


async def test_a_closed_port_is_tried_eight_times_at_most_by_a_call_and_not_by_the_next(caplog):
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
    # A mistyped address is logged once, however long a batch waits for the server.
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


class Outage:
    """A server that fails from one time to another, after a moment, and then says good.

    A request without an answer at ``until`` gets none.
    """

    def __init__(self, until: float, since: float = 0.0, *, fails: float = 0.01, answers=0.01):
        self.since, self.until, self.fails, self.answers = since, until, fails, answers
        self.came: list[float] = []

    async def generate(self, request: Request) -> Generation:
        now = anyio.current_time()
        self.came.append(now)
        down = self.since <= now < self.until
        await anyio.sleep(self.fails if down else self.answers)
        if down:
            raise BackendUnavailable("503", status=503)
        return Generation("good", usage=Usage(1))


@pytest.mark.parametrize("retry", [Retry(), Retry(9)], ids=["default", "nine attempts"])
@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.7, 1.2])
@pytest.mark.parametrize(("calls", "lanes", "loops"), [(1, 8, 1), (30, 1, 1), (60, 2, 3)])
async def test_a_blip_fails_nobody_whose_retries_outlast_it(
    virtual_clock, calls, lanes, loops, seconds, retry
):
    server = Outage(seconds)
    strategy = RejectionSamplingStrategy(
        server, loop_budget=loops, concurrency_budget=lanes, retry=retry
    )
    await passes_all(strategy, calls)
    assert len(server.came) <= 2 * calls * lanes + 4
    assert gate_of(server).statistics() == (0, 0, 0)


async def test_the_requests_to_a_dead_server_do_not_grow_with_those_that_want_to_send_some(
    virtual_clock,
):
    server = Outage(math.inf)
    took: list[float] = []

    async def call() -> None:
        began = anyio.current_time()
        retry = Retry(random.Random(began).choice([1, 3, 9]))
        strategy = RejectionSamplingStrategy(server, loop_budget=2, retry=retry)
        with pytest.raises(BackendUnavailable):
            await strategy.sample("Say good.", [GOOD])
        took.append((anyio.current_time() - began) / (1 + retry.longest_wait))

    async with anyio.create_task_group() as tasks:
        for _ in range(300):
            tasks.start_soon(call)
            await anyio.sleep(0.06)
    # Two a pause while the pauses double, and then one in 30 s.
    assert len(server.came) <= 20
    assert max(took) <= 2 * 2
    assert gate_of(server).statistics().waiting == 0


async def test_half_open_the_answer_to_the_probe_lets_all_others_go_but_not_in_one_instant(
    virtual_clock,
):
    server = Outage(60, answers=5)
    strategy = RejectionSamplingStrategy(server, loop_budget=1, concurrency_budget=50)
    with pytest.raises(BackendUnavailable):
        await strategy.sample("Say good.", [Requirement("never", lambda _: False, inline=True)])
    await anyio.sleep(60)
    server.came.clear()
    began = anyio.current_time()
    await strategy.sample("Say good.", [Requirement("never", lambda _: False, inline=True)])
    came = [at - began for at in server.came]
    assert came[:5] == pytest.approx([0, 1, 2, 3, 4])
    assert len(came) == 50
    assert 4.99 < min(came[5:]) < max(came) <= 5.5
    assert len(set(came)) > 40
    assert gate_of(server).statistics().failures == 0


async def test_a_probe_that_is_cancelled_leaves_its_place_to_another(virtual_clock):
    backend = ScriptedBackend([*[DOWN] * 4, Reply("late", delay=100), "good"])
    request = ask()
    for _ in range(4):
        with pytest.raises(BackendUnavailable):
            await RetryBackend(backend, Retry(1)).generate(request)
    async with anyio.create_task_group() as tasks:
        probe = anyio.CancelScope()

        async def leaves() -> None:
            with probe:
                await RetryBackend(backend).generate(request)

        tasks.start_soon(leaves)
        await anyio.sleep(0.5)
        tasks.start_soon(RetryBackend(backend).generate, request)
        await anyio.sleep(0.1)
        assert backend.statistics().started == 5
        probe.cancel()
    assert backend.statistics().started == 6
    assert virtual_clock.now == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("settings", "ends"), [({"timeout": 0.1}, 0.0), ({"iteration_timeout": 0.1}, 0.1)]
)
async def test_the_time_of_a_call_or_a_draw_ends_the_wait(virtual_clock, settings, ends):
    server = Outage(math.inf)
    for _ in range(4):
        gate_of(server).heard(DOWN, Retry())
    strategy = RejectionSamplingStrategy(server, loop_budget=1, **settings)
    with pytest.raises(MelleaError) as caught:
        await strategy.sample("Say good.", [GOOD])
    assert isinstance(caught.value, CircuitOpen) is ("timeout" in settings)
    assert virtual_clock.now == pytest.approx(ends)
    assert server.came == []


async def test_a_server_that_answered_in_the_last_ten_seconds_is_not_left_alone(virtual_clock):
    server = Outage(math.inf, since=5)
    retrying = RetryBackend(server, Retry(1))
    await retrying.generate(ask())
    await anyio.sleep(5)
    for _ in range(30):
        with pytest.raises(BackendUnavailable, match=r"^503\n"):
            await retrying.generate(ask())
    await anyio.sleep(5)
    assert not gate_of(server).down
    with pytest.raises(BackendUnavailable, match=r"^503\n"):
        await retrying.generate(ask())
    assert gate_of(server).down
    with pytest.raises(CircuitOpen):
        await retrying.generate(ask())


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
    request = ask(deadline=anyio.current_time() + 0.1)
    with pytest.raises(CircuitOpen):
        await gate_of(backend).send(strategy.settings.backend.generate, request, Retry())
    assert (request.meter.started, request.meter.usage) == (True, Usage())


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
