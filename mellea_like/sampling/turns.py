"""Turns: the permissions to start one iteration each."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Turn", "derive_seed", "turn_of"]


class Turn(NamedTuple):
    """Permission to start one iteration.

    Attributes:
        iteration: the iteration's id: 1-based, unique in the call.
        subsample: the subsample it belongs to, 0-based.
        depth: how many turns of that subsample come before it, 0-based.
    """

    iteration: int
    subsample: int
    depth: int

    @property
    def rank(self) -> tuple[int, int]:
        """Where the turn stands when the winner must not depend on timing; lower is better."""
        return self.depth, self.subsample


def turn_of(subsample: int, depth: int, loop_budget: int) -> Turn:
    """Return the turn at a place.

    Args:
        subsample: the subsample, 0-based.
        depth: the depth in it, 0-based.
        loop_budget: turns of each subsample.

    Returns:
        The turn, with the id ``subsample * loop_budget + depth + 1``.
    """
    return Turn(subsample * loop_budget + depth + 1, subsample, depth)


def derive_seed(seed: int, iteration: int, purpose: str = "generate") -> int:
    """Derive the seed of one request from the call's.

    Neighbouring iterations get unrelated seeds (BLAKE2b of the three), so that servers whose
    generators are weak for close seeds still draw independently.

    Args:
        seed: the call's seed, any int.
        iteration: the iteration's id.
        purpose: what the request is for.

    Returns:
        An int from 0 to 2**31 - 1, which every known server takes.
    """
    digest = blake2b(f"{seed}/{iteration}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
