"""FallbackBackend: who answers in an outage, what that costs, and that nothing else decides."""

from __future__ import annotations

import anyio
import pytest
from http_server import Answer, OpenAIServer
from limiter_kit import ask

from mellea_like import Price, RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Verdict
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits import (
    Budget,
    ConcurrencyLimiter,
    FallbackBackend,
    LimitedBackend,
    Retry,
    RetryBackend,
)
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

DOWN = BackendUnavailable("503", status=503)
ONCE = Retry(1, rate_limit_attempts=1)
GOOD = Requirement("good", lambda candidate: candidate.text == "good", inline=True)


def always(item) -> ScriptedBackend:
    return ScriptedBackend(lambda request: item)


class Named:
    """A backend with a model's name, whose replies don't say it, and without a meter."""

    def __init__(self, model, *items):
        self.model = model
        self.items = list(items)
        self.asked = 0
        self.closed = False

    async def generate(self, request):
        self.asked += 1
        item = self.items.pop(0) if len(self.items) > 1 else self.items[0]
        await anyio.lowlevel.checkpoint()
        if isinstance(item, BaseException):
            raise item
        return Generation(item)

    async def aclose(self):
        self.closed = True


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (DOWN, 3),
        (AuthenticationFailed("401", status=401), 1),
        (InvalidRequest("no such model", status=404), 1),
        (MalformedResponse("half a reply"), 1),
        (RateLimited("quota", retryable=False), 1),
        (RateLimited("429", retry_after=600.0), 1),
        (BackendUnavailable("it gave up", retryable=False), 1),
    ],
    ids=lambda value: getattr(value, "args", [value])[0] if value else None,
)
async def test_the_next_backend_answers_where_this_one_has_no_reply(virtual_clock, error, tries):
    first, second = Named("a", error), Named("b", "hi")
    request = ask()
    reply = await FallbackBackend(first, second).generate(request)
    assert (reply.text, reply.model) == ("hi", "b")
    assert (first.asked, second.asked) == (tries, 1)
    assert request.meter.usage == Usage(requests=tries + 1, unknown=tries + 1)


async def test_a_failed_validation_does_not_decide(virtual_clock):
    first, second = Named("a", "bad"), Named("b", "good")
    strategy = RejectionSamplingStrategy(FallbackBackend(first, second), loop_budget=4)
    result = await strategy.sample("x", [GOOD])
    assert not result.success
    assert (first.asked, second.asked) == (4, 0)


async def test_while_the_breaker_is_open_only_a_probe_goes_to_the_first(virtual_clock):
    first, second = Named("a", DOWN), Named("b", "hi")
    backend = FallbackBackend(first, second, retry=ONCE)
    for _ in range(9):
        await backend.generate(ask())
    assert first.asked == 4
    await anyio.sleep(1.0)
    first.items = ["back"]
    replies = [await backend.generate(ask()) for _ in range(3)]
    assert [reply.model for reply in replies] == ["a"] * 3


async def test_requests_do_not_wait_for_a_probe_that_hangs(virtual_clock):
    script = iter([*[DOWN] * 4, Reply("back", delay=30.0)])
    first = ScriptedBackend(lambda request: next(script))
    backend = FallbackBackend(first, Named("b", "hi"), retry=ONCE)
    for _ in range(4):
        await backend.generate(ask())
    await anyio.sleep(0.2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.generate, ask())  # The probe.
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        assert (await backend.generate(ask())).text == "hi"
        assert anyio.current_time() == began


async def test_all_are_down(virtual_clock):
    first, second = Named("a", DOWN), Named("b", AuthenticationFailed("401"))
    backend = FallbackBackend(first, second, retry=ONCE)
    # The transient error is raised, so that the next turn is not lost; the others are notes.
    with pytest.raises(BackendUnavailable) as caught:
        await backend.generate(ask())
    assert caught.value.__notes__[-1] == "another backend: AuthenticationFailed: 401"
    first.items = [InvalidRequest("400")]
    with pytest.raises(AuthenticationFailed):
        await backend.generate(ask())
    first.items, second.items = [DOWN], [DOWN]
    for _ in range(4):
        with pytest.raises(BackendUnavailable):
            await backend.generate(ask())
    request = ask()
    with pytest.raises(CircuitOpen):
        await backend.generate(request)
    assert request.meter.usage == Usage()


