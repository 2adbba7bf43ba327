"""The table of a strategy's options that exclude each other, with the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXCLUSIONS", "Exclusion", "check_together", "features_of", "why_not_together"]


class Exclusion(NamedTuple):
    """Two features that exclude each other.

    Attributes:
        one: a feature, as described at `EXCLUSIONS`.
        other: the feature that it excludes.
        why: the reason, as a clause.
    """

    one: str
    other: str
    why: str


EXCLUSIONS = (
    Exclusion("ordered", "timed", "an ordered result doesn't depend on timing"),
    Exclusion("ordered", "pooled", "which lane takes another lane's attempt depends on timing"),
    Exclusion("ordered", "give_up", "which draws come first depends on timing"),
    Exclusion("ordered", "cheaper", "which draws fail first depends on timing"),
    Exclusion("stages", "backend", "each stage has its own"),
    Exclusion("stages", "loop_budget", "the stages set the attempts, as in Stage(small, turns=3)"),
    Exclusion("stages", "several", "it would choose among draws of different models"),
    Exclusion("stages", "give_up", "it would end a call before the bigger model's attempts"),
    Exclusion("cheaper", "lanes", "with racing lanes, it would see only the quick ones"),
    Exclusion("stream", "collect", "a stream has one reply"),
    Exclusion("agent", "collect", "an agent continues from one reply"),
    Exclusion("choices", "collect", "a request says how many choices it has"),
    Exclusion("rounds", "lanes", "a round makes one draw for each item"),
    Exclusion("rounds", "scored", "scores of earlier rounds aren't kept"),
    Exclusion("rounds", "schedule", "rounds decide when draws start"),
    Exclusion("rounds", "stage_budget", "the spending of a stage isn't kept"),
    Exclusion("rounds", "fewer_texts", "items continue from the texts in the journal"),
)
"""All pairs of features that exclude each other.

The features are:

- a selection that is ``ordered``, waits for ``several`` draws, has several winners (``collect``),
  or keeps scores or comparisons (``scored``);
- a ``schedule``, one that depends on timing (``timed``), or one that pools attempts (``pooled``);
- ``give_up``, and more than one lane (``lanes``);
- an escalation's ``stages``, its rule ``after`` (``cheaper``), a stage with a budget
  (``stage_budget``), and the arguments ``backend`` and ``loop_budget``, which it refuses;
- a ``stream``, an ``agent``, a request's number of ``choices``, ``rounds`` over many items, and a
  journal that keeps ``fewer_texts`` than all.
"""


def why_not_together(features: Mapping[str, str]) -> str | None:
    """Explain which two features exclude each other.

    Args:
        features: the features in use, each with the name by which the user knows it.

    Returns:
        A sentence about the first pair in the table; None if all can be combined.
    """
    for one, other, why in EXCLUSIONS:
        if one in features and other in features:
            return f"{features[one]} can't be combined with {features[other]}: {why}"
    return None


def check_together(*groups: Mapping[str, str]) -> None:
    """Make sure that features can be combined.

    Args:
        *groups: the features in use, each with the name by which the user knows it.

    Raises:
        ValueError: two of them exclude each other.
    """
    features: dict[str, str] = {}
    for group in groups:
        features.update(group)
    why = why_not_together(features)
    if why is not None:
        raise ValueError(why)


def features_of(settings: Any) -> dict[str, str]:
    """Return the features that a strategy's configuration uses.

    Args:
        settings: the strategy's ``settings``.

    Returns:
        The features, each in the user's words, as in ``{"lanes": "concurrency_budget=4"}``.
    """
    found: dict[str, str] = {}
    chooser, schedule = settings.chooser, settings.schedule
    if settings.selection == "ordered":
        found["ordered"] = "selection='ordered'"
    if chooser is not None:
        found |= dict.fromkeys(chooser.features, f"selection={chooser!r}")
    if schedule is not None:
        found["schedule"] = f"schedule={schedule!r}"
        if schedule.timing_dependent:
            found["timed"] = found["schedule"]
        if schedule.pooled:
            found["pooled"] = found["schedule"]
    lanes, stages = settings.concurrency_budget, settings.stages
    others = (
        ("give_up", settings.give_up is not None, "give_up"),
        ("lanes", lanes > 1, f"concurrency_budget={lanes}"),
        ("stages", bool(stages), "Escalate"),
        ("stage_budget", any(stage.budget is not None for stage in stages), "a stage's budget"),
        ("cheaper", settings.after is not None, "after=..."),
    )
    return found | {feature: name for feature, used, name in others if used}
