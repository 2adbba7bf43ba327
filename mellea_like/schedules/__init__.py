"""Schedules: when the draws of a call may start, and when to give up."""

from mellea_like.schedules.base import (
    BaseSchedule,
    CallFacts,
    CallProgress,
    Go,
    SchedulePlan,
)
from mellea_like.schedules.built_in import (
    Eager,
    Hedged,
    Restart,
    Staggered,
)
from mellea_like.schedules.giving_up import PerRequirement
from mellea_like.schedules.learned import Beta, LatencyQuantiles, PassRates

__all__ = [
    "BaseSchedule",
    "Beta",
    "CallFacts",
    "CallProgress",
    "Eager",
    "Go",
    "Hedged",
    "LatencyQuantiles",
    "PassRates",
    "PerRequirement",
    "Restart",
    "SchedulePlan",
    "Staggered",
]
