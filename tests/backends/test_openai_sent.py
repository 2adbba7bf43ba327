"""OpenAIBackend counts a request as sent, so that it may be billed, when its body has left."""

from __future__ import annotations

import socket

import anyio
import httpx2
import openai
import pytest
from http_server import Answer, OpenAIServer, serving

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core import Usage
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import BackendUnavailable
from mellea_like.limits import Budget

pytestmark = pytest.mark.anyio

FINE = Requirement("fine", lambda candidate: True, inline=True)
PROMPT = "Say something. " * 100
ESTIMATE = estimate_input_tokens(Request((Message("user", PROMPT),)))


def strategy(backend: OpenAIBackend, budget: Budget) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=8, budget=budget)


async def test_what_waited_for_a_connection_in_vain_costs_nothing():
    budget = Budget(requests=100)
    async with serving(Answer(wait=0.05, usage=(401, 4)), max_connections=1) as (server, backend):
        result = await strategy(backend, budget).sample(PROMPT, [FINE])
    assert server.started == 1
    assert result.usage == Usage(1, 401, 4)
    assert budget.spent[:3] == (1, 401, 4)
    assert result.ledger().total.requests == 1


async def test_losers_that_were_sent_have_estimates_of_their_prompt_and_reply():
    budget = Budget(requests=100)

    def choose(number, body):
        return Answer(usage=(401, 4), until=lambda: server.started == 8) if number == 1 else SLOW

    async with serving(choose=choose) as (server, backend):
        result = await strategy(backend, budget).sample(PROMPT, [FINE])
    tokens = 401 + 7 * estimate_input_tokens(Request(result.best.messages))
    assert result.usage == Usage(8, tokens, 8 * 4, 7)
    assert budget.spent[:3] == (8, tokens, 8 * 4)


SLOW = Answer(wait=5.0)


async def test_losers_that_were_still_connecting_are_not_counted():
    def choose(number, body):
        return Answer() if number == 1 else SLOW

    with OpenAIServer(choose=choose) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        call = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=41)
        result = await call.sample(PROMPT, [FINE])
        await backend.aclose()
        await server.wait_until(lambda: server.in_flight == 0)
    assert result.usage.requests == server.started


async def test_a_refused_connection_is_no_request():
    budget = Budget(requests=100)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    backend = OpenAIBackend("m", base_url=f"http://127.0.0.1:{port}/v1")
    slices = []
    with pytest.raises(BackendUnavailable):
        await strategy(backend, budget).sample(PROMPT, [FINE], on_slice=slices.append)
    assert {slice_.usage for slice_ in slices} == {Usage()}
    assert budget.spent[:3] == (0, 0, 0)
    await backend.aclose()


async def test_what_a_server_refuses_is_a_request_that_costs_no_tokens():
    request = Request((Message("user", PROMPT),))
    async with serving(Answer.error(503)) as (_, backend):
        with pytest.raises(BackendUnavailable):
            await backend.generate(request)
    assert request.meter.usage == Usage(1, 0, 0, 1)


async def test_with_a_given_client_what_waited_for_a_connection_in_vain_costs_nothing():
    budget = Budget(requests=100)
    limits = httpx2.Limits(max_connections=1)
    with OpenAIServer(Answer(wait=0.05, usage=(401, 4))) as server:
        http = httpx2.AsyncClient(limits=limits)
        async with openai.AsyncOpenAI(api_key="k", base_url=server.url, http_client=http) as client:
            call = strategy(OpenAIBackend("m", client=client), budget)
            result = await call.sample(PROMPT, [FINE])
    assert server.started == 1
    assert result.usage == Usage(1, 401, 4)
    assert budget.spent[:3] == (1, 401, 4)


async def test_a_given_client_gets_one_hook_which_leaves_other_requests_alone():
    seen = []

    async def look(request: httpx2.Request) -> None:
        seen.append("trace" in request.extensions)

    with OpenAIServer() as server:
        http = httpx2.AsyncClient()
        async with openai.AsyncOpenAI(api_key="k", base_url=server.url, http_client=http) as client:
            for _ in range(2):
                await OpenAIBackend("m", client=client).generate(Request((Message("user", "?"),)))
            assert len(http.event_hooks["request"]) == 1
            http.event_hooks["request"].append(look)
            await client.models.list()
            await OpenAIBackend("m", client=client).generate(Request((Message("user", "?"),)))
    assert seen == [False, True]


async def test_with_a_transport_that_can_not_tell_what_is_begun_counts_as_sent():
    begun = anyio.Event()

    async def never(_: httpx2.Request) -> httpx2.Response:
        begun.set()
        await anyio.sleep_forever()
        raise NotImplementedError

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(never))
    async with openai.AsyncOpenAI(api_key="k", base_url="http://x/v1", http_client=http) as client:
        request = Request((Message("user", PROMPT),))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(OpenAIBackend("m", client=client).generate, request)
            await begun.wait()
            tasks.cancel_scope.cancel()
    assert request.meter.usage == Usage(1, ESTIMATE, 0, 1)
