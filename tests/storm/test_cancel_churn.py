"""Requests cancelled at random moments, for seconds on end, over a small pool of real connections.

What a pool loses by a cancelled request it loses for good, so afterwards every slot must work.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from aftermath import SAYS_WON, check_pool, descriptors
from http_server import Answer, OpenAIServer
from leftovers import other_threads, running
from limiter_kit import ask

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.backend import BackendWrapper, Request
from mellea_like.core.generation import Generation
from mellea_like.errors import BackendTimeout, MelleaError

POOL, SIBLINGS, PROBES = 10, 20, 10
ANSWERS = [
    Answer("lost", seconds=0.02),
    Answer("lost and so on", seconds=0.03),
    Answer("won", seconds=0.02),
    Answer("lost", wait=0.02),
    Answer(wait=3600),
    Answer("a b c", hang_after=1),
    Answer("a b c", cut_after=1),
    Answer.error(503),
    Answer(body=b"no events at all"),
]


class Impatient(BackendWrapper):
    """Gives each request up after a time of its own, mostly before the reply is there."""

    def __init__(self, inner: OpenAIBackend, chance: random.Random) -> None:
        super().__init__(inner)
        self.chance = chance
        self.given_up = 0

    async def generate(self, request: Request) -> Generation:
        with anyio.move_on_after(self.chance.uniform(0, 0.06)):
            return await self.inner.generate(request)
        self.given_up += 1
        raise BackendTimeout("it was given up")


async def churn(server: OpenAIServer, backend: OpenAIBackend, seconds: float, seed: int) -> None:
    """Call after call of twenty siblings; of three, two are left at a random moment.

    It goes on until enough was cancelled, which takes a busy machine longer.
    """
    chance = random.Random(seed)
    impatient = Impatient(backend, chance)
    strategy = RejectionSamplingStrategy(impatient, loop_budget=3, concurrency_budget=SIBLINGS)
    calls = left = 0
    begun = time.monotonic()

    def enough() -> bool:
        given_up, closed = impatient.given_up > 5 * seconds, server.disconnected > 2 * seconds
        return calls > left > 0 and given_up and closed

    while (passed := time.monotonic() - begun) < seconds or not (passed > 60 or enough()):
        with anyio.move_on_after(10 if calls % 3 == 2 else chance.uniform(0, 0.25)) as scope:
            with suppress(MelleaError):
                await strategy.sample("Say won.", [SAYS_WON])
        calls += 1
        left += scope.cancelled_caught
    assert enough(), f"{left} of {calls} calls left, {impatient.given_up} requests given up"


async def probe(backend: OpenAIBackend) -> int:
    """Ask ten at once, which the server answers when it has all ten; count the replies."""
    answered = 0

    async def one() -> None:
        nonlocal answered
        assert (await backend.generate(ask())).text == "one two three four"
        answered += 1

    with anyio.move_on_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(PROBES):
                tasks.start_soon(one)
    return answered


@pytest.mark.anyio
@pytest.mark.timeout(180)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize(
    ("seconds", "keep_alive"),
    [(0.3, True), (0.3, False), pytest.param(10, True, marks=pytest.mark.storm)],
)
async def test_after_a_storm_of_cancellations_every_connection_of_the_pool_still_works(
    seconds, keep_alive, caplog
):
    caplog.set_level(logging.CRITICAL, "mellea_like")
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(f"{seed} server")
    answers = [Answer()]

    def choose(number: int, body: dict[str, Any]) -> Answer:
        return chance.choice(answers)

    with OpenAIServer(choose=choose) as server:
        backend = OpenAIBackend(
            "m", base_url=server.url, keep_alive=keep_alive, max_connections=POOL
        )
        await backend.generate(ask())  # Loads what the first request loads.
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
        tasks, threads, files = running(), other_threads(), descriptors()

        answers[:] = ANSWERS
        await churn(server, backend, seconds, seed)

        assert running() <= tasks
        check_pool(backend)
        await server.wait_until(lambda: server.in_flight == 0)
        answers[:] = [Answer(until=lambda: server.max_in_flight == PROBES)]
        for _ in range(3):
            server.max_in_flight = 0
            answered = await probe(backend)
            assert answered == PROBES, f"{answered} of {PROBES} answered, seed {seed}"
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
        gc.collect()  # A socket that was left open would warn here.
        assert descriptors() <= files
        assert other_threads() <= threads
