"""Tell when further draws would not help: a requirement is hardly ever met, or a bug repeats."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import real_number
from mellea_like.core.slice import Outcome
from mellea_like.core.validation import ValidationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

__all__ = ["FEWEST", "Bug", "PerRequirement", "Tally"]


@dataclass(frozen=True, slots=True)
class PerRequirement:
    """Gives up if a requirement fails so often that it can hardly be met.

    It gives up once the requirement's pass rate is under ``threshold`` with a probability of more
    than ``confidence``. The pass rate has a Beta posterior with a uniform prior. With the
    defaults, that takes six failures without a pass, or ten with one pass.

    Only verdicts count, not requirements that were skipped or errored. Replies must also be
    complete and of the right format; this counts as one more requirement. If draws race, failures
    may be quicker than passes, so the draws that end first are not a random sample. So draws count
    in the order in which they started, up to the first one that hasn't ended. It also gives up if
    that would be right even if all draws under way were passes.

    Args:
        threshold: the pass rate under which further draws are not worth it, between 0 and 1.
        confidence: the probability that is required, between 0 and 1.

    Raises:
        TypeError: an argument isn't a number.
        ValueError: an argument is out of range.
    """

    threshold: float = 0.3
    confidence: float = 0.9

    def __post_init__(self) -> None:
        real_number("PerRequirement: threshold", self.threshold, over=0, under=1)
        real_number("PerRequirement: confidence", self.confidence, over=0, under=1)

    def begin(self) -> Tally:
        """Return the state for a new call."""
        return Tally(self.threshold, self.confidence)


@dataclass(slots=True)
class _Count:
    requirement: Requirement | None  # Kept so that its id stays unique.
    passed: int = 0
    failed: int = 0


class Tally:
    """Counts the verdicts on each requirement in one call, and tells when to give up."""

    __slots__ = ("_in_order", "_line", "_running", "_so_far")

    def __init__(self, threshold: float, confidence: float) -> None:
        self._in_order = _Verdicts(threshold, confidence)
        self._so_far = _Verdicts(threshold, confidence)
        """The verdicts on all draws that have ended, in whatever order."""
        self._line: dict[int, Slice | None] = {}
        """The draws that don't count in order yet; None for those that are under way."""
        self._running = 0

    def start(self, iteration: int) -> None:
        """Note that a draw starts."""
        self._line[iteration] = None
        self._running += 1

    def add(self, slice_: Slice) -> str | None:
        """Take the record of a draw; return why further draws would not help, or None."""
        self._running -= slice_.iteration in self._line
        self._line[slice_.iteration] = slice_
        # A draw that hangs must not hold up the others for ever.
        why = self._so_far.add(slice_, self._running)
        while self._line and (ended := self._line[first := next(iter(self._line))]) is not None:
            del self._line[first]
            why = self._in_order.add(ended) or why
        return why


@dataclass(slots=True)
class _Verdicts:
    """The numbers of verdicts on each requirement."""

    _threshold: float
    _confidence: float
    _usable: _Count = field(default_factory=lambda: _Count(None))
    _counts: dict[int, _Count] = field(default_factory=dict[int, _Count])  # By id().

    def add(self, slice_: Slice, running: int = 0) -> str | None:
        """Count the verdicts on a draw; return why further draws would not help, or None.

        Draws that are ``running`` are taken for passes.
        """
        if slice_.outcome is not Outcome.FAILED and not slice_.passed:
            return None
        if slice_.reason and slice_.outcome is Outcome.FAILED:
            self._usable.failed += 1
            if self._hopeless(self._usable, running):
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
            if hopeless is None and not passed and self._hopeless(count, running):
                hopeless = self._sentence(f"requirement {requirement.name!r} was met", count)
        return hopeless

    def _hopeless(self, count: _Count, running: int) -> bool:
        passed = count.passed + running
        return _probability_under(self._threshold, passed, count.failed) > self._confidence

    @staticmethod
    def _sentence(what: str, count: _Count) -> str:
        replies = count.passed + count.failed
        return f"{what} in {count.passed} of {replies} replies: further draws are unlikely to help"


def _probability_under(threshold: float, passed: int, failed: int) -> float:
    """Return the probability that a pass rate is under a threshold, given a uniform prior.

    The posterior is Beta(passed + 1, failed + 1). Take passed + failed + 1 draws that each pass
    with probability x. The chance that more than ``passed`` of them pass is the distribution
    function at x (DLMF 8.17.5), which is a finite sum. It is computed in logarithms, because the
    terms may be very small.
    """
    n = passed + failed + 1
    low, high = math.log(threshold), math.log1p(-threshold)
    orders = math.lgamma(n + 1)
    return 1.0 - math.fsum(
        math.exp(orders - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * low + (n - j) * high)
        for j in range(passed + 1)
    )


# --- the same bug in a validator, again and again

_ERROR, _SKIPPED = ValidationStatus.ERRORED, ValidationStatus.SKIPPED

FEWEST = 2
"""The number of times that a bug must occur to count as repeated."""


class Bug(NamedTuple):
    """A bug in a requirement's validator: an exception, and its line, such as ``rules.py:12``."""

    requirement: Requirement
    kind: str
    line: str

    def __str__(self) -> str:
        kind = self.kind.rpartition(".")[2]
        return f"requirement {self.requirement.name!r} raises {kind} at {self.line}"


def bug_of(slice_: Slice) -> Bug | None:
    """Return the validator bug that ended a draw; None if something else ended it."""
    for requirement, verdict in slice_.validations:
        error = verdict.error
        if verdict.status is _ERROR and not requirement.judged and error is not None:
            cause, line = error.__cause__, getattr(error, "line", "")
            if cause is None or not line:
                return None
            # Imported lazily: few calls meet a bug.
            from mellea_like.core.recorded import type_name  # noqa: PLC0415

            return Bug(requirement, type_name(cause), line)
    return None


def times_seen(bug: Bug, slices: Sequence[Slice]) -> int:
    """Count the draws that a bug ended.

    Return 0 if any draw has passed, or if the requirement's validator has given any verdict.
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
