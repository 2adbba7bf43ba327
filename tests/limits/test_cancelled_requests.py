"""Requests that end without a reply: what a budget charges, and what ledgers say."""

from __future__ import annotations

import pickle
import random

import anyio
import limiter_kit
import pytest
from http_server import Answer, OpenAIServer

from mellea_like import Price, RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Verdict
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.result import SamplingResult
from mellea_like.limits import Budget, LimitedBackend

pytestmark = pytest.mark.anyio

PRICES = {"thinker": Price(1_000_000, 10_000_000), "scripted": Price(1_000_000, 10_000_000)}
FINE = Requirement("fine", lambda candidate: True, inline=True)
MODES = ["estimate", "reserved", "received"]
MOST = 200


class Thinker:
    """A server that thinks before it answers, all replies at one speed, and bills each token.

    Of a call's four requests it answers the one that needs least thought, when all are there.
    """

    def __init__(self) -> None:
        self.lengths: dict[str, list[int]] = {}

    def choose(self, number: int, body: dict) -> Answer:
        asked = body["messages"][0]["content"]
        call = self.lengths.setdefault(asked, [])
        place = len(call)
        # The same in each run, whichever call's requests come first.
        call.append(length := random.Random(f"{asked} {place}").randint(20, 180))
        return Answer(
            until=lambda: len(call) == 4 and call.index(min(call)) == place, usage=(10, length)
        )

    @property
    def billed(self) -> int:
        """The tokens that it bills if it continues when a client leaves."""
        return sum(map(sum, self.lengths.values()))

    @property
    def billed_to_the_end(self) -> int:
        """The tokens that it bills if it stops when the clients leave, after the first answer."""
        return sum(4 * min(call) for call in self.lengths.values())


async def sampled(mode: str, thinker: Thinker) -> tuple[Budget, list[SamplingResult]]:
    """Make 20 calls of 4 lanes, of which the first to be ready wins."""
    budget = Budget(money=1e9, prices=PRICES, cancelled=mode)
    results: list[SamplingResult] = []
    with OpenAIServer(choose=thinker.choose) as server:
        backend = OpenAIBackend("thinker", base_url=server.url)
        strategy = RejectionSamplingStrategy(
            backend,
            loop_budget=1,
            concurrency_budget=4,
            options={"max_tokens": MOST},
            budget=budget,
        )

        async def call(number: int) -> None:
            results.append(await strategy.sample(f"Think of {number}.", [FINE]))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(call, number)
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
    return budget, results


@pytest.mark.parametrize("mode", MODES)
async def test_hidden_reasoning_of_losers_is_charged_and_ledgers_say_so(mode):
    thinker = Thinker()
    budget, results = await sampled(mode, thinker)
    charged = budget.spent.output_tokens
    if mode == "estimate":
        # Those that finish first are the shorter ones, so that it is low for a server that works
        # on: by the mean of the shortest of four to the mean of all.
        assert charged == thinker.billed_to_the_end
        assert charged / thinker.billed == pytest.approx(0.52, abs=0.01)
    elif mode == "reserved":
        assert thinker.billed <= charged == sum(map(min, thinker.lengths.values())) + 60 * MOST
    else:
        assert charged < 0.2 * thinker.billed
    usage = sum((result.usage for result in results), Usage())
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == budget.spent[:3]
    assert usage.unknown == budget.statistics().unknown == 60
    costs = [result.ledger(PRICES).total.cost for result in results]
    assert sum(costs) == pytest.approx(budget.spent.money)


# --- in virtual time ------------------------------------------------------------------------------


def ask(call: str = "", purpose="generate", **options) -> Request:
    return limiter_kit.ask(call, None, None, purpose, **{"max_tokens": MOST, **options})


def reply(tokens: int, reasoning: int = 0, **fields) -> Reply:
    usage = Usage(1, 3, tokens, reasoning_tokens=reasoning)
    return Reply(Generation("one two three four", usage=usage), **fields)


NEVER = Reply("one two three four", delay=1000.0)


class Script:
    """A backend that gives the next reply, around which is a budget."""

    def __init__(self, **budget) -> None:
        self.replies: list[Reply] = []
        self.budget = Budget(requests=10**6, **budget)
        self.backend = LimitedBackend(
            ScriptedBackend(lambda request: self.replies.pop(0)), self.budget
        )

    async def finish(self, tokens: int, request: Request | None = None, reasoning: int = 0) -> None:
        self.replies.append(reply(tokens, reasoning))
        await self.backend.generate(ask() if request is None else request)

    async def lose(self, request: Request | None = None, seconds: float = 1.0) -> int:
        """Cancel a request; return the tokens of output that it is charged."""
        request = ask() if request is None else request
        before = self.budget.spent.output_tokens
        self.replies.append(NEVER)
        with anyio.move_on_after(seconds):
            await self.backend.generate(request)
        charged = self.budget.spent.output_tokens - before
        assert request.meter.usage == Usage(1, 1, charged, 1)
        return charged


