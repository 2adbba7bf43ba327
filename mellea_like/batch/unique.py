"""Unique replies: a requirement that no other item of the run has the same reply."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from mellea_like.core.argument_checks import real_number
from mellea_like.core.backend import current_iteration
from mellea_like.core.conversation import Context
from mellea_like.core.recorded import recorded_requirement
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import SamplingResult
from mellea_like.core.serialization import slice_from_dict
from mellea_like.report.views import ItemView, SliceView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    from mellea_like.batch.item import Job, Paused
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate

__all__ = ["UNIQUE", "UniqueReplies", "normalized"]

UNIQUE = "unlike the replies to other items"
"""The beginning of the uniqueness requirement's description."""

DIGEST = 12
"""The number of bytes in the digest of a text.

With 10 million texts, the chance that two different texts have the same digest is 1 in 10^15.
"""

BLOCK = 128
"""The number of items to read from the journal at a time."""

_ITEM: ContextVar[int] = ContextVar("mellea_like_item")
"""The id of the item that is being sampled."""


class Index(Protocol):
    """An index of replies, which finds an item whose reply is equal or similar to a new one."""

    compares_values: bool
    """Whether the index compares parsed values instead of texts."""

    def claim(self, item: int, iteration: int, reply: Any) -> int | None:
        """Add a normalized reply and return None.

        If another item has a similar reply, add nothing and return that item's id.
        """

    def release(self, item: int, iteration: int) -> None:
        """Remove the reply that an item made in an iteration."""

    def settle(self, item: int) -> None:
        """Keep the item's remaining replies for good, and drop the data needed to remove them."""


class UniqueReplies:
    """Makes sure that different items of a run don't win with the same reply.

    A reply reserves its text when ``requirement`` checks it. While the text is reserved, the same
    or similar replies to other items fail. The reservation ends if the reply fails another
    requirement or doesn't win its call.
    """

    def __init__(self, threshold: float = True, format: Any = None) -> None:  # noqa: FBT002 (a share, too)
        if threshold is not True:
            real_number("sample_many: unique", threshold, over=0.0, most=1.0)
        self._index: Index = _Exact()
        self._format = format
        about = f"{UNIQUE} (the same text)"
        if threshold < 1:
            from mellea_like.batch.minhash import NearTexts  # noqa: PLC0415 (an extra)

            self._index = NearTexts(threshold)
            about = f"{UNIQUE} (similarity under {threshold:g})"
        self._reserved: dict[int, set[int]] = {}
        self.requirement = Requirement(
            about, self._check, name="unique", inline=True, check_only=True, version=about
        )

    def _check(self, candidate: Candidate) -> tuple[bool, str]:
        if candidate.tool_calls:
            return True, ""  # It has no text yet.
        item, iteration = _ITEM.get(), current_iteration() or 0
        twin = self._index.claim(item, iteration, self._reply(candidate.text, candidate.value))
        if twin is not None:
            return False, f"it says the same as the reply to item {twin}"
        self._reserved[item].add(iteration)
        return True, ""

    def _reply(self, text: str, value: Any) -> Hashable:
        """Return the key by which a reply is compared; equal replies have equal keys."""
        if self._format is None or not self._index.compares_values:
            return normalized(text)
        return normalized(value) if isinstance(value, str) else _frozen(value)

    def _recorded(self, s: SliceView) -> Hashable:
        """Return the key by which a recorded reply is compared."""
        if self._format is None or not self._index.compares_values:
            return normalized(s.text or "")
        read = slice_from_dict(s.plain, self._format, Context(), (), recorded_requirement)
        return self._reply(read.text, read.value)

    @contextmanager
    def item(self, job: Job, listener: Callable[[Slice], None] | None) -> Generator[Sampling]:
        """Enter a block that samples an item; its end releases replies that can't win any more.

        Yields:
            The listener for the item's draws. The block sets its ``outcome``.
        """
        _ITEM.set(job.id)
        reserved = self._reserved.setdefault(job.id, set())
        for iteration in reserved - {s.iteration for s in job.earlier}:
            self.release(job.id, iteration)
        sampling = Sampling(self, job.id, listener)
        try:
            yield sampling
        finally:
            kept: set[int] = set()
            waits, outcome = False, sampling.outcome
            if isinstance(outcome, SamplingResult):
                kept = {winner.iteration for winner in outcome.winners}
            elif outcome is not None and not isinstance(outcome, Exception):
                kept = {s.iteration for s in outcome.slices if s.passed}
                waits = bool(kept)  # Replies that passed may still win in a later round.
            for iteration in reserved - kept:
                self.release(job.id, iteration)
            if not waits:
                del self._reserved[job.id]
                self._index.settle(job.id)

    def release(self, item: int, iteration: int) -> None:
        """Release the text of a reply, if it is reserved."""
        reserved = self._reserved[item]
        if iteration in reserved:
            reserved.remove(iteration)
            self._index.release(item, iteration)

    async def load(self, journal: OpenJournal) -> None:
        """Reserve the winning replies in a journal, then unfinished items' replies that passed."""
        killed: list[tuple[int, int, Hashable]] = []
        first = 0
        while found := await journal.lookup(first, BLOCK):
            for stored in found:
                if stored.result is None:
                    killed += [
                        (stored.id, s.iteration, self._recorded(s))
                        for s in (SliceView(plain, prompt=0) for _, plain in stored.slices)
                        if s.passed and s.text is not None and s.tool_calls is None
                    ]
                elif (trace := ItemView(stored.result).trace) is not None:
                    for won in (s for s in trace.winners if s.tool_calls is None):
                        self._index.claim(stored.id, won.iteration, self._recorded(won))
                    self._index.settle(stored.id)
            first = found[-1].id + 1
        for item, iteration, reply in reversed(killed):
            reserved = self._reserved.setdefault(item, set())
            if iteration in reserved:
                continue
            if self._index.claim(item, iteration, reply) is None:
                reserved.add(iteration)


