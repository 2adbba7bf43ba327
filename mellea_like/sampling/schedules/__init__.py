"""When the iterations of a call may start.

`Eager` is what every strategy has by default; the others are imported when first named.
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later
from mellea_like.sampling.schedules.base import CallFacts, Course, Go, Progress, Schedule
from mellea_like.sampling.schedules.eager import Eager

if TYPE_CHECKING:
    from mellea_like.sampling.schedules.adaptive import Adaptive
    from mellea_like.sampling.schedules.deadline import Deadline
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

__getattr__, __dir__ = imported_later(
    __name__,
    {
        "Adaptive": "adaptive",
        "Beta": "pass_rates",
        "Deadline": "deadline",
        "Hedged": "hedged",
        "LatencyQuantiles": "latency",
        "LatencyStatistics": "latency",
        "PassRateStatistics": "pass_rates",
        "PassRates": "pass_rates",
        "Staggered": "staggered",
    },
)
