"""Closes the async generators that a library leaves suspended.

A generator that nobody runs to its end is closed by the event loop when it is garbage: asyncio
starts a task for each, and trio warns. The SDKs of providers leave several behind with each reply.
What is awaited through `Generators` has those that it begins closed by the task that began them.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Generator

__all__ = ["Generators"]

T = TypeVar("T")


class Generators:
    """The async generators that some steps of a task have begun."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: list[AsyncGenerator[Any]] = []

    def awaited(self, step: Awaitable[T]) -> Awaitable[T]:
        """Make a step's awaitable that keeps the generators which it begins."""
        return _Step(step, self)

    async def aclose(self) -> None:
        """Close them all, the outermost first."""
        for generator in self._begun:
            with suppress(Exception):
                await generator.aclose()
        self._begun.clear()

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what this thread begins meanwhile: nothing may be awaited in here."""
        before = sys.get_asyncgen_hooks()

        def first(generator: AsyncGenerator[Any]) -> None:
            if before.firstiter is not None:
                before.firstiter(generator)
            self._begun = [each for each in self._begun if each.ag_frame is not None]  # type: ignore[attr-defined]
            self._begun.append(generator)

        sys.set_asyncgen_hooks(firstiter=first)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*before)


class _Step(Generic[T]):
    """An awaitable that has hooks while its code runs, and not while it waits."""

    __slots__ = ("_generators", "_step")

    def __init__(self, step: Awaitable[T], generators: Generators) -> None:
        self._step = step
        self._generators = generators

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._step.__await__()
        go_on: Any = inner.send
        given: Any = None
        while True:
            with self._generators.kept():
                try:
                    waits_for = go_on(given)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
            try:
                given = yield waits_for
                go_on = inner.send
            except BaseException as exc:  # noqa: BLE001 (it is thrown where the step waits)
                go_on, given = inner.throw, exc
