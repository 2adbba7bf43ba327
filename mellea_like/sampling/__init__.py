"""Strategies, calls that can pause, the table of options, and the table of exclusions."""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports
from mellea_like.sampling.exclusions import (
    Exclusion,
    check_together,
    features_of,
    why_not_together,
)

if TYPE_CHECKING:
    from mellea_like.sampling.arguments import OfEachItem
    from mellea_like.sampling.escalate import Carry, ExpectedCost
    from mellea_like.sampling.prepare import Selection, Settings
    from mellea_like.sampling.rounds import CallInRounds

__all__ = [
    "CallInRounds",
    "Carry",
    "Exclusion",
    "ExpectedCost",
    "OfEachItem",
    "Selection",
    "Settings",
    "check_together",
    "features_of",
    "why_not_together",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.sampling.arguments": "OfEachItem",
        "mellea_like.sampling.escalate": "Carry ExpectedCost",
        "mellea_like.sampling.prepare": "Selection Settings",
        "mellea_like.sampling.rounds": "CallInRounds",
    },
)
