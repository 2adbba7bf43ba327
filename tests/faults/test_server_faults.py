"""Errors of servers, over real sockets, and the outcome of the call.

The decisions themselves are tested in ``tests/engine/test_retries.py`` and
``tests/engine/test_rule_06_errors_of_backends.py``; here they go through HTTP, and nothing is left
running afterwards.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aftermath import SAYS_WON, Billing, aftermath
from anyio.lowlevel import current_token
from http_server import Answer
from trio.lowlevel import current_clock

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.slice import Outcome
from mellea_like.errors import BackendTimeout
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.limits.retry import Retry

pytestmark = pytest.mark.anyio

QUICK = Retry(initial=0.02, maximum=0.05)
HANG = Answer(wait=3600)


def openai(server: Billing, **arguments) -> OpenAIBackend:
    return OpenAIBackend("m", base_url=server.url, **arguments)


def strategy(backend, **settings) -> RejectionSamplingStrategy:
    settings = {"loop_budget": 2, "concurrency_budget": 2, "retry": QUICK, **settings}
    return RejectionSamplingStrategy(backend, **settings)


@asynccontextmanager
async def hours_pass_until_the_first_leaves(server: Billing) -> AsyncGenerator[None]:
    """Put the clock forward again and again, for each piece of a reply gives it more time."""

    async def watch() -> None:
        await server.wait_until(lambda: server.started > 0, seconds=20)
        while not server.disconnected:
            pass_hour()
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        yield


def pass_hour() -> None:
    loop: Any = current_token().native_token
    if hasattr(loop, "time"):
        clock = loop.time
        loop.time = lambda: clock() + 3600
    else:
        trio_clock: Any = current_clock()  # It is frozen.
        object.__setattr__(trio_clock, "offset", trio_clock.offset + 3600)


def busy(**headers: str) -> Answer:
    return Answer.error(429, "slow down", **headers)


# --- 429 -----------------------------------------------------------------------------------------


async def test_a_429_with_retry_after_holds_back_siblings_and_other_calls():
    arrived: list[float] = []

    def choose(number, body):
        arrived.append(time.monotonic())
        return busy(retry_after_ms="250") if number == 0 else Answer("won", wait=0.1)

    with Billing(choose=choose) as server:
        backend, same = openai(server), openai(server)
        async with aftermath(backend, same, server) as after:

            async def call(on: OpenAIBackend) -> None:
                result = await after.sample(strategy(on, timeout=20), "Say won.", [SAYS_WON])
                assert result.success

            async with anyio.create_task_group() as calls:
                calls.start_soon(call, backend)
                await server.wait_until(lambda: gate_of(backend).closed)
                # Another backend object with the same server and key shares the gate.
                calls.start_soon(call, same)
        assert gate_of(backend) is gate_of(same)
    early = [at - arrived[0] for at in arrived if at - arrived[0] < 0.24]
    assert len(early) <= 2  # the first, and its sibling, which was on its way


async def test_a_win_while_the_gate_is_closed_ends_the_waits():
    def choose(number, body):
        return Answer("won", wait=0.15) if number == 0 else busy(retry_after="60")

    with Billing(choose=choose) as server:
        backend = openai(server)
        async with aftermath(backend, server) as after:
            with anyio.fail_after(5):
                call = strategy(backend, concurrency_budget=4)
                result = await after.sample(call, "Say won.", [SAYS_WON])
    assert result.unwrap() == "won"
    assert result.count(Outcome.CANCELLED) == 3
    assert result.usage.requests == server.started


# --- a server that hangs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "settings"),
    [({"timeout": 60}, {}), ({"total_timeout": 60}, {}), ({}, {"iteration_timeout": 60})],
    ids=["idle timeout", "total timeout", "iteration timeout"],
)
@pytest.mark.parametrize("hang", [HANG, Answer("a b c d", hang_after=2)], ids=["mute", "midway"])
async def test_of_a_hang_the_turn_errors_when_the_time_is_up_and_the_next_runs(
    hang, limits, settings
):
    with Billing(hang, Answer("won")) as server:
        backend = openai(server, **limits)
        async with aftermath(backend, server) as after, hours_pass_until_the_first_leaves(server):
            call = strategy(backend, loop_budget=9, concurrency_budget=1, retry=None, **settings)
            result = await after.sample(call, "Say won.", [SAYS_WON])
    # An hour may pass for the good reply, too, before the server has noticed; it is sent again.
    *late, passed = result.slices
    assert late
    assert {type(s.error) for s in late} == {BackendTimeout}
    assert passed.outcome is Outcome.PASSED
    assert result.usage.requests - result.usage.unknown == 1