async def test_other_errors_are_not_outages(virtual_clock):
    with pytest.raises(ZeroDivisionError):
        await FallbackBackend(Named("a", ZeroDivisionError()), Named("b", "x")).generate(ask())
    spent = LimitedBackend(Named("a", "x"), Budget(requests=1))
    backend = FallbackBackend(spent, Named("b", "x"))
    await backend.generate(ask())
    with pytest.raises(LimitExceeded):
        await backend.generate(ask())


async def test_a_budget_inside_is_not_charged_from_outside_as_well(virtual_clock):
    budget = Budget(requests=1)
    backend = FallbackBackend(LimitedBackend(Named("a", "good"), budget), Named("b", "good"))
    strategy = RejectionSamplingStrategy(backend, budget=budget)
    assert (await strategy.sample("x", [GOOD])).success


DEAR = {"a": Price(1, 1), "b": Price(10, 10)}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("first", ["good", DOWN, BackendTimeout("late", retryable=False)])
async def test_each_model_that_was_asked_is_charged_at_its_price_and_has_its_row(
    virtual_clock, first, streams
):
    counted = Generation("good", usage=Usage(1, 1000, 1000))
    members = [always(item) for item in (counted if first == "good" else first, counted)]
    for member, name in zip(members, "ab", strict=True):
        member.model = name
    budget = Budget(money=1, prices=DEAR, assume_output_tokens=10)
    early = Requirement("good", lambda c: True, inline=True, stream=lambda t, d: Verdict.UNKNOWN)
    strategy = RejectionSamplingStrategy(FallbackBackend(*members, retry=ONCE), budget=budget)
    result = await strategy.sample("x", [early if streams else GOOD])
    assert result.success
    ledger = result.ledger(DEAR)
    models = ["a"] if first == "good" else ["b", "a"]
    assert [(model, row.requests) for model, row in ledger.by_model.items()] == [
        (model, 1) for model in models
    ]
    costs = {name: row.cost for name, row in ledger.by_model.items()}
    tokens = {name: row.input_tokens + row.output_tokens for name, row in ledger.by_model.items()}
    assert tokens[models[0]] == 2000
    # Of a late reply, nobody knows more than that it is 10 tokens long at most.
    late = isinstance(first, BackendTimeout)
    assert tokens.get("a") == (2000 if first == "good" else 4 + 10 * late)
    assert costs == {name: tokens[name] * 1e-6 * (1 if name == "a" else 10) for name in models}
    assert budget.spent.money == pytest.approx(sum(costs.values())) == ledger.total.cost
    assert result.usage.total_tokens == sum(tokens.values())
    assert (budget.statistics().reserved.money, result.best.model) == (0, models[0])


async def test_a_reply_that_is_not_waited_for_costs_what_the_model_does_that_was_asked(
    virtual_clock,
):
    async def lost(first):
        late = ScriptedBackend(lambda request: Reply("x", delay=60))
        members = (always(first), late) if isinstance(first, Exception) else (late, always(first))
        for member, name in zip(members, "ab", strict=True):
            member.model = name
        budget = Budget(money=1, prices=DEAR, assume_output_tokens=10)
        backend = FallbackBackend(*members, retry=ONCE)
        strategy = RejectionSamplingStrategy(
            backend, loop_budget=1, budget=budget, iteration_timeout=1
        )
        slices = []
        with pytest.raises(BackendTimeout):
            await strategy.sample("x" * 400, [GOOD], on_slice=slices.append)
        return budget.spent, slices

    for first, models in ((DOWN, ["b", "a"]), ("good", ["a"])):
        spent, [slice_] = await lost(first)
        shares = dict(slice_.usage_by_model)
        assert list(shares) == models
        assert shares[models[0]].output_tokens == 10
        assert spent.money == pytest.approx(
            sum(DEAR[model].cost(usage) for model, usage in shares.items())
        )
        assert slice_.model == models[0]


async def test_a_reply_that_is_rejected_as_it_arrives_names_the_model_that_was_asked(virtual_clock):
    early = Requirement("good", lambda c: True, inline=True, stream=lambda t, d: Verdict.FAIL)
    prices = {"one": Price(1, 1), "two": Price(30, 30)}
    budget = Budget(money=1, prices=prices, assume_output_tokens=9)
    backends = [ScriptedBackend([DOWN], model="one"), ScriptedBackend(["no good"], model="two")]
    strategy = RejectionSamplingStrategy(FallbackBackend(*backends, retry=ONCE), loop_budget=1)
    result = await strategy.sample("x", [early], budget=budget)
    assert result.best.generation.model == "two"
    assert result.ledger(prices).total.cost == pytest.approx(budget.statistics().spent.money)


