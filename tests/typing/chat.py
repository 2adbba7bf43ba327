"""What type checkers know of the chat dispatcher; they check this file, and nothing runs it."""

from __future__ import annotations

from typing import assert_type

from mellea_like.coalescing import ChatDispatcher, ChatPhase, StopReport, Ticket, joined


async def count(messages: list[str]) -> int:
    return len(messages)


async def measure(text: str) -> int:
    return len(text)


async def talk() -> None:
    async with ChatDispatcher(count, quiet=0.1, on_busy="interrupt") as dispatcher:
        assert_type(dispatcher, ChatDispatcher[str, int])
        ticket: Ticket[int] = dispatcher.submit("key", "text", deadline=3.0)
        assert_type(await ticket, int)
        assert_type(await dispatcher.submit(("any", "key"), "text", run=count), int)
        assert_type(await dispatcher.stop("key"), StopReport)
        assert_type(dispatcher.phase("key"), ChatPhase)
        _ = dispatcher.submit("key", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(ChatDispatcher(joined(measure)), ChatDispatcher[str, int])
    ChatDispatcher(measure)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
