"""A journal for a batch on the command line, in which an error of the backend is not final."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mellea_like.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from mellea_like.batch.journal import Journal
    from mellea_like.batch.store import Store, Stored
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["PatientJournal"]


class PatientJournal:
    """A journal that does not keep what a backend's error made of an item.

    A server that was away for a minute, or a wrong key, says nothing about the item: a run that is
    resumed samples it again.

    Args:
        inner: the journal.
    """

    def __init__(self, inner: Journal) -> None:
        self._inner = inner

    @asynccontextmanager
    async def open(self, identity: Mapping[str, Any], /) -> AsyncGenerator[Store]:
        """Open it for a run.

        Args:
            identity: what the run is.

        Yields:
            The open journal.
        """
        async with self._inner.open(identity) as store:
            yield _PatientStore(store)


class _PatientStore:
    def __init__(self, inner: Store) -> None:
        self._inner = inner

    async def lookup(self, item_id: int, count: int, /) -> Sequence[Stored]:
        return await self._inner.lookup(item_id, count)

    def begin(self, item_id: int, attempt: int, digest: str, label: str, data: Any, /) -> None:
        self._inner.begin(item_id, attempt, digest, label, data)

    def slice(self, item_id: int, attempt: int, slice_: Slice, /) -> None:
        self._inner.slice(item_id, attempt, slice_)

    async def finish(
        self,
        item_id: int,
        attempt: int,
        result: SamplingResult[Any] | None,
        error: Exception | None,
        /,
    ) -> None:
        if not isinstance(error, BackendError):
            await self._inner.finish(item_id, attempt, result, error)
