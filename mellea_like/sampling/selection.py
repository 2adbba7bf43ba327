"""Which slice is the best: pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from mellea_like.core.slice import Outcome
from mellea_like.core.validation import ValidationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.sampling.selections.base import BaseSelection, First, Ordered

__all__ = ["Chosen", "Selection", "best_failure", "deepest_failure", "merit", "winner"]

Chosen: TypeAlias = "Literal['first', 'ordered'] | BaseSelection"
"""Which passing slice wins: the first recorded, the one of lowest rank, or as an object says."""

Selection: TypeAlias = "Chosen | First | Ordered"
"""The same, as users may write it."""


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
    for requirement, result in zip(failed.requirements, failed.verdicts, strict=True):
        if result.status is _PASSED:
            met += requirement.weight
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
    return max(range(len(slices)), key=lambda i: (*merit(slices[i]), -slices[i].iteration))


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


def winner(slices: Sequence[Slice], selection: Selection) -> int | None:
    """Choose among the slices that passed.

    Args:
        slices: all slices, in the order recorded.
        selection: ``"ordered"``, the lowest (depth, subsample); else the first recorded.

    Returns:
        The winner's position, or None where no slice passed.
    """
    passed = [i for i, slice_ in enumerate(slices) if slice_.outcome is Outcome.PASSED]
    if not passed:
        return None
    if selection != "ordered":
        return passed[0]
    return min(passed, key=lambda i: slices[i].rank)
