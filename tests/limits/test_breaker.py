"""The circuit breaker: what is dead is not paid for, and what is only flaky goes on."""

from __future__ import annotations

import logging
import math
import random
import re
import socket
from itertools import count, pairwise

import anyio
import pytest
from http_server import Answer, OpenAIServer

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.batch import sample_many
from mellea_like.core.backend import PATIENT, Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    MalformedResponse,
    MelleaError,
    RateLimited,
)
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend, Retry, RetryBackend
from mellea_like.limits.backoff_gate import BackoffGate, CircuitBreaker, gate_of, is_answer

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
        # (time, what happens, in how many seconds the next request may be sent)
        pytest.param([(0, "fail", 0)] * 3, id="few failures change nothing"),
        pytest.param([(0, "fail", 0)] * 3 + [(0, "fail", 0.2)], id="four: open for a moment"),
        pytest.param([(0, "fail", None)] * 4 + [(0.1, "fail", 0.1)] * 9, id="sent before: as long"),
        pytest.param([(0, "fail", None)] * 4 + [(0.1, "probe", None)], id="too early"),
        pytest.param([(0, "fail", None)] * 4 + [(0.2, "probe", 1)], id="then one goes"),
        pytest.param(
            [(0, "fail", None)] * 4 + [(0.2, "probe", None), (0.5, "fail", 0.4)],
            id="a probe that fails doubles the pause",
        ),
        pytest.param(
            [(0, "fail", None)] * 4 + [(0.2, "probe", None)] + [(0.5, "fail", 0.4)] * 9,
            id="once",
        ),
        pytest.param(
            [(0, "fail", None)] * 4
            + [(100 * n, what, None) for n in range(1, 9) for what in ("probe", "fail")]
            + [(900, "probe", None), (900, "fail", 30)],
            id="30 s at most",
        ),
        pytest.param([(0, "fail", None)] * 4 + [(0.1, "answer", 0)], id="any answer closes it"),
        pytest.param(
            [(0, "fail", None)] * 4 + [(0.2, "probe", 1), (1.2, "probe", 1), (1.3, "fail", 0.4)],
            id="beside a probe without an answer another goes after a second",
        ),
        pytest.param(
            [(0, "fail", None)] * 4 + [(0.2, "probe", None), (0.3, "ended", 0)],
            id="a probe that ends without news leaves its place",
        ),
        pytest.param(
            [(0, "fail", None)] * 4
            + [(0.2, "probe", None), (0.3, "fail", None), (0.3, "ended", 0.4)],
            id="one that fails does not, if it ends after that",
        ),
        pytest.param(
            [(0, "fail", None)] * 4
            + [(0.2, "probe", None), (0.3, "ended", None), (0.3, "fail", 0.4)],
            id="... nor if it ends before",
        ),
        pytest.param(
            [(0, "fail", None)] * 4
            + [(0.2, "probe", None), (0.3, "answer", None), (0.3, "ended", 0)]
            + [(0.4, "fail", 0)] * 3 + [(0.4, "fail", 0.2)],
            id="after an answer it begins from the start",
        ),
        pytest.param([(0, "flaky", 0)] * 30 + [(9, "fail", 0.2)], id="what is flaky goes on"),
        pytest.param(
            [(0, "fail", None)] * 4 + [(0.2, "probe", None), (0.3, "flaky", 0.4)],
            id="once it is open, only an answer closes it",
        ),
    ],
)  # fmt: skip
def test_when_the_breaker_lets_the_next_request_go(story):
    breaker = CircuitBreaker()
    for now, happens, expected in story:
        match happens:
            case "fail" | "flaky":
                breaker.failed(now, DOWN, 4, flaky=happens == "flaky")
            case "answer":
                breaker.answered()
            case "ended":
                breaker.ended(now)
            case _:
                assert breaker.begin_probe(now) is (now >= 0.2)
        if expected is not None:
            assert breaker.seconds_left(now) == pytest.approx(expected)


def ask(deadline: float | None = None) -> Request:
    return Request((Message("user", "hello"),), meta=RequestMeta(deadline=deadline))


