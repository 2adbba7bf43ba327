"""Replies that no other item of a run has: a requirement that all items of the run share."""

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
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import SamplingResult
from mellea_like.core.serialization import recorded_requirement, slice_from_dict
from mellea_like.report.views import ItemView, SliceView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    from mellea_like.batch.item import Job, Paused
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate

__all__ = ["UNIQUE", "UniqueReplies", "normalised"]

UNIQUE = "unlike the replies to other items"
"""How the description of the requirement begins."""

DIGEST = 12
"""Bytes of a text's digest: among 10 million texts, two are the same by chance once in 10^15."""

BLOCK = 128
"""How many items of an earlier run are read together."""

_ITEM: ContextVar[int] = ContextVar("mellea_like_item")
"""The item that is being sampled."""


class Index(Protocol):
    """Finds replies that are alike, by the items and iterations that have them."""

    compares_values: bool
    """Whether typed values are compared, rather than the texts that they were read from."""

    def claim(self, item: int, iteration: int, reply: Any) -> int | None:
        """Note a normalised reply, unless one to another item is like it: return that item."""

    def release(self, item: int, iteration: int) -> None:
        """Forget a reply."""

    def settle(self, item: int) -> None:
        """Take note that none of an item's replies will be released any more."""


class UniqueReplies:
    """The replies that the items of a run have, or are about to have.

    The first reply to pass the check reserves its text; another item's that is like it fails. A
    reservation whose reply does not win its call is released. Draws of one item may be alike.

    Args:
        threshold: True, or 1.0, compares the values of a ``format`` by ``==``, and normalised
            texts without one; less is the Jaccard similarity from which on texts are alike.
        format: the type of the values; None for texts.
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
            return True, ""  # It says nothing yet.
        item, iteration = _ITEM.get(), current_iteration() or 0
        twin = self._index.claim(item, iteration, self._reply(candidate.text, candidate.value))
        if twin is not None:
            return False, f"it says the same as the reply to item {twin}"
        self._reserved[item].add(iteration)
        return True, ""

    def _reply(self, text: str, value: Any) -> Hashable:
        """Return the part of a reply that is compared, which is equal for equal replies."""
        if self._format is None or not self._index.compares_values:
            return normalised(text)
        return normalised(value) if isinstance(value, str) else _frozen(value)

    def _recorded(self, s: SliceView) -> Hashable:
        """Return the part of a recorded reply that is compared."""
        if self._format is None or not self._index.compares_values:
            return normalised(s.text or "")
        read = slice_from_dict(s.plain, self._format, Context(), (), recorded_requirement)
        return self._reply(read.text, read.value)

    @contextmanager
    def item(self, job: Job, listener: Callable[[Slice], None] | None) -> Generator[Sampling]:
        """Have the current task sample an item, and release the replies it didn't win with."""
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
                waits = bool(kept)  # Replies that passed compete in a later round.
            for iteration in reserved - kept:
                self.release(job.id, iteration)
            if not waits:
                del self._reserved[job.id]
                self._index.settle(job.id)

    def release(self, item: int, iteration: int) -> None:
        """Forget a reply, if it has reserved its text."""
        reserved = self._reserved[item]
        if iteration in reserved:
            reserved.remove(iteration)
            self._index.release(item, iteration)

    async def load(self, journal: OpenJournal) -> None:
        """Reserve the replies that items won with earlier, then those of items that were killed.

        If an item was killed several times, its last attempt counts. A reply that another item
        has reserved by now stays with that item.
        """
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
    """Releases the text of each slice of an item that did not pass, in the step that records it.

    ``outcome`` is what came of the item.
    """

    def __init__(
        self, replies: UniqueReplies, item: int, then: Callable[[Slice], None] | None
    ) -> None:
        self.outcome: SamplingResult[Any] | Paused | Exception | None = None
        self._replies = replies
        self._item = item
        self._then = then

    def __call__(self, slice_: Slice) -> None:
        """Hear how an iteration ended."""
        if not slice_.passed:
            self._replies.release(self._item, slice_.iteration)
        if self._then is not None:
            self._then(slice_)


class _Exact:
    """Replies that are the same when they are normalised; of a text, a digest is enough."""

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


def normalised(text: str) -> str:
    """Leave out of a text what does not make it another one: case, spaces, and forms of letters.

    That is Unicode's compatibility form (NFKC), case-folded, with single blanks between words.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _frozen(value: Any) -> Any:
    """Return something with a hash that equals another one's if the two values are equal."""
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
    hash(value)  # A type of the user's own needs one: its exception makes the draw an errored one.
    return value
