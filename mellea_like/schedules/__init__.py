"""Schedules: when the draws of a call may start, and when to give up."""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports
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

if TYPE_CHECKING:
    from mellea_like.schedules.expressions import SCHEDULES, parse_schedule

__all__ = [
    "SCHEDULES",
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
    "parse_schedule",
]

__getattr__, __dir__ = lazy_exports(
    globals(), {"mellea_like.schedules.expressions": "SCHEDULES parse_schedule"}
)