def test_an_error_says_how_often_and_when_to_come_back():
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed(0, DOWN, 4)
    error = breaker.refusal(0.125, "openai at URL", "; its retries are short")
    assert str(error) == (
        "openai at URL: not reachable, 4 requests failed in a row; the next try is in 0.075 s;"
        " its retries are short; the last failure: 503"
    )
    assert (error.status, error.retryable) == (503, False)
    assert error.retry_after == pytest.approx(0.075)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Retry(), 0.5 + 1),
        (Retry(1), 0),
        (Retry(9), 0.5 + 1 + 2 + 4 + 8 + 8 + 8 + 8),
        (Retry(4, initial=0), 0),
        (Retry(3, initial=1, maximum=0.25), 0.5),
        (Retry(1000, maximum=1, initial=1), 999),
        (Retry(10**12, maximum=1, initial=1), 10**12 - 1),
    ],
)
def test_the_longest_wait_is_the_sum_of_the_longest_backoffs(policy, seconds):
    assert policy.longest_wait == seconds


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


@pytest.mark.parametrize("retry", [Retry(), Retry(initial=0.01), None])
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


async def test_a_reply_that_takes_long_is_waited_for_by_those_with_little_time_for_retries(
    virtual_clock,
):
    # Only at its end is it known that the server is well again.
    server = Outage(0.3, answers=20)
    strategy = RejectionSamplingStrategy(server, loop_budget=1, retry=Retry())
    await passes_all(strategy, 60)
    again = [at for at in server.came if at > 0.02]
    assert len(again) == 62 - 1
    probes = [at for at in again if at < 20]
    assert [round(b - a, 3) for a, b in pairwise(probes)][2:] == [1.0] * (len(probes) - 3)


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
        for _ in range(1000):
            tasks.start_soon(call)
            await anyio.sleep(0.02)
    # Two a pause while the pauses double, and then one in 30 s.
    assert len(server.came) <= 20
    assert max(took) <= 2 * 2
    assert gate_of(server).statistics().waiting == 0


async def test_who_waits_in_vain_is_refused_when_its_own_time_is_too_short_and_others_wait_on(
    virtual_clock,
):
    server = Outage(1, fails=0.5)
    for _ in range(4):
        gate_of(server).heard(DOWN, Retry())
    ends: dict[int, tuple[float, str]] = {}

    async def send(attempts: int) -> None:
        try:
            reply = await RetryBackend(server, Retry(attempts, maximum=0.3)).generate(ask())
        except BackendError as exc:
            ends[attempts] = round(anyio.current_time(), 2), type(exc).__name__
        else:
            ends[attempts] = round(anyio.current_time(), 1), reply.text

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send, 1)
        tasks.start_soon(send, 9)  # The probe after 0.2 s, which fails after 0.7 s.
        await anyio.sleep(0.3)
        for attempts in (2, 3):
            tasks.start_soon(send, attempts)
    assert ends[1] == (0, "CircuitOpen")
    assert ends[2] == (0.7, "CircuitOpen")  # Its retries may take 0.3 s, and the pause is 0.4 s.
    for attempts in (3, 9):  # The one is the probe after 1.1 s, and the other follows.
        assert 1.1 <= ends[attempts][0] <= 1.3
        assert ends[attempts][1] == "good"


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


async def test_it_is_logged_when_the_circuit_opens_and_when_it_closes_and_not_in_between(
    virtual_clock, caplog
):
    server = Outage(10)
    with caplog.at_level(logging.INFO, "mellea_like"):
        await passes_all(RejectionSamplingStrategy(server, loop_budget=1, retry=Retry(9)), 20)
    told = [r for r in caplog.records if r.message.startswith("Outage: ")]
    assert [record.levelname for record in told] == ["WARNING", "INFO"]
    assert "not reachable, 4 requests failed in a row; the next try is in 0.2 s" in told[0].message
    assert re.fullmatch(r"Outage: answers again, after 12\.[67] s", told[1].message)


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
    for _ in range(4):
        gate.heard(DOWN, Retry())
    PATIENT.set(True)
    with pytest.raises(CircuitOpen, match=r"is in 0\.2 s; the call's time is up in 0\.1 s"):
        await gate.wait(ask(deadline=0.1), Retry())
    assert virtual_clock.now == 0


async def test_a_request_that_has_another_backend_does_not_wait_even_for_a_probe_under_way(
    virtual_clock,
):
    server = Outage(0.1, answers=10)
    gate = gate_of(server)
    for _ in range(4):
        gate.heard(DOWN, Retry())
    async with anyio.create_task_group() as tasks:
        await anyio.sleep(0.2)
        tasks.start_soon(RetryBackend(server).generate, ask())
        await anyio.sleep(0.5)
        PATIENT.set(False)
        with pytest.raises(CircuitOpen):
            await RetryBackend(server).generate(ask())
        assert virtual_clock.now == pytest.approx(0.7)
