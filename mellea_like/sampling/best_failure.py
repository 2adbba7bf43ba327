"""Choose the failed draw that came nearest to passing; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.slice import Slice

__all__ = ["best_failure", "deepest_failure"]


def best_failure(slices: Sequence[Slice]) -> int:
    """Choose the slice that met the most requirements; break ties by mean score, then lowest id.

    Args:
        slices: failed slices, at least one.

    Returns:
        The position of the best slice.
    """
    best, highest = 0, slices[0].merit
    for i, slice_ in enumerate(slices):  # `max` with a key takes twice as long.
        merit = slice_.merit
        if merit > highest or (merit == highest and slice_.iteration < slices[best].iteration):
            best, highest = i, merit
    return best


def deepest_failure(slices: Sequence[Slice]) -> int:
    """Return the position of the slice nearest to passing; ties go to the deepest.

    Further ties go to the lowest id.
    """
    return max(
        range(len(slices)),
        key=lambda i: (*slices[i].merit, slices[i].depth, -slices[i].iteration),
    )
