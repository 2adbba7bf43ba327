"""The batch APIs with their own clients, against fake servers in processes that are killed."""

from __future__ import annotations

import anyio
import pytest
from batch_servers.kit import Scene, ask
from jobs_server import jobs_server

from mellea_like import backends
from mellea_like.core.generation import Usage

KINDS = {
    "openai": ("OpenAIBatches", "/v1"),
    "anthropic": ("AnthropicBatches", ""),
    "mistral": ("MistralBatches", ""),
}


@pytest.mark.parametrize("provider", KINDS)
def test_a_job_outlives_loops_and_the_servers_process(provider, tmp_path):
    name, path = KINDS[provider]
    kind = getattr(backends, name)
    file = tmp_path / "server.db"
    requests = [ask(f"question {n}") for n in range(8)]
    faults = [
        {"on": "create", "fault": "lose"},
        # To find a job, Anthropic's results are looked into.
        {"on": "download", "fault": "broken", "after": int(provider == "anthropic")},
    ]

    def in_loop(api, name, function):
        async def main():
            try:
                return await function(Scene(provider, None, None, api, tmp_path, None))
            finally:
                await api.aclose()

        return anyio.run(main, backend=name)

    async def lose(s):
        intention, lines = s.intend(requests)
        intention = intention._replace(before=await s.api.known())
        assert await s.create(intention, lines) is None
        return intention

    with jobs_server(provider, file, faults=faults) as server:
        api = kind("model-test", base_url=server.url + path, api_key="sk-test")
        intention = in_loop(api, "asyncio", lose)
        assert len(server.ask("jobs")) == 1
    with jobs_server(provider, file) as server:
        server.skip(3600)
        api = kind("model-test", base_url=server.url + path, api_key="sk-test")
        state = in_loop(api, "trio", lambda s: s.api.find(intention))
        assert state.ended
        with pytest.raises(Exception, match="connection") as caught:
            in_loop(api, "asyncio", lambda s: s.collect(state))
        assert caught.value.retryable
        outcomes = in_loop(api, "trio", lambda s: s.collect(state))
        assert len(outcomes) == 8
        bill = server.ask("bill")["jobs"]
        cost = sum(map(api.usage, outcomes.values()), Usage())
    assert bill["requests"] == cost.requests == 8
    assert bill["nano"] == cost.input_tokens * 1_000 + cost.output_tokens * 4_000
