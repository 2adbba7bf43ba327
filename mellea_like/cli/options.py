"""From the options and the open backends to a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.cli.arguments import MOST_ITERATIONS, StrategyName
from mellea_like.sampling.strategies import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.cli.arguments import SampleArguments
    from mellea_like.cli.limits import Limits
    from mellea_like.cli.opening import Backends
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["STRATEGIES", "call_options", "make_budget", "make_strategy"]

STRATEGIES: dict[StrategyName, type[BaseSamplingStrategy]] = {
    StrategyName.REJECTION: RejectionSamplingStrategy,
    StrategyName.REPAIR: RepairTemplateStrategy,
    StrategyName.MULTI_TURN: MultiTurnStrategy,
}


def make_strategy(
    arguments: SampleArguments,
    limits: Limits,
    opened: Backends,
    *,
    budget: Budget | None = None,
    plugins: Sequence[Any] = (),
) -> BaseSamplingStrategy:
    """Make the strategy that was asked for."""
    judge = opened.judge
    return STRATEGIES[arguments.strategy](
        limits.limited(opened.backend),
        judge=None if judge is None else limits.limited(judge),
        loop_budget=arguments.loop,
        concurrency_budget=arguments.concurrency,
        max_iterations=MOST_ITERATIONS,
        timeout=arguments.timeout,
        retry=limits.retry,
        schedule=limits.schedule,
        budget=budget,
        give_up=limits.give_up,
        accept_incomplete=arguments.accept_incomplete,
        plugins=plugins,
    )


def make_budget(limits: Limits, opened: Backends, what: str = "call") -> Budget | None:
    """Make the budget that was asked for."""
    judges = [] if opened.judge is None else [opened.judge]
    return limits.budget_for([opened.backend, *judges], what)


def call_options(arguments: SampleArguments, limits: Limits) -> dict[str, Any]:
    """Say what each request asks for."""
    given: dict[str, Any] = {"seed": arguments.seed, "max_tokens": limits.max_tokens}
    return {name: value for name, value in given.items() if value is not None}
