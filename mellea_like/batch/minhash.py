"""Find texts that are nearly the same, with MinHash; needs the extra ``dedupe``."""

from __future__ import annotations

import importlib
import zlib
from operator import eq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

try:  # It has no types.
    datasketch: Any = importlib.import_module("datasketch")
except ImportError as exc:
    message = "finding near-duplicates needs datasketch: pip install 'mellea-like[dedupe]'"
    raise ImportError(message) from exc

__all__ = ["NearTexts"]

PERMUTATIONS = 128
"""The number of values in a signature; estimates are off by up to about 1/sqrt(128) = 0.09."""

SHINGLE = 3
"""The number of words in each of the overlapping sequences by which texts are compared."""


KEY = (1 << 60) - 1
"""The mask that shortens a hash to 60 bits.

An int of 60 bits takes a third less memory than one of 64 bits.
"""


class _Reply:
    """The signature of a reply in `NearTexts`, and the id of the item whose reply it is.

    Instances are compared by identity, because two replies may have equal signatures.
    """

    __slots__ = ("item", "signature")

    def __init__(self, item: int, signature: bytes) -> None:
        self.item = item
        self.signature = signature


class NearTexts:
    """Finds similar texts by the estimated Jaccard index of their sets of three-word sequences.

    Each reply has a signature of 128 values of 32 bits, which is divided into bands. Two replies
    are compared if the hashes of one of their bands are equal. Source: A. Z. Broder, "On the
    resemblance and containment of documents", SEQUENCES 1997.
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
        """Add a normalized reply and return None.

        If another item has a similar reply, add nothing and return that item's id.
        """
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
        """Remove the reply that an item made in an iteration."""
        released = self._claimed[item].pop(iteration)
        for key, table in zip(self._keys(released.signature), self._tables, strict=True):
            if left := [reply for reply in _replies(table.pop(key)) if reply is not released]:
                table[key] = left

    def settle(self, item: int) -> None:
        """Keep the item's remaining replies for good, and drop the data needed to remove them."""
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
    """Estimate two texts' Jaccard similarity by the share of equal values in their signatures."""
    values, others = memoryview(one).cast("I"), memoryview(other).cast("I")
    equal: int = sum(map(eq, values, others))
    return equal / PERMUTATIONS


def _shingles(text: str) -> list[bytes]:
    words = text.encode("utf-8", "surrogatepass").split(b" ")
    in_a_row = zip(*(words[at:] for at in range(SHINGLE)), strict=False)
    return list(map(b" ".join, in_a_row)) or [b" ".join(words)]
