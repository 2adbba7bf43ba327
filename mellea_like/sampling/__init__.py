"""Strategies, and the table of what goes together in one."""

from mellea_like.sampling.exclusions import (
    EXCLUSIONS,
    Exclusion,
    check_together,
    features_of,
    why_not_together,
)

__all__ = ["EXCLUSIONS", "Exclusion", "check_together", "features_of", "why_not_together"]
