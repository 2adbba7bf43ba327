"""What the tests of the chat dispatcher share: a bot that writes down its runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from mellea_like.coalescing import ChatDispatcher, Ticket


@dataclass
class Ran:
    """One run: when it began, with what, and how it ended."""

    start: float
    messages: list[Any]
    end: float | None = None
    how: str = ""


@dataclass
class Bot:
    """Takes its time for an answer, a tuple of the messages, and never talks twice at a time."""

    seconds: float = 1.0
    cleanup: float = 0.0
    """For so long it goes on when it is cancelled."""
    error: Exception | None = None
    runs: list[Ran] = field(default_factory=list)
    active: int = 0
    on_run: Callable[[list[Any]], object] = lambda _: None

    async def reply(self, messages: list[Any]) -> tuple[Any, ...]:
        ran = Ran(anyio.current_time(), list(messages))
        self.runs.append(ran)
        self.active += 1
        assert self.active == 1, "two runs at a time"
        try:
            self.on_run(messages)
            try:
                await anyio.sleep(self.seconds)
            except anyio.get_cancelled_exc_class():
                ran.how = "cancelled"
                if self.cleanup:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(self.cleanup)
                raise
            if self.error is not None:
                ran.how = "failed"
                raise self.error
            ran.how = "answered"
            return tuple(messages)
        finally:
            ran.end = anyio.current_time()
            self.active -= 1

    @property
    def batches(self) -> list[list[Any]]:
        return [ran.messages for ran in self.runs]

    @property
    def starts(self) -> list[float]:
        return [round(ran.start, 6) for ran in self.runs]

    @property
    def ends(self) -> list[str]:
        return [ran.how for ran in self.runs]


@asynccontextmanager
async def chat(bot: Bot, **settings: Any) -> AsyncGenerator[ChatDispatcher[Any, Any]]:
    async with ChatDispatcher(bot.reply, **{"quiet": 0.05, **settings}) as dispatcher:
        yield dispatcher


async def until(at: float) -> None:
    await anyio.sleep_until(at)


async def outcome(ticket: Ticket[Any]) -> Any:
    """What a ticket gave: the answer, or the name of its error."""
    try:
        return await ticket
    except Exception as exc:  # noqa: BLE001 (that is what it gave)
        return type(exc).__name__


async def outcomes(*tickets: Ticket[Any]) -> list[Any]:
    return [await outcome(ticket) for ticket in tickets]


async def say(
    dispatcher: ChatDispatcher[Any, Any], *at_and_text: tuple[float, Any], key: Hashable = "a"
) -> list[Ticket[Any]]:
    """Hand in messages at their times; return their tickets."""
    tickets = []
    for at, text in at_and_text:
        await until(at)
        tickets.append(dispatcher.submit(key, text))
    return tickets
