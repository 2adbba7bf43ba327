"""When further turns would not help: hopeless requirements, permanent errors, repeated bugs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import real_number
from mellea_like.core.slice import Outcome
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import BackendError
from mellea_like.requirements.staged_validation import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

__all__ = ["FEWEST", "Bug", "PerRequirement", "Tally", "bug_of", "times_seen"]


@dataclass(frozen=True, slots=True)
class PerRequirement:
    """Gives up where a requirement fails so often that a draw that meets it is not to be expected.

    That is so once its pass rate is, with the probability ``confidence``, under ``threshold``, when
    before the first reply every rate was as likely as any other: the upper bound of a Beta
    posterior with a uniform prior. At the defaults six failures without a pass are enough, or ten
    with one.

    Only verdicts count: not requirements that were skipped or errored. That a reply is whole
    and of its format counts as one more requirement.

    Args:
        threshold: the pass rate under which further turns are not worth it, between 0 and 1.
        confidence: how sure that must be, between 0 and 1.

    Raises:
        TypeError: an argument isn't a number.
        ValueError: an argument is out of its range.
    """

    threshold: float = 0.3
    confidence: float = 0.9

    def __post_init__(self) -> None:
        real_number("PerRequirement: threshold", self.threshold, over=0, under=1)
        real_number("PerRequirement: confidence", self.confidence, over=0, under=1)

    def begin(self) -> Tally:
        """Begin a call."""
        return Tally(self.threshold, self.confidence)


@dataclass(slots=True)
class _Count:
    """How often one requirement was met, and not."""

    requirement: Requirement | None  # Kept, so that no other gets its id.
    passed: int = 0
    failed: int = 0


class Tally:
    """The verdicts of one call, requirement by requirement."""

    __slots__ = ("_confidence", "_counts", "_threshold", "_usable")

    def __init__(self, threshold: float, confidence: float) -> None:
        self._threshold = threshold
        self._confidence = confidence
        self._usable = _Count(None)
        self._counts: dict[int, _Count] = {}  # By identity: a requirement need not be hashable.

    def add(self, slice_: Slice) -> str | None:
        """Count the verdicts on a slice; say why further turns would not help, if so."""
        if slice_.reason and slice_.outcome is Outcome.FAILED:
            self._usable.failed += 1
            if self._hopeless(self._usable):
                return self._sentence("a reply was usable", self._usable)
        elif slice_.verdicts or slice_.passed:
            self._usable.passed += 1
        hopeless = None
        for requirement, verdict in zip(slice_.requirements, slice_.verdicts, strict=False):
            passed = verdict.status is ValidationStatus.PASSED
            if not passed and verdict.status is not ValidationStatus.FAILED:
                continue
            count = self._counts.get(id(requirement))
            if count is None:
                count = self._counts[id(requirement)] = _Count(requirement)
            count.passed += passed
            count.failed += not passed
            if hopeless is None and not passed and self._hopeless(count):
                hopeless = self._sentence(f"requirement {requirement.name!r} was met", count)
        return hopeless

    def _hopeless(self, count: _Count) -> bool:
        return _probability_under(self._threshold, count.passed, count.failed) > self._confidence

    @staticmethod
    def _sentence(what: str, count: _Count) -> str:
        replies = count.passed + count.failed
        return f"{what} in {count.passed} of {replies} replies: further draws are unlikely to help"


@lru_cache(maxsize=4096)
def _probability_under(threshold: float, passed: int, failed: int) -> float:
    """Return how probable it is that a pass rate is under a threshold, from a uniform prior.

    The posterior is Beta(passed + 1, failed + 1). Its distribution function at x is the probability
    that of passed + failed + 1 draws that pass with probability x each, more than ``passed`` do
    (DLMF 8.17.5): a finite sum. In logarithms, for the terms may be very small.
    """
    n = passed + failed + 1
    low, high = math.log(threshold), math.log1p(-threshold)
    orders = math.lgamma(n + 1)
    return 1.0 - math.fsum(
        math.exp(orders - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * low + (n - j) * high)
        for j in range(passed + 1)
    )


# --- after an error


# --- the same bug in a validator, again and again

_ERROR, _SKIPPED = ValidationStatus.ERRORED, ValidationStatus.SKIPPED

FEWEST = 2
"""A bug must show twice at least to be the same again."""


class Bug(NamedTuple):
    """The exception of a requirement's validator, and its line, as in ``rules.py:12``."""

    requirement: Requirement
    kind: type[BaseException]
    line: str

    def __str__(self) -> str:
        return f"requirement {self.requirement.name!r} raises {self.kind.__name__} at {self.line}"


def bug_of(slice_: Slice) -> Bug | None:
    """Return the bug in a validator that a slice errored by; None for any other slice."""
    for requirement, verdict in slice_.validations:
        if (
            verdict.status is ValidationStatus.ERRORED
            and not requirement.judged
            and verdict.error is not None
        ):
            cause = verdict.error.__cause__
            line = "" if cause is None or isinstance(cause, BackendError) else line_of(cause)
            return Bug(requirement, type(cause), line) if cause is not None and line else None
    return None


def times_seen(bug: Bug, slices: Sequence[Slice]) -> int:
    """Count the slices that errored by a bug; 0 if its requirement ever came to a verdict.

    A reply that a selection could not judge had passed.
    """
    seen = 0
    for slice_ in slices:
        if slice_.passed:
            return 0
        for requirement, verdict in slice_.validations:
            if requirement is bug.requirement and verdict.status is not _SKIPPED:
                if verdict.status is not _ERROR:
                    return 0
                other = bug_of(slice_)
                seen += other is not None and other[1:] == bug[1:]
    return seen
