"""A strategy's configuration, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.core.options import Options
    from mellea_like.core.requirement import Requirement
    from mellea_like.hooks.registry import Handler
    from mellea_like.sampling.selection import Selection
    from mellea_like.telemetry import Telemetry

__all__ = ["Settings", "check_count", "check_seconds"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A strategy's configuration, checked; see `BaseSamplingStrategy` for the fields."""

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
    telemetry: Telemetry

    def check_loop_budget(self, loop_budget: object, what: str) -> None:
        """Make sure that a loop budget can be.

        Args:
            loop_budget: turns of each subsample.
            what: what is wrong if it is, for the error.

        Raises:
            ValueError: it is no int of at least 1, or too large for ``max_iterations``.
        """
        if isinstance(loop_budget, bool) or not isinstance(loop_budget, int) or loop_budget < 1:
            msg = f"{what} to {loop_budget!r}: it is an int of at least 1"
            raise ValueError(msg)
        if loop_budget * self.concurrency_budget > self.max_iterations:
            msg = (
                f"{what} to {loop_budget}: with concurrency_budget {self.concurrency_budget} that"
                f" is more than max_iterations, {self.max_iterations}"
            )
            raise ValueError(msg)


def check_count(name: str, value: object) -> None:
    """Make sure that an argument is a count of at least 1.

    Args:
        name: the argument's name.
        value: its value.

    Raises:
        TypeError: it is no int.
        ValueError: it is less than 1.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} is an int, not {value!r}"
        raise TypeError(msg)
    if value < 1:
        msg = f"{name} is at least 1, not {value}"
        raise ValueError(msg)


def check_seconds(name: str, value: object) -> None:
    """Make sure that an argument is a duration, or None.

    Args:
        name: the argument's name.
        value: its value.

    Raises:
        TypeError: it is no number.
        ValueError: it is not over 0 and finite.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} is a number of seconds, not {value!r}"
        raise TypeError(msg)
    if not 0 < value < math.inf:
        msg = f"{name} is over 0 seconds and finite, not {value!r}"
        raise ValueError(msg)
