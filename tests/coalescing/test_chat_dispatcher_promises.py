"""The promises that all coalescers share, S1 to S8, held against the chat dispatcher."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from chat_kit import Bot, chat, outcome, outcomes, say, until
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like.coalescing import ChatDispatcher, ChatPhase
from mellea_like.errors import ShutdownError, Stopped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


# --- S1: every accepted submission settles exactly once ---------------------------------------


async def test_s1_a_ticket_gives_the_same_each_time_it_is_awaited():
    async with chat(Bot(1)) as dispatcher:
        ticket = dispatcher.submit("a", 1)
        assert not ticket.done
        assert await outcomes(ticket, ticket) == [(1,), (1,)]
        assert ticket.done


# --- S3: cancelling one waiter affects that one only ------------------------------------------


async def test_s3_a_waiter_that_is_cancelled_takes_its_message_back_and_no_other():
    bot = Bot(1)
    async with chat(bot, quiet=0.5) as dispatcher:
        first, second, third = await say(dispatcher, (0, 1), (0.1, 2), (0.2, 3))
        with anyio.move_on_after(0.1):
            await second
        with pytest.raises(Stopped, match="its caller was cancelled"):
            await second
        assert await outcomes(first, third) == [(1, 3), (1, 3)]


async def test_s3_the_message_of_a_waiter_that_is_cancelled_during_the_run_is_sent_already():
    bot = Bot(1)
    async with chat(bot) as dispatcher:
        ticket = dispatcher.submit("a", 1)
        with anyio.move_on_after(0.5):
            await ticket
        assert dispatcher.phase("a") is ChatPhase.RUNNING, "no one need wait for it"
        assert await ticket == (1,)
    assert bot.ends == ["answered"]


async def test_s3_a_message_with_another_waiter_stays():
    bot = Bot(1)
    async with chat(bot, quiet=0.5) as dispatcher:
        ticket = dispatcher.submit("a", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, ticket)
            with anyio.move_on_after(0.1):
                await ticket
    assert bot.batches == [[1]]


# --- S4: an exception goes to its waiters, and the loop goes on -------------------------------


async def test_s4_what_fails_beside_a_cancellation_is_logged_and_the_loop_goes_on(caplog):
    async def fail() -> None:
        try:
            await anyio.sleep(9)
        finally:
            raise ValueError("the cleanup failed")

    async def reply(messages: list[Any]) -> str:
        if messages == [1]:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail)
                await anyio.sleep(9)
        return "fine"

    async with ChatDispatcher(reply, quiet=0.05) as dispatcher:
        ticket = dispatcher.submit("a", 1)
        await until(0.5)
        assert (await dispatcher.stop("a")).cancelled
        assert await outcome(ticket) == "Stopped"
        assert await dispatcher.submit("a", 2) == "fine"
    assert "the cleanup failed" in str(caplog.records[0].exc_info) or "sub-exc" in caplog.text


@pytest.mark.parametrize("at", [0.02, 0.5], ids=["in the window", "during a run"])
async def test_s4_on_cancellation_everyone_is_settled_first(at):
    """Also where the block itself does not notice: its tasks are cancelled with it."""
    bot = Bot(1)
    found: list[Any] = []
    with anyio.CancelScope() as scope:
        async with chat(bot) as dispatcher:
            tickets = await say(dispatcher, (0, 1), (at, 2))
            with anyio.CancelScope(shield=True):
                scope.cancel()
                await anyio.sleep(0.1)
                found = await outcomes(*tickets)
                with pytest.raises(ShutdownError):
                    dispatcher.submit("a", 3)
            await checkpoint()
            raise AssertionError("it was cancelled")
    assert found == ["ShutdownError", "ShutdownError"]
    assert bot.ends == (["cancelled"] if at == 0.5 else [])


# --- S5: closing ------------------------------------------------------------------------------


async def test_s5_leaving_the_block_serves_what_was_accepted():
    bot = Bot(1)
    async with chat(bot, quiet=9, max_wait=99) as dispatcher:
        tickets = await say(dispatcher, (0, 1))
        dispatcher.submit("b", 2, run=Bot(1).reply)
    assert await outcomes(*tickets) == [(1,)]
    assert bot.starts == [0.0], "no more messages can come: it does not wait for them"


async def test_s5_draining_does_not_wait_for_a_run_that_is_interrupted_to_gather_again():
    bot = Bot(1, cleanup=1)
    async with chat(bot, quiet=50, max_wait=100, on_busy="interrupt") as dispatcher:
        await say(dispatcher, (0, 1))
        await until(50.5)
        ticket = dispatcher.submit("a", 2)
    assert bot.starts == [50.0, 51.5]
    assert await ticket == (1, 2)


# --- S6: a cap -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_busy", ["queue", "interrupt"])
@pytest.mark.parametrize("interval", [0.01, 0.1, 0.4])
async def test_s6_a_steady_stream_can_not_starve(on_busy, interval):
    bot = Bot(0.3)
    async with chat(bot, quiet=0.5, max_wait=2.0, on_busy=on_busy, max_pending=999) as dispatcher:
        for number in range(int(10 / interval)):
            dispatcher.submit("a", (number, anyio.current_time()))
            await anyio.sleep(interval)
        await dispatcher.drain()
    answered = [ran for ran in bot.runs if ran.how == "answered"]
    waits = [ran.start - ran.messages[0][1] for ran in answered]
    assert max(waits) <= 2.0 + 1e-9
    assert [m[0] for ran in answered for m in ran.messages] == list(range(int(10 / interval)))


# --- S8: deadlines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "runs", "settled_at"),
    [(-1.0, 1, 0.2), (0.2, 1, 0.2), (0.7, 1, 0.7), (1.2, 2, 1.2), (9.0, 2, 2.05)],
    ids=["past", "now", "in the queue", "during the run", "later"],
)
async def test_s8_a_deadline_includes_the_time_in_the_queue(deadline, runs, settled_at):
    bot = Bot(1)
    async with chat(bot) as dispatcher:
        await say(dispatcher, (0, 1))
        await until(0.2)
        ticket = dispatcher.submit("a", 2, deadline=deadline)
        result = await outcome(ticket)
        assert anyio.current_time() == pytest.approx(settled_at)
        assert result == ((2,) if deadline == 9 else "Expired")
    assert bot.batches == [[1], [2]][:runs], "what has expired is not sent"
    assert bot.ends == ["answered"] * runs, "a run goes on"


async def test_s8_what_expires_in_the_window_is_not_sent_and_the_others_are():
    bot = Bot(1)
    async with chat(bot, quiet=0.5) as dispatcher:
        late = dispatcher.submit("a", 1, deadline=0.4)
        ticket = dispatcher.submit("a", 2, deadline=0.6)
        third = dispatcher.submit("a", 3)
        assert await outcomes(late, ticket, third) == ["Expired", "Expired", (2, 3)]


# --- what can be seen -------------------------------------------------------------------------


async def test_statistics_tell_the_state_of_the_moment():
    async with chat(Bot(1), max_pending=1) as dispatcher:
        await say(dispatcher, (0, 1))
        figures = dispatcher.statistics()
        assert (figures.sessions, figures.pending, figures.running, figures.runs) == (1, 1, 0, 0)
        await until(0.5)
        dispatcher.submit("a", 2)
        figures = dispatcher.statistics()
        assert (figures.sessions, figures.pending, figures.running, figures.runs) == (1, 1, 1, 1)
    figures = dispatcher.statistics()  # And afterwards.
    assert (figures.sessions, figures.answered, figures.runs) == (0, 2, 2)


@pytest.fixture
def spans():
    """Where finished spans go; the process's provider is the test's, as an application sets it."""
    before = trace._TRACER_PROVIDER
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace._TRACER_PROVIDER = provider
    yield exporter
    trace._TRACER_PROVIDER = before


@pytest.mark.allow_blocking
async def test_spans_say_how_a_run_ended(spans, caplog):
    caplog.set_level(logging.CRITICAL)
    async with chat(Bot(1, error=OSError())) as dispatcher:
        dispatcher.submit("failed", 1)
        dispatcher.submit("stopped", 2, run=Bot(1).reply)
        await until(0.5)
        await dispatcher.stop("stopped")
    assert {span.attributes["mellea_like.messages"] for span in spans.get_finished_spans()} == {1}
    found = {
        span.attributes["mellea_like.session"]: (
            span.attributes.get("mellea_like.outcome"),
            span.attributes.get("error.type"),
        )
        for span in spans.get_finished_spans()
    }
    assert found == {"failed": (None, "OSError"), "stopped": ("cancelled", None)}
