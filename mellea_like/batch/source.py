"""Taking items from whatever the user iterates over."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sized
from inspect import isasyncgen, isgenerator
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from mellea_like.errors import MelleaError
from mellea_like.runtime.native import cancel_requested

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["END", "Source"]


END: Final = object()
"""There is no further item."""


class Source:
    """The items of a batch, taken one by one, all by the same task."""

    def __init__(self, items: object) -> None:
        if isinstance(items, str | bytes | bytearray):
            kind = type(items).__name__
            msg = f"items are an iterable of items, not a lone {kind}: put it into a list"
            raise TypeError(msg)
        self._items: Any = items
        self._async: AsyncIterator[Any] | None = None
        self._sync: Iterator[Any] | None = None
        if not isinstance(items, AsyncIterable | Iterable):
            msg = f"items are an iterable or an async iterable, not {items!r}"
            raise TypeError(msg)
        self.total: int | None = len(items) if isinstance(items, Sized) else None

    async def take(self) -> Any:
        """Return the next item; `END` where there is none."""
        if self._sync is not None:
            return next(self._sync, END)
        if self._async is None:
            # Not before it is needed: an iterator may begin to work when it is made.
            if not hasattr(self._items, "__aiter__"):
                self._sync = cast("Iterator[Any]", iter(self._items))
                return next(self._sync, END)
            self._async = cast("AsyncIterator[Any]", aiter(self._items))
        try:
            return await anext(self._async, END)
        except anyio.get_cancelled_exc_class() as exc:
            if cancel_requested():
                raise
            msg = "the source of the batch was cancelled, though no one asked for that"
            raise MelleaError(msg) from exc

    async def close(self) -> None:
        """Close a generator, so that what it holds open is closed; nothing else is closed."""
        items: object = self._items
        if isasyncgen(items):
            with anyio.CancelScope(shield=True):
                await items.aclose()
        elif isgenerator(items):
            items.close()
