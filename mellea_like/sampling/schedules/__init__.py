"""When the iterations of a call may start, and when to give up.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.sampling.giving_up import GiveUp, PerRequirement
    from mellea_like.sampling.schedules.adaptive import Adaptive
    from mellea_like.sampling.schedules.base import (
        BaseSchedule,
        CallFacts,
        Go,
        Progress,
        Schedule,
        SchedulePlan,
    )
    from mellea_like.sampling.schedules.deadline import Deadline
    from mellea_like.sampling.schedules.eager import Eager
    from mellea_like.sampling.schedules.hedged import Hedged
    from mellea_like.sampling.schedules.latency import LatencyQuantiles, LatencyStatistics
    from mellea_like.sampling.schedules.pass_rates import Beta, PassRates, PassRateStatistics
    from mellea_like.sampling.schedules.staggered import Staggered

__all__ = [
    "Adaptive",
    "BaseSchedule",
    "Beta",
    "CallFacts",
    "Deadline",
    "Eager",
    "GiveUp",
    "Go",
    "Hedged",
    "LatencyQuantiles",
    "LatencyStatistics",
    "PassRateStatistics",
    "PassRates",
    "PerRequirement",
    "Progress",
    "Schedule",
    "SchedulePlan",
    "Staggered",
]

__getattr__, __dir__ = lazy_exports(
    {
        "Adaptive": "mellea_like.sampling.schedules.adaptive",
        "BaseSchedule": "mellea_like.sampling.schedules.base",
        "Beta": "mellea_like.sampling.schedules.pass_rates",
        "CallFacts": "mellea_like.sampling.schedules.base",
        "SchedulePlan": "mellea_like.sampling.schedules.base",
        "Deadline": "mellea_like.sampling.schedules.deadline",
        "Eager": "mellea_like.sampling.schedules.eager",
        "GiveUp": "mellea_like.sampling.giving_up",
        "Go": "mellea_like.sampling.schedules.base",
        "Hedged": "mellea_like.sampling.schedules.hedged",
        "LatencyQuantiles": "mellea_like.sampling.schedules.latency",
        "LatencyStatistics": "mellea_like.sampling.schedules.latency",
        "PassRateStatistics": "mellea_like.sampling.schedules.pass_rates",
        "PassRates": "mellea_like.sampling.schedules.pass_rates",
        "PerRequirement": "mellea_like.sampling.giving_up",
        "Progress": "mellea_like.sampling.schedules.base",
        "Schedule": "mellea_like.sampling.schedules.base",
        "Staggered": "mellea_like.sampling.schedules.staggered",
    },
    globals(),
)
