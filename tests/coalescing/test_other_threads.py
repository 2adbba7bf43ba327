"""Coalescers belong to the event loop that opened them: other threads are told how to get there."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from anyio.from_thread import run, run_sync, start_blocking_portal
from anyio.lowlevel import current_token
from joint_kit import Person, ask

from mellea_like.coalescing import ChatDispatcher, RerunGate, SamplingCoordinator

pytestmark = pytest.mark.anyio


async def reply(messages):
    return " ".join(messages)


async def tick():
    return "ran"


async def in_thread(function, *args):
    return await anyio.to_thread.run_sync(function, *args)


def elsewhere(function, *args, **kwargs):
    """Call a function in a separate event loop."""
    return anyio.run(partial(function, *args, **kwargs))


async def test_a_call_from_another_thread_is_refused_by_a_sentence_that_says_what_to_do():
    may_answer = anyio.Event()

    async def answer(messages):
        await may_answer.wait()
        return messages

    async with (
        ChatDispatcher(answer, quiet=0) as dispatcher,
        RerunGate(tick) as gate,
        SamplingCoordinator(Person(), idle=0) as coordinator,
    ):
        ticket = dispatcher.submit("key", "message")
        for wrong in (
            (dispatcher.submit, "key", "message"),
            (elsewhere, dispatcher.stop, "key"),
            (elsewhere, dispatcher.abort),
            (elsewhere, ticket.wait),
            (gate.poke,),
            (elsewhere, gate.request),
            (elsewhere, gate.drain),
            (elsewhere, coordinator.generate, ask("x")),
        ):
            with pytest.raises(RuntimeError, match=r"another event loop.*anyio\.from_thread\.run"):
                await in_thread(*wrong)
        may_answer.set()
        assert await ticket == ["message"]  # Nothing was accepted, and nothing was broken.
        assert dispatcher.statistics().accepted == 1
        assert gate.status().pending == 0


async def test_a_thread_that_goes_through_the_event_loop_is_served_at_once():
    token = current_token()

    def work():
        ticket = run_sync(dispatcher.submit, "key", "message", token=token)
        return run(ticket.wait, token=token), run(gate.request, token=token)

    async with ChatDispatcher(reply, quiet=0) as dispatcher, RerunGate(tick) as gate:
        with anyio.fail_after(5):
            assert await in_thread(work) == ("message", "ran")


def test_a_program_without_an_event_loop_has_one_in_a_thread(anyio_backend_name):
    with (
        start_blocking_portal(anyio_backend_name) as portal,
        portal.wrap_async_context_manager(ChatDispatcher(reply, quiet=0)) as dispatcher,
    ):
        assert portal.call(dispatcher.submit, "key", "message") == "message"
        with pytest.raises(RuntimeError, match="another event loop"):
            dispatcher.submit("key", "message")
