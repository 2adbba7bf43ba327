"""One subsample after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number
from mellea_like.sampling.schedules.base import SLACK, BaseSchedule, Go

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, Progress, SchedulePlan

__all__ = ["Staggered"]


@dataclass(frozen=True, slots=True)
class Staggered(BaseSchedule):
    """Starts subsample i when i times ``delay`` seconds have passed; each keeps its own turns.

    A further subsample costs nothing where the ones before pass within the delay. Where none is at
    work any more, the next one does not wait for its time. (The connection attempts of "happy
    eyeballs" are paced like this: RFC 8305, section 5.)

    What a turn comes to does not depend on when it starts, so ``selection="ordered"`` is possible.

    Args:
        delay: seconds between the starts of two subsamples, over 0.

    Raises:
        TypeError: the delay isn't a number.
        ValueError: it is not over 0 and finite.
    """

    delay: float

    def __post_init__(self) -> None:
        real_number("Staggered: delay", self.delay, over=0)

    @property
    def pooled(self) -> bool:
        """Whether turns are open to fresh chains: no, each subsample keeps its own."""
        return False

    @property
    def timing_dependent(self) -> bool:
        """Whether which turns are taken depends on timing: no, only when they are."""
        return False

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        return _Plan(self.delay, facts.concurrency_budget)


class _Plan:
    """Lets every chain at work go on, and opens a further one when its time has come."""

    __slots__ = ("_chains", "_delay")

    def __init__(self, delay: float, chains: int) -> None:
        self._delay = delay
        self._chains = chains

    def decide(self, progress: Progress) -> Go:
        """Open what chains are due; chains at work go on whatever the time."""
        opened = progress.opened
        left = self._chains - opened
        if left <= 0:
            return Go(progress.waiting)
        due = 1 + int(min(self._chains - 1, (progress.now + SLACK) / self._delay))
        idle = not progress.running and not progress.waiting
        fresh = max(due - opened, 1 if idle else 0)
        return Go(
            progress.waiting + fresh,
            None if fresh == left else (opened + fresh) * self._delay,
        )

    def observe(self, slice_: Slice) -> None:
        """Learn nothing: the times are given."""
