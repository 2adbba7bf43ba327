"""The batch APIs with their own clients, against fake servers in processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from batch_servers.kit import Scene, ask

from mellea_like.backends import AnthropicBatches, MistralBatches, OpenAIBatches
from mellea_like.core.generation import Usage

SUPPORT = Path(__file__).parents[1] / "support"

KINDS = {
    "openai": (OpenAIBatches, "/v1"),
    "anthropic": (AnthropicBatches, ""),
    "mistral": (MistralBatches, ""),
}


@contextmanager
def server(provider: str, file: Path, *arguments: str):
    """Run a server as a process, yield its URL, and kill it at the end."""
    command = [sys.executable, "-m", "batch_servers", provider, "--file", str(file), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def admin(url: str, path: str, body: object = None) -> Any:
    """Send a command to a server's interface for tests."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/admin/{path}", data) as answer:
        return json.load(answer)


@pytest.mark.parametrize("provider", KINDS)
def test_a_job_outlives_loops_and_the_servers_process(provider, tmp_path):
    kind, path = KINDS[provider]
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

    with server(provider, file, "--settings", json.dumps({"faults": faults})) as url:
        api = kind("model-test", base_url=url + path, api_key="sk-test")
        intention = in_loop(api, "asyncio", lose)
        assert len(admin(url, "jobs")) == 1
    with server(provider, file) as url:
        admin(url, "skip", {"seconds": 3600})
        api = kind("model-test", base_url=url + path, api_key="sk-test")
        state = in_loop(api, "trio", lambda s: s.api.find(intention))
        assert state.ended
        with pytest.raises(Exception, match="connection") as caught:
            in_loop(api, "asyncio", lambda s: s.collect(state))
        assert caught.value.retryable
        outcomes = in_loop(api, "trio", lambda s: s.collect(state))
        assert len(outcomes) == 8
        bill = admin(url, "bill")["jobs"]
        cost = sum(map(api.usage, outcomes.values()), Usage())
    assert bill["requests"] == cost.requests == 8
    assert bill["nano"] == cost.input_tokens * 1_000 + cost.output_tokens * 4_000
