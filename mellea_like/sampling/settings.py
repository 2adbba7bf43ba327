"""A strategy's configuration, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from mellea_like.limits.retry import Retry

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.core.options import Options
    from mellea_like.core.requirement import Requirement
    from mellea_like.hooks.plugins import Handler
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.giving_up import GiveUp
    from mellea_like.sampling.schedules.base import Schedule
    from mellea_like.sampling.selection import Selection
    from mellea_like.telemetry import Telemetry

__all__ = ["Settings", "check_retry", "check_schedule"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A strategy's configuration, checked; see `BaseSamplingStrategy` for the fields.

    The schedule is None where it has nothing to decide.
    """

    backend: Backend | None
    judge: Backend | None
    requirements: tuple[Requirement | str, ...]
    loop_budget: int
    concurrency_budget: int
    max_iterations: int
    selection: Selection
    options: Options
    judge_options: Options
    iteration_timeout: float | None
    timeout: float | None
    validate_all: bool | None
    cancel_grace: float
    handlers: tuple[Handler, ...]
    retry: Retry | None
    schedule: Schedule | None
    budget: Budget | None
    give_up: GiveUp | None
    telemetry: Telemetry
    accept_incomplete: bool

    def check_loop_budget(self, loop_budget: object, what: str) -> None:
        """Make sure that a loop budget can be."""
        if isinstance(loop_budget, bool) or not isinstance(loop_budget, int) or loop_budget < 1:
            msg = f"{what} to {loop_budget!r}: it is an int of at least 1"
            raise ValueError(msg)
        if loop_budget * self.concurrency_budget > self.max_iterations:
            msg = (
                f"{what} to {loop_budget}: with concurrency_budget {self.concurrency_budget} that"
                f" is more than max_iterations, {self.max_iterations}"
            )
            raise ValueError(msg)


def check_retry(retry: object) -> None:
    """Make sure that an argument is a retry policy, or None."""
    if retry is not None and not isinstance(retry, Retry):
        msg = f"retry is a Retry, as in Retry(attempts=5), or None for no retries, not {retry!r}"
        raise TypeError(msg)


def check_schedule(schedule: object, give_up: object, selection: Selection) -> Schedule | None:
    """Make sure that a schedule and a rule to give up by go with the selection."""
    for name, value in (("schedule", schedule), ("give_up", give_up)):
        if value is not None and (isinstance(value, type) or not hasattr(value, "begin")):
            msg = f"{name} is an object with begin(...), as in {_EXAMPLES[name]}, not {value!r}"
            raise TypeError(msg)
    planned = cast("Schedule | None", schedule)
    if selection == "ordered":
        if planned is not None and planned.timing_dependent:
            msg = (
                f"schedule={planned!r} depends on timing, and selection='ordered' is there so that"
                " the result does not: take Eager() or Staggered(...), or selection='first'"
            )
            raise ValueError(msg)
        if give_up is not None:
            msg = (
                "give_up depends on which slices come first, and selection='ordered' is there so"
                " that the result does not depend on timing: leave one of them out"
            )
            raise ValueError(msg)
    if planned is None:
        return None
    from mellea_like.sampling.schedules.eager import Eager  # noqa: PLC0415

    return None if isinstance(planned, Eager) and not planned.pooled else planned


_EXAMPLES = {"schedule": "Staggered(0.5)", "give_up": "PerRequirement()"}
