"""Running a plan: sampling its replies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.generation import Usage
from mellea_like.errors import HookError, LimitExceeded, SamplingFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.models import Plan

__all__ = ["Draw", "run_plan", "usage_of"]


@dataclass(frozen=True, slots=True)
class Draw:
    """How the sampling of one reply ended.

    Args:
        result: its record; None where there is none.
        error: what it raised; None where it returned a result.
    """

    result: SamplingResult[Any] | None
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether a slice passed."""
        return self.error is None and self.result is not None and self.result.success

    @property
    def outcome(self) -> str:
        """How it ended, in one word."""
        return "errored" if self.error is not None else "passed" if self.passed else "failed"


async def run_plan(
    plan: Plan, on_slice: Callable[[int, Slice], Awaitable[None]] | None = None
) -> tuple[Draw, ...]:
    """Sample as many replies as are wanted, all at a time.

    Args:
        plan: what to sample.
        on_slice: called with a reply's number and each slice.

    Returns:
        How each ended, in order.
    """
    draws: list[Draw | None] = [None] * plan.n

    async def run(index: int) -> None:
        draws[index] = await _draw(plan, index, on_slice)

    if plan.n == 1:
        await run(0)
    else:
        async with anyio.create_task_group() as tasks:
            for index in range(plan.n):
                tasks.start_soon(run, index)
    return tuple(draw for draw in draws if draw is not None)


async def _draw(
    plan: Plan, index: int, on_slice: Callable[[int, Slice], Awaitable[None]] | None
) -> Draw:
    seed = plan.options.seed

    try:
        result = await plan.strategy.sample(
            plan.action,
            plan.requirements,
            context=plan.context,
            options=replace(plan.options, seed=None if seed is None else seed + index),
            on_slice=None if on_slice is None else partial(on_slice, index),
            budget=plan.budget,
        )
    except (HookError, LimitExceeded, SamplingFailed) as exc:
        return Draw(exc.result, exc)
    except Exception as exc:  # noqa: BLE001 (whatever it is, the caller gets an answer)
        return Draw(None, exc)
    return Draw(result)


def usage_of(draws: Sequence[Draw]) -> Usage:
    """Add up what was spent.

    Args:
        draws: how the sampling of each reply ended.

    Returns:
        All of it, as far as it is known.
    """
    return sum((draw.result.usage for draw in draws if draw.result is not None), Usage())
