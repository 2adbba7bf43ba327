"""Unique replies: a requirement that no other item of the run has the same reply."""

from __future__ import annotations

import hashlib
import unicodedata
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from mellea_like.core.argument_checks import real_number
from mellea_like.core.backend import current_iteration
from mellea_like.core.conversation import Context
from mellea_like.core.recorded import recorded_requirement
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import SamplingResult
from mellea_like.core.serialization import slice_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mellea_like.batch.item import Call, Job, TurnOutcome
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate
    from mellea_like.report.views import SliceView

UNIQUE = "unlike the replies to other items"
"""The beginning of the uniqueness requirement's description."""

DIGEST = 12
"""The bytes of a text's digest; among 10 million texts, a collision has a chance of 1 in 10^15."""

BLOCK = 128
"""The number of items to read from the journal at a time."""

_ITEM: ContextVar[int] = ContextVar("mellea_like_item")
"""The id of the item that is being sampled."""


class UniqueReplies:
    """Makes sure that different items of a run don't win with the same reply.

    A reply that ``requirement`` checks reserves its text, so that similar replies to other items
    fail. If it fails another requirement, or doesn't win its call, the reservation ends.
    """

    def __init__(self, threshold: float = True, format: Any = None) -> None:  # noqa: FBT002 (a share, too)
        if threshold is not True:
            real_number("sample_many: unique", threshold, over=0.0, most=1.0)
        self._index: Any = _Exact()
        self._format = format
        about = f"{UNIQUE} (the same text)"
        if threshold < 1:
            from mellea_like.batch.minhash import NearTexts  # noqa: PLC0415 (an extra)

            self._index = NearTexts(threshold)
            about = f"{UNIQUE} (similarity under {threshold:g})"
        self._reserved: dict[int, dict[int, Hashable]] = {}
        """The keys of each unfinished item's reserved replies, by iteration."""
        self.requirement = Requirement(
            about, self._check, name="unique", inline=True, check_only=True, version=about
        )

    def _check(self, candidate: Candidate) -> tuple[bool, str]:
        if candidate.tool_calls:
            return True, ""  # It has no text yet.
        item, iteration = _ITEM.get(), current_iteration() or 0
        twin = self.claim(item, iteration, self._reply(candidate.text, candidate.value))
        return twin is None, "" if twin is None else f"it says the same as the reply to item {twin}"

    def _reply(self, text: str, value: Any) -> Hashable:
        """Return the normalized form of a reply; equal replies have equal forms."""
        if self._format is None or not self._index.compares_values:
            return normalized(text)
        return normalized(value) if isinstance(value, str) else _frozen(value)

    def _recorded(self, s: SliceView) -> Hashable:
        """Return the normalized form of a recorded reply."""
        value = None
        if self._format is not None and self._index.compares_values:
            value = slice_from_dict(
                s.plain, self._format, Context(), (), recorded_requirement
            ).value
        return self._reply(s.text or "", value)

    async def sample(
        self, job: Job, listener: Callable[[Slice], None] | None, call: Call
    ) -> TurnOutcome:
        """Sample an item with ``call``; at the end, release replies that can't win any more."""
        _ITEM.set(job.id)
        reserved = self._reserved.setdefault(job.id, {})
        for iteration in reserved.keys() - {s.iteration for s in job.earlier}:
            self.release(job.id, iteration)

        def heard(slice_: Slice) -> None:
            if not slice_.passed:
                self.release(job.id, slice_.iteration)
            if listener is not None:
                listener(slice_)

        kept: set[int] = set()
        waits = False
        try:
            outcome = await call(job, heard)
            if isinstance(outcome, SamplingResult):
                kept = {winner.iteration for winner in outcome.winners}
            elif not isinstance(outcome, Exception):
                kept = {s.iteration for s in outcome.slices if s.passed}
                waits = bool(kept)  # Replies that passed may still win in a later round.
            return outcome
        finally:
            for iteration in reserved.keys() - kept:
                self.release(job.id, iteration)
            if not waits:
                self.settle(job.id)

    def claim(self, item: int, iteration: int, reply: Any) -> int | None:
        """Reserve a normalized reply and return None, or return another item that has it."""
        key = self._index.key(reply)
        twin: int | None = self._index.twin(item, key)
        if twin is None:
            reserved = self._reserved.setdefault(item, {})
            if key not in reserved.values():
                self._index.add(item, key)
            reserved[iteration] = key
        return twin

    def release(self, item: int, iteration: int) -> None:
        """Release the reply that an item made in an iteration, if it is reserved."""
        reserved = self._reserved[item]
        if iteration in reserved:
            key = reserved.pop(iteration)
            if key not in reserved.values():
                self._index.remove(item, key)

    def settle(self, item: int) -> None:
        """Keep an item's reserved replies for good."""
        self._reserved.pop(item, None)

    async def load(self, journal: OpenJournal) -> None:
        """Read a journal; reserve its winning replies, then the unfinished items' passing ones."""
        killed: list[tuple[int, int, Hashable]] = []
        first = 0
        while found := await journal.lookup(first, BLOCK):
            for stored in found:
                if not stored.finished:
                    killed += [
                        (stored.id, s.iteration, self._recorded(s))
                        for _, s in stored.slices
                        if s.passed and s.text is not None and s.tool_calls is None
                    ]
                elif (trace := stored.trace) is not None:
                    for won in (s for s in trace.winners if s.tool_calls is None):
                        self.claim(stored.id, won.iteration, self._recorded(won))
                    self.settle(stored.id)
            first = found[-1].id + 1
        for item, iteration, reply in reversed(killed):
            if iteration not in self._reserved.get(item, {}):
                self.claim(item, iteration, reply)


class _Exact:
    """Finds replies with equal normalized forms. It keeps only digests of texts."""

    compares_values = True

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}

    def key(self, reply: Hashable) -> Hashable:
        if not isinstance(reply, str):
            return reply
        encoded = reply.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(encoded, digest_size=DIGEST).digest()

    def twin(self, item: int, key: Hashable) -> int | None:
        holder = self._holders.get(key, item)
        return None if holder == item else holder

    def add(self, item: int, key: Hashable) -> None:
        self._holders[key] = item

    def remove(self, item: int, key: Hashable) -> None:  # noqa: ARG002 (no other item has the key)
        del self._holders[key]


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
    try:
        hash(value)
    except TypeError:
        if not is_dataclass(value):
            raise  # A user's type needs a hash; if it has none, the draw errors.
        return type(value), *(_frozen(getattr(value, f.name)) for f in fields(value) if f.compare)
    return value
