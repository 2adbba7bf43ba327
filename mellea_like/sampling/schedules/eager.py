"""All subsamples at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.sampling.schedules.base import BaseSchedule, Go

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, Progress, SchedulePlan

__all__ = ["Eager"]


@dataclass(frozen=True, slots=True)
class Eager(BaseSchedule):
    """Starts as many iterations as ``concurrency_budget`` allows, at once. The default.

    A chain that a permanent error ended, such as a wrong key, is not replaced: else one wrong key
    would be asked with as many times as there are turns.

    Args:
        pool: whether the turns that a chain leaves, or has not come to, are open to fresh chains.
            Without it each subsample keeps its own turns.

    Raises:
        TypeError: ``pool`` isn't a bool.
    """

    pool: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pool, bool):
            msg = f"Eager: pool is a bool, not {self.pool!r}"
            raise TypeError(msg)

    @property
    def pooled(self) -> bool:
        """Whether turns that a chain leaves, or has not come to, are open to fresh chains."""
        return self.pool

    @property
    def timing_dependent(self) -> bool:
        """Whether which turns are taken depends on timing: when they are pooled."""
        return self.pool

    def begin(self, facts: CallFacts) -> SchedulePlan | None:
        """Begin a call."""
        return _Plan(facts.concurrency_budget) if self.pool else None


class _Plan:
    """Keeps as many iterations in flight as may be."""

    __slots__ = ("_width",)

    def __init__(self, width: int) -> None:
        self._width = width

    def decide(self, progress: Progress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        return Go(max(0, self._width - progress.broken - len(progress.running)))

    def observe(self, slice_: Slice) -> None:
        """Learn nothing: the width is given."""
