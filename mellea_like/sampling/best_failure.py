"""Which failed slice came nearest to passing: pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.validation import ValidationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.slice import Slice

__all__ = ["best_failure", "deepest_failure", "merit"]

_PASSED = ValidationStatus.PASSED


def merit(failed: Slice) -> tuple[float, float]:
    """Return how near a failed slice came; more is better.

    Args:
        failed: the slice.

    Returns:
        The weight of the requirements that it met, then the mean score of all that have one.
    """
    met = total = 0.0
    scored = 0
    for i, result in enumerate(failed.verdicts):
        if result.status is _PASSED:
            met += failed.requirements[i].weight
        if result.score is not None:
            total += result.score
            scored += 1
    return met, total / scored if scored else 0.0


def best_failure(slices: Sequence[Slice]) -> int:
    """Choose the slice that met most requirements, then by mean score, then by lowest id.

    Args:
        slices: failed slices, at least one.

    Returns:
        The position of the best.
    """
    merits = [merit(failed) for failed in slices]
    most = max(merits)
    nearest = [i for i, its_merit in enumerate(merits) if its_merit == most]
    return min(nearest, key=lambda i: slices[i].iteration)


def deepest_failure(slices: Sequence[Slice]) -> int:
    """Choose the deepest among the slices that came nearest, then the one with the lowest id.

    Args:
        slices: failed slices, at least one.

    Returns:
        The position of the best.
    """
    return max(
        range(len(slices)),
        key=lambda i: (*merit(slices[i]), slices[i].depth, -slices[i].iteration),
    )
