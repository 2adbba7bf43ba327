"""The base classes of schedules, the facts that schedules get, and their decisions."""

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
"""The tolerance for comparing times, in seconds, because clocks and sleeps are rounded."""


class CallFacts(NamedTuple):
    """The facts about a call that a schedule gets at its start.

    Attributes:
        action: the task.
        requirements: the requirements of each draw.
        concurrency_budget: how many draws may be in flight.
        loop_budget: the number of attempts of each lane.
        model: the model's name, if the backend or the options name it.
        stages: the same for each stage of an `Escalate`; empty with other strategies.
    """

    action: Action[object]
    requirements: Sequence[Requirement]
    concurrency_budget: int
    loop_budget: int
    model: str | None
    stages: Sequence[str | None] = ()


class CallProgress(NamedTuple):
    """How far a call has come, as a schedule learns it for each decision.

    A chain is a sequence of draws in which each one repairs the one before. Each draw uses up
    one attempt.

    Attributes:
        now: the seconds since the call began.
        running: when each draw in flight began, in seconds since the call began, in no particular
            order.
        opened: the number of chains that have begun, including those that have ended.
        started: the number of draws that have begun.
        failed: the number of draws that were judged and failed.
        broken: the number of chains that a permanent error has ended.
        turns: the number of attempts left.
        waiting: the number of chains that wait to continue with a repair. A chain that has no
            attempts left has ended, and does not wait.
        passed: the number of draws that passed. It is 0 unless a selection wants several.
        wanted: how many more passing draws a selection may need; None if the first pass ends the
            call. At most this many draws run at a time, plus the schedule's `BaseSchedule.extra`.
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
        more: how many further draws may start now. Chains that wait for a repair come first, then
            new chains.
        look_again: when to ask again even if nothing happens, in seconds since the call began;
            None for never.
    """

    more: int
    look_again: float | None = None


class SchedulePlan(ABC):
    """The state of a schedule during one call.

    `decide` has no side effects. The other methods may learn from draws.
    """

    __slots__ = ()

    @abstractmethod
    def decide(self, progress: CallProgress) -> Go:
        """Decide how many draws may start now.

        This is called when the call begins, whenever a draw has ended, and at ``look_again`` unless
        the maximum number of draws is already in flight. Whatever the decision, no more draws start
        than there are attempts. If no draw is running, a decision that allows none and sets no time
        ends the call. If attempts are left and no chain is broken, this logs a warning.

        Args:
            progress: how far the call has come.

        Returns:
            The decision.
        """

    def patience(self, restarts: int, model: str | None) -> float | None:
        """Return how long a draw may wait for its reply before it is restarted.

        This is called before each request. When the returned time is over, the request is closed,
        and the same draw sends another one.

        Args:
            restarts: how many times the draw has already been restarted.
            model: the model that is asked, if it is known. In an `Escalate`, it is the stage's
                model.

        Returns:
            The seconds, over 0, or None (the default) for no limit.
        """
        del restarts, model
        return None

    def restarted(self, chain: int, seconds: float, model: str | None) -> None:  # noqa: B027 (by default it does nothing)
        """Note that a draw is restarted. The default does nothing.

        Args:
            chain: the index of the draw's chain; see `Slice.chain`.
            seconds: how long the draw waited for its reply.
            model: the model that was asked, if it is known.
        """

    def observe(self, slice_: Slice) -> None:  # noqa: B027 (by default it does nothing)
        """Learn from a draw that has ended, with any outcome. The default does nothing.

        Args:
            slice_: the draw's record.
        """


class BaseSchedule(ABC):
    """Decides when draws may start. It is only configuration; `begin` makes the state of a call.

    For your own schedule, write `begin`, and override the properties that differ. By default,
    lanes share their attempts, timing influences which draws are made, no more than
    ``concurrency_budget`` draws are in flight, and the strategy's ``timeout`` applies.

    A dataclass's field may replace a property. If the field has no default, declare it as
    ``seconds: float = field()`` in a dataclass with ``slots=True``; otherwise the property remains.
    """

    __slots__ = ()

    @property
    def pooled(self) -> bool:
        """Whether new chains may use attempts that a lane has left over or hasn't reached yet.

        Otherwise each lane keeps its own attempts, as ``selection="ordered"`` requires.
        """
        return True

    @property
    def extra(self) -> int:
        """How many draws beyond ``concurrency_budget`` may be in flight."""
        return 0

    @property
    def timing_dependent(self) -> bool:
        """Whether timing, or another call, influences which draws are made.

        ``selection="ordered"`` can't be combined with such a schedule, or with one that is
        `pooled`.
        """
        return True

    @property
    def seconds(self) -> float | None:
        """The longest that a call may take, in seconds; None if the schedule sets no limit.

        The strategy's ``timeout`` applies as well.
        """
        return None

    @abstractmethod
    def begin(self, facts: CallFacts) -> SchedulePlan | None:
        """Return the state for a new call.

        Args:
            facts: the known facts about the call.

        Returns:
            The state that makes this call's decisions. None if there is nothing to decide, because
            all lanes start immediately and keep their own attempts.
        """
