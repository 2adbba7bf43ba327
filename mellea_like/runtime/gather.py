"""Run a function on each item of a sequence, a limited number at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


T = TypeVar("T")
R = TypeVar("R")


async def gather(items: Sequence[T], concurrency: int, run: Callable[[T], Awaitable[R]]) -> list[R]:
    """Run a function on each item; return the results in order, or raise the first error."""
    results: dict[int, R] = {}
    raised: list[Exception] = []
    places = iter(range(len(items)))

    async def work() -> None:
        for i in places:
            try:
                results[i] = await run(items[i])
            except Exception as exc:  # noqa: BLE001 (raised below, outside of the task group)
                raised.append(exc)
                tasks.cancel_scope.cancel("another item raised")

    async with anyio.create_task_group() as tasks:
        for _ in range(min(concurrency, len(items))):
            tasks.start_soon(work)
    if raised:
        raise raised[0]
    return [results[i] for i in range(len(items))]
