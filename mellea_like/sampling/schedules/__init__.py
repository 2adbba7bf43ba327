"""When the iterations of a call may start."""

from __future__ import annotations

from mellea_like.sampling.schedules.adaptive import Adaptive
from mellea_like.sampling.schedules.base import CallFacts, Course, Go, Progress, Schedule
from mellea_like.sampling.schedules.deadline import Deadline
from mellea_like.sampling.schedules.eager import Eager
from mellea_like.sampling.schedules.hedged import Hedged
from mellea_like.sampling.schedules.latency import LatencyQuantiles, LatencyStatistics
from mellea_like.sampling.schedules.pass_rates import Beta, PassRates, PassRateStatistics
from mellea_like.sampling.schedules.staggered import Staggered

__all__ = [
    "Adaptive",
    "Beta",
    "CallFacts",
    "Course",
    "Deadline",
    "Eager",
    "Go",
    "Hedged",
    "LatencyQuantiles",
    "LatencyStatistics",
    "PassRateStatistics",
    "PassRates",
    "Progress",
    "Schedule",
    "Staggered",
]
