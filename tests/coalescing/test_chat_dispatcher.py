"""One conversation, one run at a time: what the chat dispatcher does with messages, and when."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import anyio
import pytest
from chat_kit import Bot, chat, outcome, outcomes, say, until
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like.coalescing import ChatDispatcher, ChatPhase, StopReport, joined
from mellea_like.errors import QueueFull, Refused, Stopped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


# --- the known shapes -------------------------------------------------------------------------


async def test_three_messages_at_0_20_and_300_ms_with_quiet_50_ms_and_a_150_ms_run_make_two_runs():
    bot = Bot(0.15)
    async with chat(bot, quiet=0.05) as dispatcher:
        tickets = await say(dispatcher, (0.0, "one"), (0.02, "two"), (0.3, "three"))
        assert await outcomes(*tickets) == [("one", "two"), ("one", "two"), ("three",)]
    assert bot.batches == [["one", "two"], ["three"]]
    assert bot.starts == [0.07, 0.35]


async def test_two_messages_during_a_run_make_one_more():
    bot = Bot(0.15)
    async with chat(bot, quiet=0.05) as dispatcher:
        tickets = await say(dispatcher, (0.0, "one"), (0.1, "two"), (0.12, "three"))
        assert await outcomes(*tickets) == [("one",), ("two", "three"), ("two", "three")]
    assert bot.batches == [["one"], ["two", "three"]]
    assert bot.starts == [0.05, 0.2], "the second begins when the first ends, without a window"


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


# --- the window -------------------------------------------------------------------------------


async def test_no_more_runs_are_active_than_may_and_sessions_wait_in_line():
    active, most, order = 0, 0, []

    async def reply(messages: list[str]) -> None:
        nonlocal active, most
        order.append(messages)
        active += 1
        most = max(most, active)
        await anyio.sleep(1)
        active -= 1

    async with ChatDispatcher(reply, quiet=0.05, concurrency=2) as dispatcher:
        for key in "abcde":
            dispatcher.submit(key, key)
            await anyio.sleep(0.01)
        await until(0.5)
        assert dispatcher.statistics().running == 2
        dispatcher.submit("c", "c again")
        await dispatcher.stop("d")
    assert most == 2
    assert order == [["a"], ["b"], ["c", "c again"], ["e"]]


# --- run functions ----------------------------------------------------------------------------


async def test_joined_hands_over_one_text_and_makes_equal_functions_of_equal_ones():
    async def reply(text: str) -> str:
        return text.upper()

    async with ChatDispatcher(joined(reply), quiet=0.05) as dispatcher:
        first = dispatcher.submit("a", "hello")
        dispatcher.submit("a", "are you there?", run=joined(reply))
        assert await first == "HELLO\n\nARE YOU THERE?"
    assert joined(reply) == joined(reply)
    assert joined(reply) != joined(Bot().reply)


async def test_a_run_gets_a_list_of_its_own():
    async def reply(messages: list[int]) -> int:
        messages.clear()
        return len(messages)

    async with ChatDispatcher(reply, quiet=0.05) as dispatcher:
        assert await outcomes(dispatcher.submit("a", 1), dispatcher.submit("a", 2)) == [0, 0]


# --- failures ---------------------------------------------------------------------------------


async def test_a_failed_run_settles_its_tickets_with_its_error_and_the_pending_batch_still_runs():
    bot = Bot(0.15, error=OSError("the model is down"))
    async with chat(bot) as dispatcher:
        tickets = await say(dispatcher, (0.0, 1), (0.01, 2), (0.1, 3))
        for ticket in tickets[:2]:
            with pytest.raises(OSError, match="down") as caught:
                await ticket
            assert caught.value is bot.error
        bot.error = None
        assert await tickets[2] == (3,)
    assert bot.batches == [[1, 2], [3]]
    figures = dispatcher.statistics()
    assert (figures.answered, figures.failed, figures.dropped) == (1, 2, 0)


async def test_a_run_function_that_is_not_async_fails_its_messages_and_says_so():
    def reply(messages: list[Any]) -> str:
        return "now"

    async with ChatDispatcher(reply, quiet=0.05) as dispatcher:  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"a run function is async, but .* returned str"):
            await dispatcher.submit("a", 1)


# --- stops ------------------------------------------------------------------------------------


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
        with pytest.raises(Refused, match="stuck: its run was cancelled and has not ended"):
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


async def test_a_run_that_answers_although_it_was_stopped_is_not_heard():
    bot = Bot(1, stubborn=True)
    async with chat(bot) as dispatcher:
        [ticket] = await say(dispatcher, (0, 1))
        await until(0.5)
        assert (await dispatcher.stop("a")).cancelled
        assert await outcome(ticket) == "Stopped"
        assert await dispatcher.submit("a", 2) == (2,)


async def test_a_run_may_stop_its_own_session():
    async def reply(messages: list[Any]) -> None:
        await dispatcher.stop("a")

    async with ChatDispatcher(reply, quiet=0.05) as dispatcher:
        assert await outcome(dispatcher.submit("a", 1)) == "Stopped"
        assert anyio.current_time() == pytest.approx(0.05)


# --- policies ---------------------------------------------------------------------------------


async def test_with_reject_a_message_during_a_run_is_refused_and_harms_nothing():
    bot = Bot(1)
    async with chat(bot, on_busy="reject") as dispatcher:
        tickets = await say(dispatcher, (0, 1), (0.02, 2))
        await until(0.5)
        with pytest.raises(Refused, match="busy"):
            dispatcher.submit("a", 3)
        assert await outcomes(*tickets) == [(1, 2), (1, 2)]
        assert await dispatcher.submit("a", 4) == (4,)
    assert bot.batches == [[1, 2], [4]]


async def test_with_interrupt_a_message_cancels_the_run_and_both_are_answered_together():
    bot = Bot(1)
    async with chat(bot, quiet=0.2, on_busy="interrupt") as dispatcher:
        tickets = await say(dispatcher, (0, 1), (0.5, 2))
        assert await outcomes(*tickets) == [(1, 2), (1, 2)]
    assert bot.batches == [[1], [1, 2]]
    assert bot.ends == ["cancelled", "answered"]
    assert bot.starts == [0.2, 0.7]


# --- room -------------------------------------------------------------------------------------


async def test_submit_raises_where_there_is_no_room():
    bot = Bot(1)
    async with chat(bot, max_pending=2) as dispatcher:
        await say(dispatcher, (0, 1), (0.5, 2), (0.6, 3))
        with pytest.raises(QueueFull, match=r"session 'a', since 2 of its messages wait.*max_pend"):
            dispatcher.submit("a", 4)
        await until(1.06)
        assert await dispatcher.submit("a", 4) == (4,)
    assert bot.batches == [[1], [2, 3], [4]]


async def test_no_more_sessions_have_work_than_may():
    bots = {key: Bot(1) for key in "abcd"}
    async with chat(Bot(), max_sessions=2) as dispatcher:

        def submit(key: str) -> Any:
            return dispatcher.submit(key, key, run=bots[key].reply)

        submit("a")
        await anyio.sleep(0.5)
        submit("b")
        with pytest.raises(QueueFull, match=r"all 2 sessions have work to do.*max_sessions"):
            submit("c")
        await until(1.06)
        assert dispatcher.statistics().sessions == 1, "what has ended is forgotten"
        assert not (await dispatcher.stop("a")).known
        assert await submit("c") == ("c",)


# --- errors that no one sees ------------------------------------------------------------------


async def test_a_message_that_is_queued_is_logged_with_its_session_and_the_depth(caplog):
    caplog.set_level("DEBUG", "mellea_like")
    async with chat(Bot(1)) as dispatcher:
        await say(dispatcher, (0, "one"), (0.6, "two"), (0.7, "three"))
    records = [record for record in caplog.records if hasattr(record, "depth")]
    assert [(record.session, record.depth) for record in records] == [("a", 1), ("a", 1), ("a", 2)]
    assert {record.levelname for record in records} == {"DEBUG"}
    assert records[2].getMessage() == "session 'a' is running: 2 waiting"


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


@pytest.mark.parametrize("watched", [False, True])
async def test_a_message_dropped_that_no_one_waits_for_is_logged(caplog, watched):
    async with chat(Bot(1)) as dispatcher:
        await say(dispatcher, (0, 1))
        await until(0.5)
        ticket = dispatcher.submit("a", 2, deadline=0.7)
        if watched:
            assert await outcome(ticket) == "Expired"
        await until(1)
    assert ("1 messages that no one waits for were dropped" in caplog.text) == (not watched)


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"run": "reply"}, TypeError, "an async function that gets a list of messages"),
        ({"quiet": -1}, ValueError, "quiet is at least 0 seconds, not -1"),
        ({"quiet": "1"}, TypeError, "quiet is a number of seconds"),
        ({"max_wait": float("nan")}, ValueError, "max_wait is at least 0"),
        ({"stop_grace": True}, TypeError, "stop_grace is a number"),
        ({"stop_grace": -0.1}, ValueError, "stop_grace is at least 0"),
        ({"max_pending": 0}, ValueError, "max_pending is at least 1"),
        ({"max_sessions": 1.5}, TypeError, "max_sessions is a whole number"),
        ({"concurrency": 0}, ValueError, "concurrency is at least 1"),
        ({"on_busy": "wait"}, ValueError, "on_busy is 'queue', 'interrupt' or 'reject'"),
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


async def test_a_key_that_can_not_be_shown_is_refused():
    class Key:
        def __repr__(self):
            raise ValueError("it is detached")

    async with chat(Bot()) as dispatcher:
        with pytest.raises(ValueError, match="it is detached"):
            dispatcher.submit(Key(), "hi")
        assert await dispatcher.submit("a", "hi") == ("hi",)


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
