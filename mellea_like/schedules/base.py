"""Schedules: the facts that they are told, and their decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

__all__ = ["SLACK", "BaseSchedule", "CallFacts", "CallProgress", "Go", "SchedulePlan"]

SLACK = 1e-6
"""Seconds by which a clock may read less than the time that was slept for: rounding."""


class CallFacts(NamedTuple):
    """The facts of a call that a schedule knows when it begins.

    Attributes:
        action: the request.
        requirements: the conditions for each slice.
        concurrency_budget: how many iterations may be in flight.
        loop_budget: turns of each subsample.
        model: the model's name, where the backend or the options say it.
    """

    action: Action[object]
    requirements: Sequence[Requirement]
    concurrency_budget: int
    loop_budget: int
    model: str | None


class CallProgress(NamedTuple):
    """How far a call has come.

    Attributes:
        now: seconds since the call began.
        running: when each iteration in flight began, in seconds since the call began, in no
            particular order.
        opened: how many chains have begun so far, the ended ones included.
        started: how many iterations have begun so far.
        failed: how many of them were judged, and failed.
        broken: how many chains a permanent error has ended.
        turns: how many turns are left.
        waiting: how many chains wait to continue with a repair. A chain that has no turn left has
            ended, and does not wait.
        passed: how many of the iterations passed: none, unless a selection wants several.
        wanted: how many more passing iterations a selection could need; the engine lets no more
            run than that and the schedule's `BaseSchedule.extra`. None if the first pass ends
            the call.
    """

    now: float
    running: Sequence[float]
    opened: int
    started: int
    failed: int
    broken: int
    turns: int
    waiting: int = 0
    passed: int = 0
    wanted: int | None = None


class Go(NamedTuple):
    """The decision of a schedule.

    Attributes:
        more: how many further iterations may start now. A chain that waits for its repair
            comes first, then a new chain.
        look_again: the time, in seconds since the call began, at which the answer changes even if
            nothing happens before; None if it does not.
    """

    more: int
    look_again: float | None = None


class SchedulePlan(ABC):
    """A schedule at work in one call: its decisions, which are pure, and what it has learnt."""

    __slots__ = ()

    @abstractmethod
    def decide(self, progress: CallProgress) -> Go:
        """Decide how many iterations may start now.

        It is asked when the call begins, whenever an iteration has ended, and at ``look_again``
        unless as many are in flight as may be. The engine starts no more than there are turns.

        Args:
            progress: how far the call has come.

        Returns:
            The decision.
        """

    def patience(self, restarts: int, model: str | None) -> float | None:
        """Return for how long an iteration may wait for its reply before it is drawn again.

        It is asked before each request. Then the request is closed, and another sent in its place,
        by the same iteration.

        Args:
            restarts: how often the iteration was drawn again before.
            model: the model that is asked, where it is known: that of the stage in an `Escalate`.

        Returns:
            Seconds, over 0; None, as by default, for as long as it takes.
        """
        del restarts, model
        return None

    def restarted(self, chain: int, seconds: float, model: str | None) -> None:  # noqa: B027 (by default it does nothing)
        """Learn that an iteration is drawn again; by default, nothing.

        Args:
            chain: whose iteration.
            seconds: how long its reply was waited for.
            model: the model that was asked, where it is known.
        """

    def observe(self, slice_: Slice) -> None:  # noqa: B027 (by default it does nothing)
        """Learn from an iteration that has ended, whatever its outcome; by default, nothing.

        Args:
            slice_: its record.
        """


class BaseSchedule(ABC):
    """Says when iterations may start. Configuration only; `begin` makes the state of a call.

    For a schedule of your own, write `begin`, and override what differs: the turns are pooled, and
    taken as timing has it; no more iterations are in flight than ``concurrency_budget``, and the
    strategy's ``timeout`` holds.

    A dataclass's field may take the place of a property. One without a default value needs
    ``slots=True``, and is declared as ``seconds: float = field()``: dataclasses would take the
    property for the default.
    """

    __slots__ = ()

    @property
    def pooled(self) -> bool:
        """Whether turns that a chain leaves, or has not come to, are open to fresh chains.

        Otherwise each subsample keeps its own, as ``selection="ordered"`` needs it.
        """
        return True

    @property
    def extra(self) -> int:
        """How many iterations beyond ``concurrency_budget`` may be in flight."""
        return 0

    @property
    def timing_dependent(self) -> bool:
        """Whether which turns are taken depends on timing or on other calls.

        Then it does not go with ``selection="ordered"``. Nor do pooled turns, whatever this says.
        """
        return True

    @property
    def seconds(self) -> float | None:
        """When the call's time is up, in seconds since it began; None for the strategy's."""
        return None

    @abstractmethod
    def begin(self, facts: CallFacts) -> SchedulePlan | None:
        """Begin a call.

        Args:
            facts: the known facts of it.

        Returns:
            The decisions of this call; None if all chains start at once and keep their own
            turns, so that there is nothing to decide.
        """
