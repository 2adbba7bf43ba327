"""What a batch wants of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["Keeper", "Store", "Stored"]


class Stored(Protocol):
    """What is known of an item that an earlier run had begun."""

    @property
    def id(self) -> int:
        """Its position in the source, from 0."""
        ...

    @property
    def digest(self) -> str:
        """What tells it from other items."""
        ...

    @property
    def attempts(self) -> int:
        """How often it was begun."""
        ...

    @property
    def result(self) -> Mapping[str, Any] | None:
        """What came of it; None where it was not finished."""
        ...


class Store(Protocol):
    """A journal that is open."""

    async def lookup(self, item_id: int, count: int, /) -> Sequence[Stored]:
        """Return what is known of the items from a position on; those not begun are missing."""
        ...

    def begin(self, item_id: int, attempt: int, digest: str, label: str, data: Any, /) -> None:
        """Note that an item is being sampled; never waits."""
        ...

    def slice(self, item_id: int, attempt: int, slice_: Slice, /) -> None:
        """Note how an iteration ended; never waits."""
        ...

    async def finish(
        self,
        item_id: int,
        attempt: int,
        result: SamplingResult[Any] | None,
        error: Exception | None,
        /,
    ) -> None:
        """Keep what came of an item; return when it can't be lost any more."""
        ...


class Keeper(Protocol):
    """A journal: opened for one run at a time."""

    def open(self, identity: Mapping[str, Any], /) -> AbstractAsyncContextManager[Store]:
        """Open it for a run, and make sure that it is this run's."""
        ...
