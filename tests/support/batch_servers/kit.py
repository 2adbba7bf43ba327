"""Helpers for tests of batch APIs: a provider's fake server in this process, and its API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2

from batch_servers.settings import DAY, Settings
from batch_servers.web import Server, Transport
from batch_servers.world import World, loop_clock
from mellea_like.backends.batch_api import Intention, JobOutcome, JobState
from mellea_like.core.backend import Options, Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Usage

PROVIDERS = ("openai", "azure", "anthropic", "mistral")


def make_server(provider: str, world: World) -> Server:
    """Make the server of a provider."""
    if provider in ("openai", "azure"):
        from batch_servers.openai_server import OpenAI

        return OpenAI(world, azure=provider == "azure")
    if provider == "anthropic":
        from batch_servers.anthropic_server import Anthropic

        return Anthropic(world)
    from batch_servers.mistral_server import Mistral

    return Mistral(world)


def make_api(
    provider: str,
    transport: httpx2.AsyncBaseTransport | None = None,
    url: str = "",
    key: str = "sk-test",
    **given: Any,
) -> Any:
    """Make the batch API of a provider, with a client that talks to a fake server."""
    from mellea_like import backends

    if transport is None and not url:
        transport = httpx2.MockTransport(_nobody)
    url = url or ("https://api.openai.com" if provider == "openai" else "http://provider.test")
    # Without one, the SDKs close their own from whatever event loop runs when they are garbage.
    http = httpx2.AsyncClient(transport=transport)
    if provider == "anthropic":
        import anthropic

        client: Any = anthropic.AsyncAnthropic(api_key=key, base_url=url, http_client=http)
        return backends.AnthropicBatches("claude-test", client=client, **given)
    if provider == "mistral":
        from mistralai.client import Mistral

        client = Mistral(api_key=key, server_url=url, async_client=http)
        return backends.MistralBatches("mistral-test", client=client, **given)
    import openai

    if provider == "azure":
        client = openai.AsyncAzureOpenAI(
            api_key=key, azure_endpoint=url, api_version="2024-10-21", http_client=http
        )
    else:
        client = openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1", http_client=http)
    return backends.OpenAIBatches("gpt-test", client=client, **given)


def _nobody(request: httpx2.Request) -> httpx2.Response:
    msg = "there is no server"
    raise httpx2.ConnectError(msg, request=request)


def ask(text: str = "What is the best cheese?", **options: Any) -> Request:
    """A request."""
    return Request((Message("user", text),), Options(**{"max_tokens": 50, **options}))


@dataclass
class Scene:
    """A provider's API and its fake server."""

    provider: str
    world: World
    server: Server
    api: Any
    folder: Path
    transport: Transport
    jobs: int = 0
    requests: dict[str, Request] = field(default_factory=dict)

    def intend(self, requests: Sequence[Request], key: str = "") -> tuple[Intention, Path]:
        """Write a job's requests into a file."""
        self.jobs += 1
        key = key or f"run-{self.jobs}"
        path = self.folder / f"{key}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for n, request in enumerate(requests):
                self.requests[f"{key}-{n}"] = request
                file.write(self.api.line(f"{key}-{n}", self.api.body(request)) + "\n")
        return Intention(key, f"{key}-", len(requests)), path

    async def create(self, intention: Intention, path: Path) -> JobState | None:
        """Upload a job's requests, and create it."""
        state: JobState | None
        state = await self.api.create(intention, await self.api.upload(intention, path))
        return state

    async def submit(self, requests: Sequence[Request] | int = 5, key: str = "") -> JobState:
        """Create a job."""
        if isinstance(requests, int):
            requests = [ask(f"question {n}") for n in range(requests)]
        intention, path = self.intend(requests, key)
        intention = intention._replace(before=await self.api.known())
        state = await self.create(intention, path)
        assert state is not None
        return state

    async def end(self, state: JobState, every: float = 60) -> JobState:
        """Wait until a job has ended, at most three days."""
        with anyio.fail_after(3 * DAY):
            while not state.ended:
                await anyio.sleep(every)
                state = await self.api.look(state.id)
        return state

    async def collect(self, state: JobState) -> dict[str, JobOutcome]:
        """Download the results of a job."""
        found: dict[str, JobOutcome] = {}
        async with self.api.results(state) as results:
            async for custom_id, outcome in results:
                assert custom_id not in found
                found[custom_id] = outcome
        return found

    def cost(self, outcomes: dict[str, JobOutcome]) -> Usage:
        """Return a job's cost according to its results."""
        return sum(map(self.api.usage, outcomes.values()), Usage())


@asynccontextmanager
async def scene(
    provider: str,
    folder: Path,
    *,
    now: Callable[[], float] | None = None,
    given: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """Yield a provider's API and its fake server, which shares the event loop and its clock."""
    world = World(now=now or loop_clock(), settings=Settings(**settings))
    server = make_server(provider, world)
    transport = Transport(server.app())
    api = make_api(provider, transport, **(given or {}))
    yield Scene(provider, world, server, api, folder, transport)
