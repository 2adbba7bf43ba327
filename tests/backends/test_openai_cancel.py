"""A cancelled request of OpenAIBackend is really closed, whenever it is cancelled."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest
from http_server import Answer, OpenAIServer, serving
from leftovers import running
from limiter_kit import ask

from mellea_like import OpenAIBackend

pytestmark = pytest.mark.anyio

HANGS = [
    Answer(wait=3600),
    Answer("a b c", hang_after=0),
    Answer("a b c", hang_after=2),
    Answer("a b c", seconds=3600),
]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("answer", HANGS, ids=["headers", "first word", "third word", "slow"])
async def test_a_cancelled_request_is_closed_before_the_cancellation_goes_on(answer, api):
    async with serving(answer, keep_alive=True, api=api) as (server, backend):
        request = ask()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.generate, request)
            await server.wait_until(lambda: server.in_flight == 1)
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        assert request.meter.usage.unknown == 1
        await server.wait_until(lambda: server.disconnected == 1)
        await server.wait_until(lambda: server.connections == 0)


async def test_leaving_a_stream_early_closes_it():
    async with serving(Answer("a b c", seconds=30), keep_alive=True) as (server, backend):
        with anyio.move_on_after(1):
            async with backend.stream(ask()):
                await server.wait_until(lambda: server.in_flight == 1)
        await server.wait_until(lambda: server.disconnected == 1)


async def test_a_request_cancelled_at_any_step_leaves_nothing_behind():
    """Cancel at step n of the event loop, for growing n until the request ends first."""
    with OpenAIServer(Answer("a b c d", seconds=0.002)) as server:
        backend = OpenAIBackend("m", base_url=server.url, keep_alive=True)
        await backend.generate(ask())
        before = running()
        through = step = 0
        while through < 3:
            through += await _cancelled_after(step, backend)
            assert running() <= before
            step += 1 + step // 12  # The turns of waiting for the server are many and alike.
            if step % 5 == 0:  # Now and then with a new connection.
                await backend.aclose()
        await server.wait_until(lambda: server.in_flight == 0)
        assert server.disconnected, "no step hit a request under way"
        assert (await backend.generate(ask())).text == "a b c d"
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
        gc.collect()


async def _cancelled_after(steps: int, backend: OpenAIBackend) -> bool:
    """Run a request, cancel it after some steps of the loop, and return whether it ended first."""
    texts = []

    async def run() -> None:
        texts.append((await backend.generate(ask())).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(steps):
            if texts:
                return True
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return bool(texts)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_of_asyncio_closes_the_request_too():
    async with serving(Answer("a b c", hang_after=1), keep_alive=True) as (server, backend):
        task = asyncio.get_running_loop().create_task(backend.generate(ask()))
        await server.wait_until(lambda: server.in_flight == 1)
        await anyio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.wait_until(lambda: server.disconnected == 1)
