"""Estimate the number of draws needed: statistics of pass rates, and a plan for the next run.

The statistics are in `mellea_like.pass_rates`. `plan` also reads journals, so it is imported when
it is first used: programs that use only the statistics load no journal reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports
from mellea_like.pass_rates import (
    Coverage,
    CoverageCurve,
    coverage_curve,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_rate_interval,
)

if TYPE_CHECKING:
    from mellea_like.estimate.draw_plan import (
        Bottleneck,
        DrawPlan,
        Repairs,
        Split,
        UnsolvedItem,
    )
    from mellea_like.estimate.planner import plan

__all__ = [
    "Bottleneck",
    "Coverage",
    "CoverageCurve",
    "DrawPlan",
    "Repairs",
    "Split",
    "UnsolvedItem",
    "coverage_curve",
    "pass_at_k",
    "pass_at_k_interval",
    "pass_hat_k",
    "pass_rate_interval",
    "plan",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.estimate.draw_plan": "Bottleneck DrawPlan Repairs Split UnsolvedItem",
        "mellea_like.estimate.planner": "plan",
    },
)
