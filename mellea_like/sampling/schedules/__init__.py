"""When the iterations of a call may start.

`Eager` is what every strategy has by default; the others are imported when first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_LATER = {
    "Adaptive": "adaptive",
    "Beta": "pass_rates",
    "Deadline": "deadline",
    "Hedged": "hedged",
    "LatencyQuantiles": "latency",
    "LatencyStatistics": "latency",
    "PassRateStatistics": "pass_rates",
    "PassRates": "pass_rates",
    "Staggered": "staggered",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
