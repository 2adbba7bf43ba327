"""A chat dispatcher or one of its callers cancelled at every step, by every kind of cancellation.

Each scene runs again and again, cancelled at its first step, its second, and so on until it ends
before the cancellation comes: by a cancel scope on both loops, and on asyncio by ``task.cancel()``,
once and twice, and by the cancellation of every task at once, as at the end of a program.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from chat_kit import Bot, outcome, until
from leftovers import has_begun, running
from steps import Stepper, run_stepped

from mellea_like.coalescing import ChatDispatcher, Ticket
from mellea_like.errors import ShutdownError
from mellea_like.testing.virtual_clock import run_virtual

Dispatcher = ChatDispatcher[Any, Any]
Scene = Callable[[Dispatcher, list[Ticket[Any]]], Awaitable[None]]
SCENES: dict[str, tuple[Scene, Bot, dict[str, Any]]] = {}


def scene(bot: Bot, **settings: Any) -> Callable[[Scene], Scene]:
    def add(function: Scene) -> Scene:
        SCENES[function.__name__] = function, bot, settings
        return function

    return add


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "mellea_like")


@scene(Bot(1))
async def messages_gather_and_run_and_more_follow(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1), d.submit("a", 2), d.submit("b", 3, run=Bot(1).reply)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 4))
    await tickets[0]
    await tickets[3]


@scene(Bot(1, error=OSError("no")))
async def runs_fail(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1), d.submit("b", 2, run=Bot(1, error=OSError()).reply)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 3))
    await outcome(tickets[0])


@scene(Bot(1, cleanup=0.5))
async def a_session_is_stopped(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 2))
    await d.stop("a")
    tickets.append(d.submit("a", 3))


@scene(Bot(1, cleanup=3), stop_grace=1)
async def a_session_is_stuck(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1)]
    await anyio.sleep(0.5)
    await d.stop("a")
    await outcome(tickets[0])


@scene(Bot(1, cleanup=0.25), on_busy="interrupt")
async def a_run_is_interrupted(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 2))
    await tickets[0]


@scene(Bot(1))
async def it_drains_until_a_deadline(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1, deadline=anyio.current_time() + 0.75)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 2))
    await d.drain(anyio.current_time() + 1)


@scene(Bot(1, cleanup=0.25))
async def it_aborts(d: Dispatcher, tickets: Any) -> None:
    tickets += [d.submit("a", 1)]
    await anyio.sleep(0.5)
    tickets.append(d.submit("a", 2))
    await d.abort()


class Play:
    """One run of a scene, cancelled at a step."""

    def __init__(self, name: str, stepper: Stepper, mode: str) -> None:
        self.act, self.bot, settings = SCENES[name]
        self.bot.runs.clear()
        self.dispatcher: Dispatcher = ChatDispatcher(self.bot.reply, quiet=0.05, **settings)
        self.stepper = stepper
        self.mode = mode
        self.tickets: list[Ticket[Any]] = []
        self.before = running()
        self.scope = anyio.CancelScope()
        self.host: asyncio.Task[None] | None = None
        self.hit = self.cancelled = False

    async def run(self, at: int, again: int) -> bool:
        """Play it; return whether the step came before its end."""
        strikes = {at: self.strike, **({at + again: self.strike} if again else {})}
        if self.mode == "scope":
            await self.call(strikes)
        else:
            self.host = asyncio.get_running_loop().create_task(self.call(strikes))
            await asyncio.wait([self.host])
            self.host.result()
        assert running() <= self.before, "it left a task behind"
        if self.hit and self.mode != "scope":
            assert self.cancelled, "the cancellation was lost"
        return self.hit

    def strike(self) -> None:
        self.hit = True
        if self.mode == "scope":
            self.scope.cancel()
        elif self.mode == "everyone":
            for task in asyncio.all_tasks(asyncio.get_running_loop()):
                if id(task) not in self.before and has_begun(task):
                    task.cancel()
        else:
            assert self.host is not None
            self.host.cancel()

    async def call(self, strikes: dict[int, Callable[[], object]]) -> None:
        with self.scope:
            self.stepper.arm(strikes)
            try:
                async with self.dispatcher:
                    await self.act(self.dispatcher, self.tickets)
            except anyio.get_cancelled_exc_class():
                self.cancelled = True
                if self.mode == "scope":
                    raise
            finally:
                self.stepper.disarm()
                self.check()

    def check(self) -> None:
        """When the block has been left, everyone is settled and nothing runs."""
        assert all(ticket.done for ticket in self.tickets), "a ticket is not settled"
        assert all(ran.end is not None for ran in self.bot.runs), "a run goes on"
        figures = self.dispatcher.statistics()
        assert (figures.pending, figures.running) == (0, 0)
        assert figures.accepted == figures.answered + figures.failed + figures.dropped
        assert figures.accepted == len(self.tickets) or self.hit
        with pytest.raises(ShutdownError):
            self.dispatcher.submit("a", 9)


async def cancel_everywhere(name: str, mode: str, again: bool, stepper: Stepper) -> int:
    at = 1
    while True:
        try:
            if not await Play(name, stepper, mode).run(at, (1 + at % 7) if again else 0):
                return at
        except BaseException as exc:
            exc.add_note(f"{name}, {mode}: cancelled at step {at}")
            raise
        at += 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", SCENES)
def test_the_block_may_be_cancelled_at_any_step_by_a_scope(name, backend):
    assert run_stepped(partial(cancel_everywhere, name, "scope", False), backend) > 5


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("name", SCENES)
def test_the_block_may_be_cancelled_at_any_step_natively(name, again):
    assert run_stepped(partial(cancel_everywhere, name, "native", again), "asyncio") > 5


@pytest.mark.parametrize("name", SCENES)
def test_every_task_may_be_cancelled_at_once_at_any_step(name):
    assert run_stepped(partial(cancel_everywhere, name, "everyone", False), "asyncio") > 5


# --- a caller is cancelled, and the others don't notice ----------------------------------------


async def one_caller(stepper: Stepper, native: bool, at: int, again: int) -> bool:
    """Cancel a caller that waits for its answer; others share its session."""
    bot, mine = Bot(1), Bot(1)
    hit = False
    scope = anyio.CancelScope()
    host: list[asyncio.Task[None]] = []

    def strike() -> None:
        nonlocal hit
        hit = True
        (host[0] if native else scope).cancel()

    async def call(dispatcher: Dispatcher) -> None:
        with scope:
            stepper.arm({at: strike, **({at + again: strike} if again else {})})
            try:
                await checkpoint()
                await dispatcher.submit("a", "mine", run=mine.reply)
            finally:
                stepper.disarm()

    async with ChatDispatcher(bot.reply, quiet=0.05) as dispatcher:
        first = dispatcher.submit("a", "first")
        async with anyio.create_task_group() as tasks:
            if native:
                host.append(asyncio.get_running_loop().create_task(call(dispatcher)))
            else:
                tasks.start_soon(call, dispatcher)
            await until(anyio.current_time() + 0.04)
            last = dispatcher.submit("a", "last")
            assert "first" in await outcome(first)
            assert "last" in await outcome(last)
        if native:
            await asyncio.wait(host)
            assert host[0].cancelled() == hit
    figures = dispatcher.statistics()
    sent = mine.batches == [["mine"]]
    assert [text for texts in bot.batches for text in texts] == ["first", "last"]
    assert set(bot.ends + mine.ends) == {"answered"}
    assert sent or hit
    assert figures.answered == 2 + sent
    assert figures.accepted == figures.answered + figures.dropped
    return hit


async def one_caller_everywhere(native: bool, again: bool, stepper: Stepper) -> int:
    at = 1
    while await one_caller(stepper, native, at, (1 + at % 3) if again else 0):
        at += 1
    return at


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_caller_may_be_cancelled_at_any_step_by_a_scope(backend):
    assert run_stepped(partial(one_caller_everywhere, False, False), backend) > 5


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_caller_may_be_cancelled_at_any_step_natively(again):
    assert run_stepped(partial(one_caller_everywhere, True, again), "asyncio") > 5


# --- cancellations inside ------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True])
def test_s4_a_cancellation_that_no_one_asked_for_is_an_error_of_the_run(native):
    async def reply(messages: list[Any]) -> str:
        if messages == [1]:
            if not native:
                raise asyncio.CancelledError
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await checkpoint()
        return "fine"

    async def main() -> None:
        async with ChatDispatcher(reply, quiet=0.05) as dispatcher:
            with pytest.raises(RuntimeError, match="a cancellation that no one asked for"):
                await dispatcher.submit("a", 1)
            assert await dispatcher.submit("a", 2) == "fine"

    run_virtual(main)


def test_s4_an_interrupt_in_a_run_settles_everyone_and_goes_on():
    class Interrupt(BaseException):
        pass

    tickets: list[Any] = []

    async def reply(messages: list[Any]) -> str:
        raise Interrupt

    async def main() -> None:
        async with ChatDispatcher(reply, quiet=0.05) as dispatcher:
            tickets.append(dispatcher.submit("a", 1))
            await anyio.sleep(1)
            raise AssertionError("it was cancelled")

    for backend in ("asyncio", "trio"):
        with pytest.raises(BaseExceptionGroup) as caught:
            run_virtual(main, backend=backend)  # type: ignore[arg-type]
        assert caught.group_contains(Interrupt)
    assert all(ticket.done for ticket in tickets)


def test_messages_may_come_from_callbacks_where_there_is_no_task():
    async def reply(messages: list[Any]) -> list[Any]:
        await anyio.sleep(1)
        return messages

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tickets = []
        for quiet, expected in ((0.05, [[1, 2], [1, 2]]), (0, [[1, 2], [1, 2]])):
            async with ChatDispatcher(reply, quiet=quiet, on_busy="interrupt") as dispatcher:
                for after, text in ((0, 1), (0.5, 2)):
                    loop.call_later(
                        after,
                        lambda text=text: tickets.append(dispatcher.submit("a", text)),
                        context=contextvars.Context(),
                    )
                await anyio.sleep(0.6)
                assert [await ticket for ticket in tickets] == expected
            tickets.clear()

    run_virtual(main)
