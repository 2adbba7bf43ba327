"""Turns: the permissions to start one iteration each."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Turn", "derive_seed", "turn_of"]


class Turn(NamedTuple):
    """Permission to start one iteration: its id (1-based), its subsample and depth (0-based)."""

    iteration: int
    subsample: int
    depth: int

    @property
    def rank(self) -> tuple[int, int]:
        """Where the turn stands when the winner must not depend on timing; lower is better."""
        return self.depth, self.subsample


def turn_of(subsample: int, depth: int, loop_budget: int) -> Turn:
    """Return the turn at a place; ids count through the subsamples, one after the other."""
    return Turn(subsample * loop_budget + depth + 1, subsample, depth)


def derive_seed(seed: int, iteration: int, purpose: str = "generate") -> int:
    """Derive the seed of one request from the call's.

    Neighbouring iterations get unrelated seeds (BLAKE2b of the three), so that servers whose
    generators are weak for close seeds still draw independently.
    """
    digest = blake2b(f"{seed}/{iteration}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
