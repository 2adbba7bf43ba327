"""The chat dispatcher: one run at a time for each conversation."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import anyio
import pytest
from chat_kit import Bot, chat, outcomes, say, until

from mellea_like.coalescing import ChatDispatcher, ChatPhase, StopReport, joined
from mellea_like.errors import QueueFull, Refused, Stopped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def test_a_stop_during_a_run_with_one_pending_makes_no_second_run(caplog):
    bot = Bot(0.15)
    async with chat(bot, quiet=0.05) as dispatcher:
        tickets = await say(dispatcher, (0.0, "one"), (0.1, "two"))
        assert await dispatcher.stop("a") == StopReport(known=True, cancelled=True, discarded=1)
        assert await outcomes(*tickets) == ["Stopped", "Stopped"]
        await anyio.sleep(10)
    assert bot.batches == [["one"]]
    assert bot.ends == ["cancelled"]
    assert not caplog.records, "someone did so on purpose"


async def test_joined_hands_over_one_text_and_makes_equal_functions_of_equal_ones():
    async def reply(text: str) -> str:
        return text.upper()

    async with ChatDispatcher(joined(reply), quiet=0.05) as dispatcher:
        first = dispatcher.submit("a", "hello")
        dispatcher.submit("a", "are you there?", run=joined(reply))
        assert await first == "HELLO\n\nARE YOU THERE?"
    assert joined(reply) == joined(reply)
    assert joined(reply) != joined(Bot().reply)


async def test_a_run_function_that_is_not_async_fails_its_messages_and_says_so():
    def reply(messages: list[Any]) -> str:
        return "now"

    async with ChatDispatcher(reply, quiet=0.05) as dispatcher:  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"a run must be an async function, but .* returned str"
        ):
            await dispatcher.submit("a", 1)


async def test_a_report_is_true_if_something_was_stopped():
    async with chat(Bot()) as dispatcher:
        assert await dispatcher.stop("a") == StopReport(known=False, cancelled=False, discarded=0)
        dispatcher.submit("a", 1)
        assert await dispatcher.stop("a")
        assert not await dispatcher.stop("a")
    assert StopReport(known=True, cancelled=True, discarded=0)


async def test_a_stop_waits_for_the_end_of_the_run_and_its_tickets_do_not():
    bot = Bot(1, cleanup=2)
    async with chat(bot) as dispatcher:
        ticket = dispatcher.submit("a", 1)
        await until(0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.stop, "a")
            with pytest.raises(Stopped, match="'a' was stopped"):
                await ticket
            assert anyio.current_time() == pytest.approx(0.5)
            assert dispatcher.phase("a") is ChatPhase.STOPPING
        assert anyio.current_time() == pytest.approx(2.5)
        assert dispatcher.phase("a") is ChatPhase.IDLE


async def test_a_run_that_will_not_be_cancelled_makes_its_session_stuck_until_it_ends(caplog):
    bot = Bot(1, cleanup=20)
    async with chat(bot, stop_grace=5) as dispatcher:
        await say(dispatcher, (0, 1))
        await until(0.5)
        report = await dispatcher.stop("a")
        assert anyio.current_time() == pytest.approx(5.5)
        assert report == StopReport(known=True, cancelled=False, discarded=0)
        assert dispatcher.phase("a") is ChatPhase.STUCK
        assert dispatcher.statistics().stuck == 1
        with pytest.raises(Refused, match="stuck: its run was cancelled, but did not end"):
            dispatcher.submit("a", 2)
        # It says so at once when it is asked again, and other sessions go on.
        assert not (await dispatcher.stop("a")).cancelled
        other = Bot(1)
        assert await dispatcher.submit("b", 3, run=other.reply) == (3,)
        await until(20.6)
        assert dispatcher.phase("a") is ChatPhase.IDLE
        assert await dispatcher.submit("a", 4) == (4,)
    assert bot.batches == [[1], [4]]
    [record] = [record for record in caplog.records if "stuck" in record.message]
    assert "chat_kit.py" in record.message
    assert "Bot.reply" in record.message
    assert (record.session, record.iteration) == ("a", None)  # type: ignore[attr-defined]
    assert len(record.run_id) == 16  # type: ignore[attr-defined]


async def test_with_interrupt_a_message_cancels_the_run_and_both_are_answered_together():
    bot = Bot(1)
    async with chat(bot, quiet=0.2, on_busy="interrupt") as dispatcher:
        tickets = await say(dispatcher, (0, 1), (0.5, 2))
        assert await outcomes(*tickets) == [(1, 2), (1, 2)]
    assert bot.batches == [[1], [1, 2]]
    assert bot.ends == ["cancelled", "answered"]
    assert bot.starts == [0.2, 0.7]


async def test_submit_raises_where_there_is_no_room():
    bot = Bot(1)
    async with chat(bot, max_pending=2) as dispatcher:
        await say(dispatcher, (0, 1), (0.5, 2), (0.6, 3))
        with pytest.raises(
            QueueFull, match=r"session 'a', because 2 of its messages are waiting.*max_pend"
        ):
            dispatcher.submit("a", 4)
        await until(1.06)
        assert await dispatcher.submit("a", 4) == (4,)
    assert bot.batches == [[1], [2, 3], [4]]


async def test_the_error_of_a_run_that_no_one_waits_for_is_logged(caplog):
    bot = Bot(1, error=OSError("the model is down"))
    async with chat(bot) as dispatcher:
        dispatcher.submit("a", 1)
        dispatcher.submit("a", 2)
        await anyio.sleep(2)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "session 'a' failed" in record.message
    assert "OSError: the model is down" in record.message
    assert record.exc_info is not None
    assert record.exc_info[1] is bot.error
    assert record.session == "a"
    assert record.run_id


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"run": "reply"}, TypeError, "an async function that takes a list of messages"),
        ({"quiet": -1}, ValueError, "quiet must be at least 0 seconds, not -1"),
        ({"max_wait": float("nan")}, ValueError, "max_wait must be at least 0"),
        ({"stop_grace": -0.1}, ValueError, "stop_grace must be at least 0"),
        ({"max_pending": 0}, ValueError, "max_pending must be at least 1"),
        ({"max_sessions": 0}, ValueError, "max_sessions must be at least 1"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"on_busy": "wait"}, ValueError, "on_busy must be 'queue', 'interrupt' or 'reject'"),
    ],
)
async def test_wrong_settings_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        ChatDispatcher(**{"run": Bot().reply, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"session_key": []}, TypeError, "unhashable"),
        ({"run": 3}, TypeError, "an async function"),
        ({"deadline": "soon"}, TypeError, "current_time"),
        ({"deadline": float("nan")}, ValueError, "nan"),
    ],
)
async def test_wrong_submissions_are_refused(arguments, error, says):
    async with chat(Bot()) as dispatcher:
        with pytest.raises(error, match=says):
            dispatcher.submit(**{"session_key": "a", "message": 1, **arguments})
        assert dispatcher.statistics().accepted == 0


async def test_an_error_that_several_wait_for_has_the_frames_of_its_own_way_only():
    frames = []
    bot = Bot()
    bot.error = ValueError("broken")

    async def wait(ticket):
        try:
            await ticket
        except ValueError as error:
            frames.append(len(traceback.extract_tb(error.__traceback__)))

    async with chat(bot) as dispatcher:
        for ticket in [dispatcher.submit("a", number) for number in range(3)] * 2:
            await wait(ticket)
    assert len(set(frames)) == 1