class Sampling:
    """A listener for an item's draws, which releases the text of each draw that didn't pass."""

    def __init__(
        self, replies: UniqueReplies, item: int, then: Callable[[Slice], None] | None
    ) -> None:
        self.outcome: SamplingResult[Any] | Paused | Exception | None = None
        self._replies = replies
        self._item = item
        self._then = then

    def __call__(self, slice_: Slice) -> None:
        """Release the text of a draw that didn't pass; then call the next listener, if any."""
        if not slice_.passed:
            self._replies.release(self._item, slice_.iteration)
        if self._then is not None:
            self._then(slice_)


class _Exact:
    """An `Index` that finds replies with equal normalized forms. It keeps only digests of texts."""

    compares_values = True

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}
        self._claimed: dict[int, dict[int, Hashable]] = {}

    def claim(self, item: int, iteration: int, reply: Hashable) -> int | None:
        if isinstance(reply, str):
            encoded = reply.encode("utf-8", "surrogatepass")
            reply = hashlib.blake2b(encoded, digest_size=DIGEST).digest()
        holder = self._holders.setdefault(reply, item)
        if holder != item:
            return holder
        self._claimed.setdefault(item, {})[iteration] = reply
        return None

    def release(self, item: int, iteration: int) -> None:
        claimed = self._claimed[item]
        reply = claimed.pop(iteration)
        if reply not in claimed.values():
            del self._holders[reply]

    def settle(self, item: int) -> None:
        self._claimed.pop(item, None)


def normalized(text: str) -> str:
    """Return a text in Unicode's form NFKC, case-folded, with single spaces between words."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _frozen(value: Any) -> Any:
    """Return a hashable stand-in for a value; equal values have equal stand-ins."""
    parts: Any = value
    if isinstance(value, BaseModel):
        hidden = value.__pydantic_extra__, value.__pydantic_private__
        return type(value), _frozen(value.__dict__), *map(_frozen, hidden)
    if isinstance(value, dict):
        return dict, frozenset((key, _frozen(part)) for key, part in parts.items())
    if isinstance(value, list | tuple):
        return list if isinstance(value, list) else tuple, *map(_frozen, parts)
    if isinstance(value, set):
        return frozenset(parts)
    if is_dataclass(value) and type(value).__hash__ is None:
        return type(value), *(_frozen(getattr(value, f.name)) for f in fields(value) if f.compare)
    hash(value)  # A user's type needs a hash; if it has none, the draw errors.
    return value
