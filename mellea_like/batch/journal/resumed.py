"""What the journal knows of items: whether they are the same, and what came of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.batch.identity import differing_part
from mellea_like.batch.item import ItemResult
from mellea_like.core.generation import Usage
from mellea_like.core.recorded import error_from_dict
from mellea_like.core.result import SamplingResult
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from mellea_like.batch.store import Store, Stored
    from mellea_like.core.action import Action

__all__ = ["Resumed", "replayed"]

BLOCK = 128
"""How many items are looked up together."""


class Resumed:
    """The items of an earlier run, as those of this run come by in the same order.

    Args:
        store: the open journal.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, Stored] = {}
        self._looked_up = 0
        self._over = False

    async def find(self, item_id: int, digest: str) -> Stored | None:
        """Look an item up.

        Args:
            item_id: its position; the next one at each call.
            digest: its digest.

        Returns:
            What is known of it; None where it is new.

        Raises:
            JournalError: the journal has another item there, or can't be read.
        """
        if item_id >= self._looked_up and not self._over:
            found = await self._store.lookup(item_id, BLOCK)
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
        """Make sure that the journal has no more items than the source.

        Args:
            count: how many items the source gave.

        Raises:
            JournalError: it has more, or can't be read.
        """
        if self._over:
            return
        if self._known or await self._store.lookup(count, 1):
            msg = (
                f"the source ended after {count} items, and the journal has more: a run is resumed"
                " with the same items; for others, begin another journal"
            )
            raise JournalError(msg)


def replayed(
    stored: Stored, item: object, action: Action[Any] | None, format: Any
) -> ItemResult[Any]:
    """Return what came of an item in an earlier run.

    Args:
        stored: what the journal has; with a result.
        item: the item.
        action: what was asked for it.
        format: the type of the parsed values.

    Returns:
        The outcome, as it was.

    Raises:
        JournalError: what the journal has can't be read.
    """
    written = stored.result
    assert written is not None  # noqa: S101 (the caller has looked)
    try:
        trace, raised = written["trace"], written["error"]
        result = None if trace is None else SamplingResult[Any].from_dict(trace, format)
        error = None if raised is None else error_from_dict(raised)
        usage = Usage(**written["usage"])
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the journal's record of item {stored.id} can't be read: {exc}"
        raise JournalError(msg) from exc
    if result is not None and format is None and action is not None:
        result = _parsed(result, action)
    return ItemResult(stored.id, item, result, error, stored.attempts, replayed=True, usage=usage)


def _parsed(result: SamplingResult[Any], action: Action[Any]) -> SamplingResult[Any]:
    """Read the winner's text as the action reads it: JSON has no words for what it makes of it."""
    reply = result.best.generation if result.success else None
    if reply is None or not reply.parsed or result.best_index is None:
        return result
    try:
        value = action.parse(reply.text)
    except Exception:  # noqa: BLE001 (it read the reply once: this is not the same text)
        return result
    won = replace(result.best, generation=replace(reply, value=value))
    slices = list(result.slices)
    slices[result.best_index] = won
    return replace(result, slices=tuple(slices))