async def test_what_finished_requests_took_on_average_is_charged(virtual_clock):
    script = Script()
    assert await script.lose() == MOST  # Nobody knows better yet.
    await script.finish(10)
    await script.finish(25)
    assert await script.lose() == 18
    assert await script.lose() == 18, "what is estimated is not learned from"


async def test_the_requests_of_the_same_call_count_first(virtual_clock):
    script = Script()
    await script.finish(10, ask("short"))
    await script.finish(90, ask("long"))
    assert await script.lose(ask("short")) == 10
    assert await script.lose(ask("long")) == 90
    assert await script.lose(ask("another")) == 50


async def test_judges_and_other_models_are_no_measure(virtual_clock):
    script = Script()
    await script.finish(5, ask(purpose="judge"))
    assert await script.lose() == MOST
    await script.finish(50)
    assert await script.lose(ask(model="other")) == MOST
    assert [await script.lose(ask(purpose="judge")), await script.lose()] == [5, 50]


async def test_at_most_what_was_reserved_is_charged_and_at_least_what_has_arrived(virtual_clock):
    script = Script()
    await script.finish(MOST * 5)
    assert await script.lose() == MOST
    script = Script()
    await script.finish(2)
    script.replies.append(Reply("one two three four", delay=4.0))
    request = ask()
    with anyio.move_on_after(3.5):
        async with script.backend.stream(request) as pieces:
            async for _ in pieces:
                pass
    assert script.budget.spent.output_tokens == 2 + 3 == request.meter.usage.output_tokens + 2


async def test_without_a_bound_what_arrived_is_charged_until_one_has_finished(virtual_clock):
    script = Script()
    assert await script.lose(ask(max_tokens=None)) == 0
    await script.finish(30)
    assert await script.lose(ask(max_tokens=None)) == 30


@pytest.mark.parametrize(
    ("mode", "charged"), [("estimate", 51), ("reserved", MOST), ("received", 1)]
)
async def test_an_early_rejection_costs_what_arrived_and_the_thoughts_before(
    mode, charged, virtual_clock
):
    never_bad = Requirement(
        "not bad",
        lambda candidate: "bad" not in candidate.text,
        stream=lambda text, delta: Verdict.FAIL if "bad" in text else Verdict.UNKNOWN,
        inline=True,
    )
    script = iter([reply(60, 50), "bad bad bad bad", "good"])
    budget = Budget(requests=9, cancelled=mode)
    backend = ScriptedBackend(lambda request: next(script))
    strategy = RejectionSamplingStrategy(backend, options={"max_tokens": MOST}, budget=budget)
    await strategy.sample("x", [never_bad])
    before = budget.spent.output_tokens
    result = await strategy.sample("x", [never_bad])
    rejected = result.slices[0]
    assert rejected.generation.finish_reason == "rejected"
    assert rejected.usage.output_tokens == charged
    assert result.usage.output_tokens == budget.spent.output_tokens - before
    assert result.ledger().rows[0].saved_tokens == 0  # The only other reply of the call is short.


async def test_a_budget_without_requests_of_its_own_asks_those_around(virtual_clock):
    script = Script()
    await script.finish(40)
    call = Budget(requests=2, within=script.budget)
    script.backend = LimitedBackend(script.backend.inner, call)
    assert await script.lose() == 40
    assert call.spent == (1, 1, 40, 0)


def test_a_budget_has_the_mode_of_the_one_around_it():
    outer = Budget(requests=9, cancelled="reserved")
    assert Budget(within=outer).cancelled == "reserved"
    assert Budget(within=outer, cancelled="received").cancelled == "received"
    assert Budget(requests=1).cancelled == "estimate"
    assert pickle.loads(pickle.dumps(outer)).cancelled == "reserved"


async def test_the_lengths_of_a_bounded_number_of_calls_are_known(virtual_clock):
    script = Script()
    await script.finish(10, ask("first"))
    for number in range(200):
        await script.finish(90, ask(str(number)))
    assert await script.lose(ask("199")) == 90
    assert await script.lose(ask("first")) == 90
    assert len(script.budget._lengths._of_calls) == 128