async def test_a_budget_of_money_has_room_for_the_dearest_model_and_knows_all_prices():
    pair = Named("a", "good"), Named("b", "good")
    strategy = RejectionSamplingStrategy(FallbackBackend(*pair), options={"max_tokens": 1000})
    unknown = Budget(money=1, prices={"a": Price(1, 1)})
    with pytest.raises(ValueError, match="no price for the model 'b'"):
        await strategy.sample("x", [GOOD], budget=unknown)
    small = Budget(money=0.005, prices=DEAR)
    with pytest.raises(LimitExceeded, match=r"may take 0\.01"):
        await strategy.sample("x", [GOOD], budget=small)
    assert (pair[0].asked, pair[1].asked) == (0, 0)


def test_retries_around_it_are_refused():
    both = FallbackBackend(always("x"), always("y"))
    for inner in (both, LimitedBackend(both, ConcurrencyLimiter(1)), RetryBackend(always("x"))):
        with pytest.raises(ValueError, match=r"doesn't retry requests itself.*retry=\.\.\."):
            RetryBackend(inner)


# --- streams


async def pieces_of(backend, request):
    async with backend.stream(request) as pieces:
        return [piece async for piece in pieces]


async def test_a_stream_goes_to_the_next_backend_before_its_first_piece_only():
    cut = Reply(BackendUnavailable("cut", retryable=False), chunks=["one "])
    request = ask()
    *pieces, last = await pieces_of(
        FallbackBackend(always(AuthenticationFailed("401")), always("one two")), request
    )
    assert (pieces, last.text) == (["one ", "two"], "one two")
    assert request.meter.usage.requests == 2
    with pytest.raises(BackendUnavailable, match="cut"):
        await pieces_of(FallbackBackend(always(cut), always("one two")), ask())


# --- real connections


async def test_over_http_it_keeps_every_promise():
    def choose(number: int, body: dict) -> Answer:
        if body["messages"][0]["content"] == "Fail.":
            return Answer.error(400, "as asked")
        return Answer("one two three", seconds=0.03)

    with OpenAIServer(Answer.error(401)) as refusing, OpenAIServer(choose=choose) as server:
        first = OpenAIBackend("small", base_url=refusing.url)
        second = OpenAIBackend("big", base_url=server.url)
        backend = FallbackBackend(first, second, retry=ONCE)
        rules = await check_backend(lambda: backend, failing_request=ask(text="Fail."))
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
    assert {"cancellation", "stream", "errors"} <= set(rules)


async def test_an_outage_and_its_end_over_http():
    health = {"up": False}

    def choose(number: int, body: dict) -> Answer:
        return Answer("good") if health["up"] else Answer.error(503)

    with OpenAIServer(choose=choose) as flaky, OpenAIServer(Answer("good")) as steady:
        first = OpenAIBackend("small", base_url=flaky.url)
        backend = FallbackBackend(first, OpenAIBackend("big", base_url=steady.url), retry=ONCE)
        strategy = RejectionSamplingStrategy(backend)
        for _ in range(10):
            assert (await strategy.sample("x", [GOOD])).best.generation.model == "big"
        assert 4 <= flaky.started <= 6  # Probes, where the machine is slow.
        assert steady.started == 10
        assert gate_of(first).outage is not None
        health["up"] = True
        with anyio.fail_after(10):
            while (await strategy.sample("x", [GOOD])).best.generation.model == "big":  # noqa: ASYNC110 (the breaker's clock is the real one)
                await anyio.sleep(0.1)
        assert not gate_of(first).down
        await backend.aclose()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancelled_request_closes_the_connection_of_who_answers(streamed):
    with OpenAIServer(Answer.error(401)) as refusing, OpenAIServer(Answer(hang_after=1)) as server:
        first = OpenAIBackend("small", base_url=refusing.url)
        limited = LimitedBackend(OpenAIBackend("big", base_url=server.url), ConcurrencyLimiter(1))
        backend = FallbackBackend(first, limited)
        request = ask()
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as tasks:
                send = pieces_of if streamed else FallbackBackend.generate
                tasks.start_soon(send, backend, request)
                await server.wait_until(lambda: server.in_flight == 1)
                scope.cancel()
        await server.wait_until(lambda: server.disconnected == 1)
        assert request.meter.usage.requests == 2
        await backend.aclose()
