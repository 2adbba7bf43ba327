"""The source of a batch's items, which can be iterated over several times."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sized
from contextlib import asynccontextmanager
from functools import partial
from inspect import isasyncgen, isgenerator
from typing import TYPE_CHECKING, Any, Final

import anyio

from mellea_like.errors import MelleaError
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

END: Final = object()
"""The object that the function from `Source.once` returns after the last item."""


class Source:
    """Iterates over the items of a batch, once for each round.

    If the iteration raises, the items end there, and ``error`` is the exception.
    """

    def __init__(self, items: object) -> None:
        if isinstance(items, str | bytes | bytearray):
            kind = type(items).__name__
            msg = f"items must be an iterable of items, not a single {kind}: put it in a list"
            raise TypeError(msg)
        if not isinstance(items, AsyncIterable | Iterable):
            msg = f"items must be an iterable or an async iterable, not {items!r}"
            raise TypeError(msg)
        self._items: Any = items
        self.error: Exception | None = None
        """The first error that iterating over the items raised; None if there was none."""
        self.total = len(items) if isinstance(items, Sized) else None

    @asynccontextmanager
    async def once(self) -> AsyncGenerator[Callable[[], Awaitable[Any]]]:
        """Iterate once: yield an async function that returns the next item, or `END` at the end."""
        items = _each(self._items)
        try:
            yield partial(self._next, items)
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await items.aclose()
            except Exception as exc:  # noqa: BLE001 (nothing more is wanted of it)
                warn("closing the source of the batch failed: %s: %s", type(exc).__name__, exc)

    def ended_early(self, taken: int, position: int) -> Exception:
        """Return the error of a round with fewer items than the first one; keep it as ``error``."""
        if self.error is None:
            msg = (
                f"the source of the batch gave {taken} items in the first round, but only"
                f" {position} in a later one"
            )
            self.error = MelleaError(msg)
        return self.error

    async def _next(self, items: AsyncGenerator[Any]) -> Any:
        try:
            with foreign("the source of the batch", MelleaError):
                return await anext(items, END)
        except Exception as exc:  # noqa: BLE001 (the source's; the iteration raises it at its end)
            self.error = self.error or exc
        return END


async def _each(items: Any) -> AsyncGenerator[Any]:
    """Yield the items of a plain or async source; if it is a generator, close it afterwards."""
    source = aiter(items) if hasattr(items, "__aiter__") else iter(items)
    try:
        if hasattr(items, "__aiter__"):
            async for item in source:
                yield item
        else:
            for item in source:
                yield item
    finally:
        if isasyncgen(source):
            await source.aclose()
        elif isgenerator(source):
            source.close()
