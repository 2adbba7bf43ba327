"""Finds texts that are nearly the same, by MinHash; needs the extra ``dedupe``."""

from __future__ import annotations

import importlib
import zlib
from operator import eq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

try:  # Without types.
    datasketch: Any = importlib.import_module("datasketch")
except ImportError as exc:
    message = "near-duplicates need datasketch: pip install 'mellea-like[dedupe]'"
    raise ImportError(message) from exc

__all__ = ["NearTexts"]

PERMUTATIONS = 128
"""Of a signature: its estimate of the similarity is off by about 1/sqrt(128) = 0.09 at most."""

SHINGLE = 3
"""How many words in a row are compared as one."""


KEY = (1 << 60) - 1
"""The bits of a band's hash that are kept: as an int, a third smaller than one of all 64."""


class _Reply:
    """A reply that was claimed; others may have the same signature."""

    __slots__ = ("item", "signature")

    def __init__(self, item: int, signature: bytes) -> None:
        self.item = item
        self.signature = signature


class NearTexts:
    """Texts whose sets of three words in a row overlap: their Jaccard similarity, estimated.

    A reply keeps its signature, of 128 times 32 bits, and is found by hashes of the signature's
    bands. Source: A. Z. Broder, "On the resemblance and containment of documents", SEQUENCES 1997.
    """

    compares_values = False

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        best = datasketch.MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
        size = 4 * best.r
        self._bands = [slice(at * size, (at + 1) * size) for at in range(best.b)]
        self._tables: list[dict[int, _Reply | list[_Reply]]] = [{} for _ in self._bands]
        self._sketch = datasketch.MinHash(num_perm=PERMUTATIONS, hashfunc=zlib.crc32)
        self._claimed: dict[int, dict[int, _Reply]] = {}

    def claim(self, item: int, iteration: int, reply: str) -> int | None:
        """Note a normalised reply, unless one to another item is like it: return that item."""
        signature = self._signature(reply)
        keys = self._keys(signature)
        near = {
            other
            for key, table in zip(keys, self._tables, strict=True)
            for other in _replies(table.get(key))
            if other.item != item
        }
        if twins := [o.item for o in near if _alike(o.signature, signature) >= self._threshold]:
            return min(twins)
        claimed = _Reply(item, signature)
        for key, table in zip(keys, self._tables, strict=True):
            there = table.setdefault(key, claimed)
            if isinstance(there, list):
                there.append(claimed)
            elif there is not claimed:
                table[key] = [there, claimed]
        self._claimed.setdefault(item, {})[iteration] = claimed
        return None

    def release(self, item: int, iteration: int) -> None:
        """Forget a reply."""
        released = self._claimed[item].pop(iteration)
        for key, table in zip(self._keys(released.signature), self._tables, strict=True):
            if left := [reply for reply in _replies(table.pop(key)) if reply is not released]:
                table[key] = left

    def settle(self, item: int) -> None:
        """Take note that none of an item's replies will be released any more."""
        self._claimed.pop(item, None)

    def _signature(self, reply: str) -> bytes:
        self._sketch.clear()
        self._sketch.update_batch(_shingles(reply))
        signature: bytes = self._sketch.hashvalues.astype("uint32").tobytes()
        return signature

    def _keys(self, signature: bytes) -> list[int]:
        return [hash(signature[band]) & KEY for band in self._bands]


def _replies(found: _Reply | list[_Reply] | None) -> Sequence[_Reply]:
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _alike(one: bytes, other: bytes) -> float:
    """Estimate the Jaccard similarity of two texts: the share of equal values."""
    values, others = memoryview(one).cast("I"), memoryview(other).cast("I")
    equal: int = sum(map(eq, values, others))
    return equal / PERMUTATIONS


def _shingles(text: str) -> list[bytes]:
    words = text.encode("utf-8", "surrogatepass").split(b" ")
    in_a_row = zip(*(words[at:] for at in range(SHINGLE)), strict=False)
    return list(map(b" ".join, in_a_row)) or [b" ".join(words)]
