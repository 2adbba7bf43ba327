"""When the iterations of a call may start."""

from __future__ import annotations

from mellea_like.sampling.schedules.base import CallFacts, Course, Go, Progress, Schedule
from mellea_like.sampling.schedules.eager import Eager
from mellea_like.sampling.schedules.hedged import Hedged
from mellea_like.sampling.schedules.latency import LatencyQuantiles, LatencyStatistics
from mellea_like.sampling.schedules.staggered import Staggered

__all__ = [
    "CallFacts",
    "Course",
    "Eager",
    "Go",
    "Hedged",
    "LatencyQuantiles",
    "LatencyStatistics",
    "Progress",
    "Schedule",
    "Staggered",
]
