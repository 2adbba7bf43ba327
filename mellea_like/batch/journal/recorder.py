"""How an item that is being sampled gets into the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.batch.identity import label_of, row_of
from mellea_like.core.generation import Usage
from mellea_like.core.trace import check_readable
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.batch.store import Store
    from mellea_like.batch.work import Job
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["Keeping"]


class Keeping:
    """Writes an item that is being sampled into the journal.

    Args:
        store: the open journal.
        job: the item.
        format: the type of the parsed values, or None.
        abort: ends the batch, where the journal has failed.

    Attributes:
        usage: what the item's slices have cost so far.
    """

    def __init__(
        self, store: Store, job: Job, format: Any, abort: Callable[[JournalError], None]
    ) -> None:
        self._store = store
        self._job = job
        self._format = format
        self._abort = abort
        self.usage = Usage()
        store.begin(job.id, job.attempt, job.digest, label_of(job.item), row_of(job.item))

    def on_slice(self, slice_: Slice) -> None:
        """Note how an iteration ended.

        Args:
            slice_: its record.

        Raises:
            JournalError: the journal has failed, or is closed; or a parsed value could not be read
                from it again.
        """
        self.usage += slice_.usage
        try:
            self._check(slice_)
            self._store.slice(self._job.id, self._job.attempt, slice_)
        except JournalError as exc:
            self._abort(exc)  # The call may be won already, and would only log it.
            raise

    def _check(self, slice_: Slice) -> None:
        if self._format is None or slice_.generation is None:
            return
        try:
            check_readable(slice_.generation, self._format)
        except ValueError as exc:
            msg = (
                f"item {self._job.id} can't be kept in a journal: {exc}; have the backend give the"
                " reply as the text that the format reads, or run without a journal"
            )
            raise JournalError(msg) from exc

    async def finish(self, result: SamplingResult[Any] | None, error: Exception | None) -> None:
        """Keep what came of the item; return when it can't be lost any more.

        Args:
            result: the record of its call, or None.
            error: what the call raised, or None.

        Raises:
            JournalError: it could not be written.
        """
        await self._store.finish(self._job.id, self._job.attempt, result, error)
