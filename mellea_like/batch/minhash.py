"""Find texts that are nearly the same, with MinHash; needs the extra ``dedupe``."""

from __future__ import annotations

import importlib
import zlib
from operator import eq
from typing import TYPE_CHECKING, Any, TypeAlias

from mellea_like.lazy import needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

with needs_extra("dedupe", "finding near-duplicates needs datasketch"):  # It has no types.
    datasketch: Any = importlib.import_module("datasketch")

_Reply: TypeAlias = tuple[int, bytes]
"""The item that made a reply, and the reply's signature."""

PERMUTATIONS = 128
"""The number of values in a signature; estimates are off by up to about 1/sqrt(128) = 0.09."""

SHINGLE = 3
"""The number of words in each of the overlapping sequences by which texts are compared."""


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

    def key(self, reply: str) -> bytes:
        """Return the signature of a normalized reply."""
        self._sketch.clear()
        self._sketch.update_batch(_shingles(reply))
        signature: bytes = self._sketch.hashvalues.astype("uint32").tobytes()
        return signature

    def twin(self, item: int, key: bytes) -> int | None:
        """Return another item that has a similar reply; None if there is none."""
        near = {reply for band, table in self._places(key) for reply in _replies(table.get(band))}
        near_items = (
            other
            for other, signature in near
            if other != item and _alike(signature, key) >= self._threshold
        )
        return min(near_items, default=None)

    def add(self, item: int, key: bytes) -> None:
        """Add a reply of an item."""
        added = item, key
        for band, table in self._places(key):
            there = table.setdefault(band, added)
            if isinstance(there, list):
                there.append(added)
            elif there is not added:
                table[band] = [there, added]

    def remove(self, item: int, key: bytes) -> None:
        """Remove a reply of an item."""
        for band, table in self._places(key):
            if left := [reply for reply in _replies(table.pop(band)) if reply != (item, key)]:
                table[band] = left

    def _places(self, signature: bytes) -> Iterator[tuple[int, dict[int, _Reply | list[_Reply]]]]:
        """Yield the hash of each band of a signature, with the table of that band."""
        for band, table in zip(self._bands, self._tables, strict=True):
            yield hash(signature[band]), table


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
