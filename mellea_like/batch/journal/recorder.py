"""What a batch has of its journal: what came of items before, and a record of what comes now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.batch.identity import differing_part, label_of, row_of
from mellea_like.batch.item import ItemResult
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult
from mellea_like.core.trace import check_readable, error_from_dict
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.batch.item import Job
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.core.conversation import Action
    from mellea_like.core.slice import Slice

__all__ = ["EarlierRun", "ItemRecorder", "replayed"]

BLOCK = 128
"""How many items are looked up together."""


class EarlierRun:
    """The items of an earlier run, as those of this run come by in the same order."""

    def __init__(self, journal: OpenJournal) -> None:
        self._journal = journal
        self._known: dict[int, StoredItem] = {}
        self._looked_up = 0
        self._over = False

    async def find(self, item_id: int, digest: str) -> StoredItem | None:
        """Return what is known of the next item, if it was begun; refuse another one."""
        if item_id >= self._looked_up and not self._over:
            found = await self._journal.lookup(item_id, BLOCK)
            self._known = {stored.id: stored for stored in found}
            self._looked_up = item_id + BLOCK
            self._over = not found  # Items are begun in order, so there are no more.
        stored = self._known.pop(item_id, None)
        if stored is not None and stored.digest != digest:
            what = differing_part(stored.digest, digest)
            msg = (
                f"item {item_id} is not the one that the journal has there, for its {what} differs:"
                " a run is resumed with the same items in the same order; for others, begin another"
                " journal"
            )
            raise JournalError(msg)
        return stored

    async def check_end(self, count: int) -> None:
        """Refuse a source that ended after ``count`` items, if there were more of them."""
        if self._over:
            return
        if self._known or await self._journal.lookup(count, 1):
            msg = (
                f"the source ended after {count} items, and the journal has more: a run is resumed"
                " with the same items; for others, begin another journal"
            )
            raise JournalError(msg)


def replayed(
    stored: StoredItem, item: object, action: Action[Any] | None, format: Any
) -> ItemResult[Any]:
    """Return what came of an item that an earlier run finished, as it was."""
    record = stored.result
    assert record is not None  # noqa: S101 (the caller has looked)
    try:
        trace, raised = record["trace"], record["error"]
        result = None if trace is None else SamplingResult[Any].from_dict(trace, format)
        error = None if raised is None else error_from_dict(raised)
        usage = Usage(**record["usage"])
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the journal's record of item {stored.id} can't be read: {exc}"
        raise JournalError(msg) from exc
    if result is not None and format is None and action is not None:
        result = _parsed(result, action)
    return ItemResult(stored.id, item, result, error, stored.attempts, replayed=True, usage=usage)


def _parsed(result: SamplingResult[Any], action: Action[Any]) -> SamplingResult[Any]:
    """Read the winner's text as the action reads it: JSON may not hold what it makes of it."""
    index = result.best_index
    reply = result.best.generation if result.success else None
    if reply is None or not reply.parsed or index is None:
        return result
    try:
        value = action.parse(reply.text)
    except Exception:  # noqa: BLE001 (it read the reply once: this is not the same text)
        return result
    slices = list(result.slices)
    slices[index] = replace(slices[index], generation=replace(reply, value=value))
    return replace(result, slices=tuple(slices))


class ItemRecorder:
    """Writes an item that is being sampled into the journal.

    ``abort`` ends the batch when the journal has failed; ``usage`` is what the item's slices have
    cost so far.
    """

    def __init__(
        self, journal: OpenJournal, job: Job, format: Any, abort: Callable[[JournalError], None]
    ) -> None:
        self._journal = journal
        self._job = job
        self._format = format
        self._abort = abort
        self.usage = Usage()
        journal.begin(job.id, job.attempt, job.digest, label_of(job.item), row_of(job.item))

    def on_slice(self, slice_: Slice) -> None:
        """Note how an iteration ended; a parsed value that can't be read again is refused."""
        self.usage += slice_.usage
        try:
            self._check(slice_)
            self._journal.slice(self._job.id, self._job.attempt, slice_)
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

    async def finish(self, outcome: SamplingResult[Any] | Exception) -> None:
        """Keep what came of the item; return when it can't be lost any more."""
        await self._journal.finish(self._job.id, self._job.attempt, outcome)
