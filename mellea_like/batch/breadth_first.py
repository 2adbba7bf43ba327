"""Items that wait for their next draw, and how they continue from a journal.

How a call with one lane continues depends only on the records of its draws, because `repair` is
pure. So an item can be set aside after any draw, and continued later from those records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.batch.journal.records import standing
from mellea_like.core.conversation import Context
from mellea_like.core.serialization import recorded_requirement, slice_from_dict
from mellea_like.core.slice import Outcome
from mellea_like.errors import JournalError
from mellea_like.sampling import features_of, why_not_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.batch.item import Job
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.prepare import Settings

__all__ = ["Waiting", "WaitingItem", "earlier_draws", "why_not_in_rounds"]

BLOCK = 64
"""The number of waiting items that are read from a journal together."""

KEPT = 4096
"""The number of waiting items whose calls stay in memory, about 3 KB each."""

_WITH_WORDS = (Outcome.FAILED.value, Outcome.PASSED.value)
_TO_GO_ON = (Outcome.FAILED, Outcome.ERRORED)


def why_not_in_rounds(settings: Settings, *, marks: bool = False) -> str | None:
    """Explain why a call can't be set aside between its draws and continued; None if it can.

    ``marks`` is whether the run stores the scores or weights that the selection gives to draws.
    """
    features = features_of(settings) | {"rounds": "order='breadth'"}
    if marks:
        features.pop("scored", None)
    return why_not_together(features)


class WaitingItem(NamedTuple):
    """An item that waits for its next draw, with its draws so far and its `Job`, if in memory."""

    id: int
    digest: str
    attempt: int
    slices: tuple[Slice, ...]
    job: Job | None = None


def earlier_draws(
    stored: StoredItem, format: Any, *, several: bool = False, broken: bool = False
) -> WaitingItem:
    """Return an unfinished item with the draws that it can continue from.

    Draws at the end of the record are left out if they were cancelled, passed, or had a permanent
    error: they must be repeated. With ``several``, a pass is kept, because the selection waits for
    more draws. With ``broken``, a permanent error is kept, because it ends only one stage of an
    escalation. All draws are left out if the journal lacks a text that a repair or a selection
    could need.
    """
    rows = standing(stored.slices)
    if any(body["text"] is None for _, body in rows if body["outcome"] in _WITH_WORDS):
        rows.clear()
    nothing = Context()
    try:
        slices = [
            slice_from_dict(body, format, nothing, (), recorded_requirement) for _, body in rows
        ]
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the journal's record of item {stored.id} can't be read: {exc!r}"
        raise JournalError(msg) from exc
    while slices and not (
        (several and slices[-1].passed)
        or (slices[-1].outcome in _TO_GO_ON and (broken or slices[-1].may_continue))
    ):
        slices.pop()
    # If draws of the last attempt are left out, the draws that replace them need a new attempt.
    kept = {id(body) for _, body in rows[: len(slices)]}
    void = any(n == stored.attempts and id(body) not in kept for n, body in stored.slices)
    attempt = stored.attempts + (void or not slices)
    return WaitingItem(stored.id, stored.digest, attempt, tuple(slices))


class Waiting:
    """The items that wait for their next draw, in memory or, if there are many, in the journal."""

    def __init__(
        self, journal: OpenJournal | None, earlier: Callable[[StoredItem], WaitingItem]
    ) -> None:
        self.count = 0
        self._journal = journal
        self._earlier = earlier
        self._here: dict[int, WaitingItem] = {}
        self._block: dict[int, WaitingItem] = {}
        self._looked_up = -1

    def add(self, item: WaitingItem, then: Callable[[JournalError | None], object]) -> None:
        """Add an item; ``then`` is called when it is stored, on disk or in memory."""
        self.count += 1
        room = len(self._here) < KEPT
        if self._journal is None:
            if not room and item.job is not None:
                item = item._replace(job=item.job._replace(call=None))
            self._here[item.id] = item
            then(None)
        else:
            if room:
                self._here[item.id] = item
            self._journal.pause(item.id, item.attempt, item.slices, then)

    def begin_round(self) -> None:
        """Prepare to look up all items once more, from the first."""
        self._looked_up = -1
        self._block.clear()

    async def find(self, item_id: int, draws: int | None = None) -> WaitingItem | None:
        """Remove and return a waiting item; None if it isn't waiting or hasn't had ``draws`` draws.

        Within a round, look up items in ascending order.
        """
        item = self._here.get(item_id)
        if item is None and self._journal is not None:
            if item_id > self._looked_up:
                await self._look_up(self._journal, item_id)
            item = self._block.get(item_id)
        if item is None or draws not in {None, len(item.slices)}:
            return None
        self._here.pop(item_id, None)
        self.count -= 1
        return item

    async def _look_up(self, journal: OpenJournal, item_id: int) -> None:
        found = await journal.unfinished(item_id, BLOCK)
        self._block = {stored.id: self._earlier(stored) for stored in found}
        self._looked_up = found[-1].id if len(found) == BLOCK else 2**63
